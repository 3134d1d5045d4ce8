#include "image/release.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/errors.h"
#include "base/text.h"
#include "embedded.h"

namespace ljtrain::image {
namespace {

constexpr std::uintmax_t kLargestManifest = std::uintmax_t{1} << 20;
constexpr std::string_view kOwnSource = "this repository";

// Newest last, and what this repository makes after those of others.
bool comes_before(const Release& a, const Release& b) {
  bool a_own = a.source == kOwnSource;
  bool b_own = b.source == kOwnSource;
  return a_own != b_own ? b_own : parse_version(a.name) < parse_version(b.name);
}

std::vector<Release> read_all() {
  std::vector<Release> all;
  for (const EmbeddedRelease& entry : embedded_releases()) {
    all.push_back(read_release(base::JsonDocument::parse(
        std::string(entry.json), fmt::format("image/releases/{}.json", entry.name))));
  }
  std::sort(all.begin(), all.end(), comes_before);
  return all;
}

}  // namespace

Components Release::components_on(std::string_view architecture) const {
  Components there = components;
  auto difference = architecture_differences.find(std::string(architecture));
  if (difference != architecture_differences.end()) {
    for (const std::string& component : difference->second.first) {
      there.erase(component);
    }
    for (const auto& [component, version] : difference->second.second) {
      there[component] = version;
    }
  }
  return there;
}

const std::vector<Release>& releases() {
  static const std::vector<Release> all = read_all();
  return all;
}

Release find_release(const std::string& reference) {
  if (reference.find('/') != std::string::npos || reference.ends_with(".json")) {
    return read_release(base::JsonDocument::read(reference, kLargestManifest));
  }
  std::vector<std::string> names;
  for (const Release& release : releases()) {
    if (release.name == reference || release.tag == reference) {
      return release;
    }
    names.push_back(release.name);
  }
  throw base::user_error("no release `{}`: there are {} (a path to a manifest works, too)",
                         base::printable(reference), fmt::join(names, ", "));
}

std::string address(const Release& release, const std::string& region, bool vpc) {
  constexpr std::string_view kPlaceholder = "{region-id}";
  constexpr std::size_t kLongestRegion = 32;
  if (!vpc) {
    if (!region.empty()) {
      throw base::user_error(
          "--region {}: the public address is the same everywhere; add --vpc for the region's own",
          base::printable(region));
    }
    return release.public_address;
  }
  if (release.vpc_address.empty()) {
    throw base::user_error("--vpc: release {} has no address inside a VPC; leave --vpc out",
                           release.name);
  }
  bool plain = !region.empty() && region.size() <= kLongestRegion &&
               std::islower(static_cast<unsigned char>(region.front())) != 0 &&
               region.back() != '-' &&
               std::all_of(region.begin(), region.end(), [](unsigned char c) {
                 return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
               });
  if (!plain) {
    throw base::user_error("--region {}: must be a region id such as cn-beijing",
                           region.empty() ? "is missing" : base::printable(region));
  }
  std::string text = release.vpc_address;
  text.replace(text.find(kPlaceholder), kPlaceholder.size(), region);
  return text;
}

}  // namespace ljtrain::image
