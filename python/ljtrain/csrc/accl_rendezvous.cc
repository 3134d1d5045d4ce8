#include "accl_rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

namespace ljtrain {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Of the exchange, not of ljtrain: ranks of two versions must not take each other's memory for
// their own.
constexpr std::string_view kVersion = "1";
constexpr char kTogether = '1';
constexpr char kApart = '0';

std::string namespace_of(const char* kind) {
  struct stat status{};
  const std::string path = fmt::format("/proc/self/ns/{}", kind);
  return stat(path.c_str(), &status) == 0 ? fmt::format("{}:{}", status.st_dev, status.st_ino) : "";
}

// Two ranks can share memory, find each other's socket and watch each other's process when this is
// the same for both.
std::string place() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    boot = host.data();
  }
  return fmt::format("{} {} {} {}", kVersion, boot, namespace_of("net"), namespace_of("pid"));
}

// A store may be used for a second group of the same name; then this is the second generation on
// every rank.
class Keys {
 public:
  Keys(c10d::Store& store, int rank)
      : generation_(store.add(fmt::format("accl/arrivals/{}", rank), 1)) {}
  std::string of_rank(int rank) const { return fmt::format("accl/{}/rank/{}", generation_, rank); }
  std::string verdict() const { return fmt::format("accl/{}/id", generation_); }

 private:
  std::int64_t generation_;
};

[[noreturn]] void raise_missing(c10d::Store& store, const Keys& keys, int rank, int size,
                                Milliseconds timeout) {
  std::vector<int> missing;
  for (int other = 0; other < size; ++other) {
    if (other != rank && !store.check({keys.of_rank(other)})) {
      missing.push_back(other);
    }
  }
  const std::string who =
      missing.empty() ? std::string("rank 0 did not answer")
                      : fmt::format("rank{} {} did not come", missing.size() == 1 ? "" : "s",
                                    fmt::join(missing, ", "));
  C10_THROW_ERROR(
      DistBackendError,
      fmt::format("[accl] Timed out waiting {}ms for the group of {} ranks: {}. Every rank must "
                  "create the group, on the same backend (LJTRAIN_ACCL set alike)",
                  timeout.count(), size, who));
}

std::string wait_for(c10d::Store& store, const std::string& key, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
  store.wait({key}, std::max(left, Milliseconds(1)));  // 0 would be for ever
  return store.get_to_str(key);
}

std::string verdict_of_rank_0(c10d::Store& store, const Keys& keys, int size,
                              const std::string& here, Clock::time_point deadline) {
  std::vector<int> apart;
  for (int rank = 1; rank < size; ++rank) {
    if (wait_for(store, keys.of_rank(rank), deadline) != here) {
      apart.push_back(rank);
    }
  }
  if (!apart.empty()) {
    return fmt::format(
        "{}rank{} {} of {} cannot share memory with rank 0: another host, network or process "
        "namespace, or another version of ljtrain",
        kApart, apart.size() == 1 ? "" : "s", fmt::join(apart, ", "), size);
  }
  const accl::UniqueId id = accl::new_unique_id();
  return kTogether + std::string(id.bytes.data(), id.bytes.size());
}

}  // namespace

accl::UniqueId meet(c10d::Store& store, int rank, int size, Milliseconds timeout) {
  if (size == 1) {
    return accl::new_unique_id();
  }
  const auto deadline = Clock::now() + timeout;
  const Keys keys(store, rank);
  const std::string here = place();
  store.set(keys.of_rank(rank), here);
  std::string verdict;
  try {
    if (rank == 0) {
      verdict = verdict_of_rank_0(store, keys, size, here, deadline);
      store.set(keys.verdict(), verdict);
    } else {
      verdict = wait_for(store, keys.verdict(), deadline);
    }
  } catch (const std::exception&) {
    if (Clock::now() < deadline) {
      throw;  // the store itself is gone
    }
    raise_missing(store, keys, rank, size, timeout);
  }
  if (verdict.front() == kApart) {
    throw ElsewhereError(verdict.substr(1));
  }
  accl::UniqueId id;
  TORCH_CHECK(verdict.size() == id.bytes.size() + 1, "accl: the store holds no id of a group");
  std::copy(verdict.begin() + 1, verdict.end(), id.bytes.begin());
  return id;
}

}  // namespace ljtrain
