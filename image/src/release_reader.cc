// Reads a manifest strictly: every key has its type, and what is not right is named with its line.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/errors.h"
#include "image/release.h"

namespace ljtrain::image {
namespace {

using base::Json;
using base::JsonDocument;
using Pointer = Json::json_pointer;

constexpr std::size_t kLongestText = 400;

class Reader {
 public:
  explicit Reader(const JsonDocument& document) : document_(document) {}

  [[noreturn]] void refuse(const Pointer& pointer, const std::string& what) const {
    throw base::user_error("{}: {}", document_.where(pointer), what);
  }

  const Json* find(const Pointer& pointer) const {
    const Json& root = document_.root();
    return root.contains(pointer) && !root[pointer].is_null() ? &root[pointer] : nullptr;
  }

  std::string text_of(const Json& value, const Pointer& pointer) const {
    if (!value.is_string()) {
      refuse(pointer, "must be text");
    }
    auto text = value.get<std::string>();
    bool printable = std::none_of(text.begin(), text.end(),
                                  [](unsigned char c) { return std::iscntrl(c) != 0; });
    if (text.size() > kLongestText || !printable) {
      refuse(pointer, fmt::format("must be one line of at most {} characters", kLongestText));
    }
    return text;
  }

  std::string text(const Pointer& pointer) const {
    const Json* value = find(pointer);
    return value == nullptr ? "" : text_of(*value, pointer);
  }

  std::string needed(const Pointer& pointer) const {
    std::string value = text(pointer);
    if (value.empty()) {
      refuse(pointer, "is missing: is the file whole?");
    }
    return value;
  }

  std::vector<std::string> texts(const Pointer& pointer) const {
    std::vector<std::string> all;
    const Json* list = find(pointer);
    if (list != nullptr && !list->is_array()) {
      refuse(pointer, "must be a list");
    }
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      all.push_back(text_of((*list)[i], pointer / i));
    }
    return all;
  }

  std::map<std::string, std::string> text_map(const Pointer& pointer) const {
    std::map<std::string, std::string> all;
    for (const std::string& key : keys(pointer)) {
      all[key] = text_of((*find(pointer))[key], pointer / key);
    }
    return all;
  }

  std::vector<std::string> keys(const Pointer& pointer) const {
    std::vector<std::string> names;
    const Json* object = find(pointer);
    if (object != nullptr && !object->is_object()) {
      refuse(pointer, "must be an object");
    }
    if (object != nullptr) {
      for (const auto& [key, value] : object->items()) {
        names.push_back(key);
      }
    }
    return names;
  }

  Version version(const Pointer& pointer, std::string text) const {
    if (text.starts_with('R')) {
      text.erase(0, 1);  // a branch: R575
    }
    std::optional<Version> parsed = parse_version(text);
    if (!parsed.has_value()) {
      refuse(pointer, fmt::format("`{}` is no version such as 12.8.0", text));
    }
    return *parsed;
  }

