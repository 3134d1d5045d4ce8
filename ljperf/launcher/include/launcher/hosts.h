// Addresses of hosts as the network sees them.
#pragma once

#include <string>

namespace ljtrain::ljperf {

// The numeric address of a host name. Throws RunError when it does not resolve.
std::string resolve(const std::string& host);

// Whether the name or address is one of this host's own.
bool is_this_host(const std::string& host);

// This host's address that packets to `host` leave from (nothing is sent). Throws RunError when
// there is no way to it.
std::string address_towards(const std::string& host);

// The network interface that holds this address of ours; empty when none does.
std::string interface_with(const std::string& address);

}  // namespace ljtrain::ljperf
