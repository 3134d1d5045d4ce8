#include "image/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "image/listing.h"

namespace ljtrain::image {
namespace {

std::string interfaces(const Release& release) {
  std::vector<std::string> rules;
  for (const InterfaceRule& rule : release.interface_rules) {
    rules.push_back(describe(rule));
  }
  return fmt::format("{}", fmt::join(rules, "; "));
}

std::string deepspeed(const Release& release) {
  std::vector<std::string> rules;
  for (const auto& [key, value] : release.deepspeed_rules) {
    rules.push_back(fmt::format("{}: {}", key, value));
  }
  return fmt::format("{}", fmt::join(rules, "; "));
}

std::vector<std::pair<std::string, std::string>> properties(const Release& release) {
  return {{"tag", release.tag},
          {"cuda", release.cuda.has_value() ? release.cuda->text() : "none"},
          {"driver", release.driver.has_value() ? ">= " + release.driver->minimum.text() : ""},
          {"not for", release.not_for},
          {"architectures", fmt::format("{}", fmt::join(release.architectures, ", "))},
          {"network", interfaces(release)},
          {"DeepSpeed", deepspeed(release)},
          {"no reinstall", fmt::format("{}", fmt::join(release.do_not_reinstall, ", "))}};
}

std::string value_in(const Components& components, const std::string& name) {
  auto found = components.find(name);
  return found == components.end() ? "" : found->second;
}

}  // namespace

std::vector<Difference> compare(const Release& before, const Release& after,
                                std::string_view architecture) {
  std::vector<Difference> differences;
  auto old_properties = properties(before);
  auto new_properties = properties(after);
  for (std::size_t i = 0; i < old_properties.size(); ++i) {
    if (old_properties[i].second != new_properties[i].second) {
      differences.push_back(
          {old_properties[i].first, old_properties[i].second, new_properties[i].second});
    }
  }
  Components old_components = before.components_on(architecture);
  Components new_components = after.components_on(architecture);
  std::set<std::string> names;
  for (const auto* components : {&old_components, &new_components}) {
    for (const auto& [name, version] : *components) {
      names.insert(name);
    }
  }
  names.erase("cuda");  // stands among the properties
  for (const std::string& name : names) {
    std::string old_version = value_in(old_components, name);
    std::string new_version = value_in(new_components, name);
    if (old_version != new_version) {
      differences.push_back({name, old_version, new_version});
    }
  }
  return differences;
}

std::string diff_text(const Release& before, const Release& after,
                      const std::vector<Difference>& differences) {
  std::string text = fmt::format("{:<26} {:<26} {}\n", "", before.name, after.name);
  for (const Difference& difference : differences) {
    text += fmt::format("{:<26} {:<26} {}\n", difference.key,
                        difference.before.empty() ? "-" : difference.before,
                        difference.after.empty() ? "-" : difference.after);
  }
  if (differences.empty()) {
    text += "no difference\n";
  } else {
    text += "\n- : not listed in that release's notes\n";
  }
  return text;
}

}  // namespace ljtrain::image
