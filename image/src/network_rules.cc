#include "image/network_rules.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace ljtrain::image {
namespace {

using Names = std::vector<std::string>;

template <typename Predicate>
Names those(std::span<const std::string> interfaces, Predicate predicate) {
  Names chosen;
  std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(chosen), predicate);
  return chosen;
}

}  // namespace

InterfaceFilter parse_interface_filter(std::string_view text) {
  InterfaceFilter filter;
  if (text.starts_with('^')) {
    filter.exclude = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    filter.exact = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    std::size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) {
      filter.names.emplace_back(text.substr(0, comma));
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return filter;
}

bool matches(const InterfaceFilter& filter, std::string_view interface) {
  bool named = std::any_of(filter.names.begin(), filter.names.end(), [&](const auto& name) {
    return filter.exact ? interface == name : interface.starts_with(name);
  });
  return named != filter.exclude;
}

std::vector<std::string> select_interfaces(const InterfaceFilter& filter,
                                           std::span<const std::string> interfaces) {
  return those(interfaces, [&](const std::string& name) { return matches(filter, name); });
}

std::vector<std::string> default_interfaces(std::span<const std::string> interfaces) {
  Names chosen = select_interfaces(parse_interface_filter("ib"), interfaces);
  if (chosen.empty()) {
    chosen = select_interfaces(parse_interface_filter("^docker,lo,virbr"), interfaces);
  }
  if (chosen.empty()) {
    chosen = select_interfaces(parse_interface_filter("docker"), interfaces);
  }
  if (chosen.empty()) {
    chosen = select_interfaces(parse_interface_filter("lo"), interfaces);
  }
  return chosen;
}

bool leads_nowhere(std::string_view interface) {
  static constexpr std::array<std::string_view, 9> kPrefixes{
      "docker", "virbr", "veth", "br-", "cni", "cbr", "podman", "ifb", "dummy"};
  return interface == "lo" ||
         std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return interface.starts_with(prefix); });
}

const InterfaceRule* interface_rule(const Release& release, int gpus) {
  const InterfaceRule* otherwise = nullptr;
  for (const InterfaceRule& rule : release.interface_rules) {
    if (std::find(rule.gpus_per_pod.begin(), rule.gpus_per_pod.end(), gpus) !=
        rule.gpus_per_pod.end()) {
      return &rule;
    }
    otherwise = rule.is_default ? &rule : otherwise;
  }
  return otherwise;
}

}  // namespace ljtrain::image
