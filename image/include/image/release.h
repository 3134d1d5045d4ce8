// A release of a training image: what is in it, what it needs, and the rules that go with it.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "image/version.h"

namespace ljtrain::image {

// Which interface a pod's collectives use, by the number of its GPUs.
struct InterfaceRule {
  std::vector<int> gpus_per_pod;
  std::string interface;
  bool is_default = false;  // also for numbers of GPUs that no rule names
  std::string why;
};

// What a release asks of the driver. It may ask for more than CUDA itself needs.
struct DriverPolicy {
  Version minimum;
  std::vector<Version> data_center_also;  // lowest of a branch, on data-center GPUs
  std::vector<int> must_upgrade;          // branches
  std::string note;
};

using Components = std::map<std::string, std::string>;  // name -> version, as published

struct Release {
  std::string name;        // "25.07"
  std::string tag;         // "25.07-serverless": with its suffix
  std::string tag_source;  // where the tag comes from when the notes do not give it
  std::string source;
  std::string scenario;
  std::string not_for;                     // what the image must not be used for
  std::optional<Version> cuda;             // none: no CUDA in the image
  std::optional<DriverPolicy> driver;      // none: the notes do not say
  std::vector<std::string> architectures;  // empty: the notes do not say
  Components components;
  std::map<std::string, std::pair<std::vector<std::string>, Components>>
      architecture_differences;  // architecture -> without, with
  std::string public_address;
  std::string vpc_address;               // holds {region-id}; empty: none
  std::vector<std::string> vpc_regions;  // that the notes name
  std::vector<InterfaceRule> interface_rules;
  std::map<std::string, std::string> deepspeed_rules;  // "section.key" -> "empty or auto"
  std::vector<std::string> do_not_reinstall;
  std::map<std::string, std::string> usage;  // run, compile, recompute, demo
  std::vector<std::string> known_issues;
  std::vector<std::string> fixes;

  // The components on "amd64" or "aarch64".
  Components components_on(std::string_view architecture) const;
};

// The newest schema_version of manifests that this program reads.
inline constexpr int kReleaseSchema = 1;

// Throws UserError, one sentence with file, line and key, for text that is no manifest.
Release read_release(const base::JsonDocument& document);
// Those built in, oldest first; the one that this repository makes comes last.
const std::vector<Release>& releases();
// One built in by its name or tag, or one from a file when `reference` has a slash or ends in
// .json. Throws UserError with the names there are.
Release find_release(const std::string& reference);

// Where to pull it from. Throws UserError for a region that is none, or an address that the release
// does not have.
std::string address(const Release& release, const std::string& region, bool vpc);

// Everything a program may want to know of a release.
base::OrderedJson to_json(const Release& release, std::string_view architecture);

}  // namespace ljtrain::image
