#include "image/listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ljtrain::image {
namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string component(const Release& release, const char* name) {
  auto found = release.components.find(name);
  return found == release.components.end() ? "-" : found->second;
}

std::string cuda_text(const Release& release) {
  return release.cuda.has_value() ? release.cuda->text() : "none";
}

std::string driver_text(const Release& release) {
  return release.driver.has_value() ? ">= " + release.driver->minimum.text() : "-";
}

std::string field(const char* name, const std::string& value) {
  return fmt::format("{:<14} {}\n", name, value);
}

std::string wrapped_list(const char* name, const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += field(i == 0 ? name : "", lines[i]);
  }
  return text;
}

std::string branches_text(const DriverPolicy& policy) {
  std::vector<std::string> lowest;
  for (const Version& version : policy.data_center_also) {
    lowest.push_back(version.text() + "+");
  }
  return fmt::format("{}", fmt::join(lowest, ", "));
}

}  // namespace

std::string describe(const InterfaceRule& rule) {
  return fmt::format("{} for {} GPUs a pod{}{}", rule.interface, fmt::join(rule.gpus_per_pod, ", "),
                     rule.is_default ? ", and by default" : "",
                     rule.why.empty() ? "" : " (" + rule.why + ")");
}

std::string list_text(std::span<const Release> releases) {
  std::string text = fmt::format("{:<9} {:<18} {:<8} {:<15} {:<8} {:<15} {}\n", "RELEASE", "TAG",
                                 "CUDA", "PYTORCH", "DRIVER", "ARCHITECTURES", "SOURCE");
  for (const Release& release : releases) {
    text += fmt::format("{:<9} {:<18} {:<8} {:<15} {:<8} {:<15} {}\n", release.name, release.tag,
                        cuda_text(release), component(release, "torch"), driver_text(release),
                        or_dash(fmt::format("{}", fmt::join(release.architectures, ", "))),
                        release.source);
  }
  return text;
}

std::string caveats_text(const Release& release) {
  std::string text;
  if (!release.not_for.empty()) {
    text += field("not for", release.not_for);
  }
  text += wrapped_list("known issues", release.known_issues);
  for (const auto& [key, value] : release.deepspeed_rules) {
    text += field("DeepSpeed", fmt::format("{} must be {}", key, value));
  }
  if (!release.do_not_reinstall.empty()) {
    text += field("", fmt::format("do not reinstall {}: what pip brings is another build",
                                  fmt::join(release.do_not_reinstall, ", ")));
  }
  return text;
}

std::string show_text(const Release& release, std::string_view architecture) {
  std::string text = field("release", release.name);
  text += field("tag",
                release.tag + (release.tag_source.empty() ? "" : " (" + release.tag_source + ")"));
  text += field("address", release.public_address);
  if (!release.vpc_address.empty()) {
    text += field("in a VPC", release.vpc_address);
  }
  text += field("scenario", or_dash(release.scenario));
  text += field("CUDA", cuda_text(release));
  text += field("driver", driver_text(release) +
                              (release.driver.has_value() ? "" : " (the notes do not say)"));
  if (release.driver.has_value() && !release.driver->data_center_also.empty()) {
    text += field("", "on data-center GPUs also " + branches_text(*release.driver));
    text +=
        field("", fmt::format("to upgrade: R{}", fmt::join(release.driver->must_upgrade, " R")));
  }
  text += field("architectures", release.architectures.empty()
                                     ? "- (the notes do not say)"
                                     : fmt::format("{}", fmt::join(release.architectures, ", ")));
  std::vector<std::string> rules;
  for (const InterfaceRule& rule : release.interface_rules) {
    rules.push_back(describe(rule));
  }
  text += wrapped_list("network", rules);
  for (const auto& [key, value] : release.usage) {
    text += field(key.c_str(), value);
  }
  text += wrapped_list("fixes", release.fixes);
  text += caveats_text(release);
  text += fmt::format("\ncomponents on {}:\n", architecture);
  for (const auto& [name, version] : release.components_on(architecture)) {
    text += fmt::format("  {:<26} {}\n", name, version);
  }
  return text;
}

base::OrderedJson to_json(const Release& release, std::string_view architecture) {
  base::OrderedJson json;
  json["schema_version"] = kReleaseSchema;
  json["release"] = release.name;
  json["tag"] = release.tag;
  json["source"] = release.source;
  json["scenario"] = release.scenario;
  json["not_for"] =
      release.not_for.empty() ? base::OrderedJson() : base::OrderedJson(release.not_for);
  json["cuda"] = release.cuda.has_value() ? base::OrderedJson(release.cuda->text()) : nullptr;
  json["driver"] = nullptr;
  if (release.driver.has_value()) {
    std::vector<std::string> also;
    for (const Version& version : release.driver->data_center_also) {
      also.push_back(version.text());
    }
    json["driver"] = {{"minimum", release.driver->minimum.text()},
                      {"data_center_also", also},
                      {"must_upgrade", release.driver->must_upgrade}};
  }
  json["architectures"] = release.architectures;
  json["architecture"] = architecture;
  json["components"] = release.components_on(architecture);
  json["image"] = {{"public", release.public_address},
                   {"vpc", release.vpc_address.empty() ? base::OrderedJson()
                                                       : base::OrderedJson(release.vpc_address)}};
  json["rules"] = {{"nccl_socket_ifname", base::OrderedJson::array()},
                   {"deepspeed", release.deepspeed_rules},
                   {"do_not_reinstall", release.do_not_reinstall}};
  for (const InterfaceRule& rule : release.interface_rules) {
    json["rules"]["nccl_socket_ifname"].push_back({{"gpus_per_pod", rule.gpus_per_pod},
                                                   {"value", rule.interface},
                                                   {"default", rule.is_default}});
  }
  for (const auto& [key, value] : release.usage) {
    json["rules"][key] = value;
  }
  json["known_issues"] = release.known_issues;
  json["fixes"] = release.fixes;
  return json;
}

}  // namespace ljtrain::image