 private:
  const JsonDocument& document_;
};

std::vector<InterfaceRule> read_interfaces(const Reader& reader) {
  std::vector<InterfaceRule> rules;
  Pointer pointer("/rules/nccl_socket_ifname");
  const Json* list = reader.find(pointer);
  if (list != nullptr && !list->is_array()) {
    reader.refuse(pointer, "must be a list of rules");
  }
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    Pointer at = pointer / i;
    InterfaceRule rule;
    rule.interface = reader.needed(at / "value");
    rule.why = reader.text(at / "why");
    const Json* is_default = reader.find(at / "default");
    rule.is_default = is_default != nullptr && *is_default == true;
    const Json* gpus = reader.find(at / "gpus_per_pod");
    if (gpus == nullptr || !gpus->is_array()) {
      reader.refuse(at / "gpus_per_pod", "must be a list of numbers of GPUs");
    }
    for (const Json& count : *gpus) {
      if (!count.is_number_integer() || count < 1 || count > 1024) {
        reader.refuse(at / "gpus_per_pod", "must hold numbers from 1 to 1024");
      }
      rule.gpus_per_pod.push_back(count.get<int>());
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

std::optional<DriverPolicy> read_driver(const Reader& reader) {
  Pointer pointer("/driver");
  if (reader.keys(pointer).empty()) {
    return std::nullopt;
  }
  DriverPolicy policy;
  policy.minimum = reader.version(pointer / "minimum", reader.needed(pointer / "minimum"));
  for (const std::string& text : reader.texts(pointer / "data_center_also")) {
    policy.data_center_also.push_back(reader.version(pointer / "data_center_also", text));
  }
  for (const std::string& text : reader.texts(pointer / "must_upgrade")) {
    policy.must_upgrade.push_back(reader.version(pointer / "must_upgrade", text).major());
  }
  policy.note = reader.text(pointer / "note");
  return policy;
}

void read_image(const Reader& reader, Release& release) {
  release.tag = reader.needed(Pointer("/tag"));
  bool plain = std::all_of(release.tag.begin(), release.tag.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  if (!plain) {
    reader.refuse(Pointer("/tag"), "may hold letters, digits, dots, dashes and underscores only");
  }
  release.public_address = reader.needed(Pointer("/image/public"));
  release.vpc_address = reader.text(Pointer("/image/vpc"));
  release.vpc_regions = reader.texts(Pointer("/image/vpc_regions"));
  if (!release.public_address.ends_with(":" + release.tag)) {
    reader.refuse(Pointer("/image/public"), fmt::format("must end in the tag :{}", release.tag));
  }
  if (!release.vpc_address.empty() &&
      (!release.vpc_address.ends_with(":" + release.tag) ||
       release.vpc_address.find("{region-id}") == std::string::npos)) {
    reader.refuse(Pointer("/image/vpc"),
                  fmt::format("must hold {{region-id}} and end in the tag :{}", release.tag));
  }
}

void read_rules(const Reader& reader, Release& release) {
  release.interface_rules = read_interfaces(reader);
  release.deepspeed_rules = reader.text_map(Pointer("/rules/deepspeed"));
  release.do_not_reinstall = reader.texts(Pointer("/rules/do_not_reinstall"));
  for (const char* key : {"run", "compile", "recompute", "demo"}) {
    std::string text = reader.text(Pointer("/rules") / key);
    if (!text.empty()) {
      release.usage[key] = text;
    }
  }
}

}  // namespace

Release read_release(const base::JsonDocument& document) {
  Reader reader(document);
  if (!document.root().is_object()) {
    throw base::user_error("{}: is no release manifest: it must hold a JSON object",
                           document.name());
  }
  const Json* schema = reader.find(Pointer("/schema_version"));
  if (schema == nullptr || !schema->is_number_integer() || *schema < 1 ||
      *schema > kReleaseSchema) {
    reader.refuse(Pointer("/schema_version"),
                  fmt::format("must be {}: is this a release manifest?", kReleaseSchema));
  }
  Release release;
  release.name = reader.needed(Pointer("/release"));
  release.tag_source = reader.text(Pointer("/tag_source"));
  release.source = reader.text(Pointer("/source"));
  release.scenario = reader.text(Pointer("/scenario"));
  release.not_for = reader.text(Pointer("/not_for"));
  std::string cuda = reader.text(Pointer("/cuda"));
  if (!cuda.empty()) {
    release.cuda = reader.version(Pointer("/cuda"), cuda);
  }
  release.driver = read_driver(reader);
  release.architectures = reader.texts(Pointer("/architectures"));
  release.components = reader.text_map(Pointer("/components"));
  if (release.components.empty()) {
    reader.refuse(Pointer("/components"), "is missing: is the file whole?");
  }
  for (const std::string& name : reader.keys(Pointer("/architecture_differences"))) {
    Pointer at = Pointer("/architecture_differences") / name;
    release.architecture_differences[name] = {reader.texts(at / "without"),
                                              reader.text_map(at / "with")};
  }
  read_image(reader, release);
  read_rules(reader, release);
  release.known_issues = reader.texts(Pointer("/known_issues"));
  release.fixes = reader.texts(Pointer("/fixes"));
  return release;
}

}  // namespace ljtrain::image
