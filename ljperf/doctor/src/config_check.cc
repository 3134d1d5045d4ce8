#include "config_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"
#include "catalogue/lookup.h"
#include "check.h"
#include "config_keys.h"
#include "config_rules.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;
using Pointer = Json::json_pointer;

// Where the key stands, and its value where that is a number, a truth value or a short word: never
// more of a file that may hold tokens.
std::string where(const base::JsonDocument& document, const Pointer& pointer) {
  std::string text = base::printable(document.where(pointer));
  const Json& root = document.root();
  if (root.contains(pointer) && (root[pointer].is_number() || root[pointer].is_boolean())) {
    text += " = " + root[pointer].dump();
  }
  return text;
}

Finding with_id(Finding finding, std::string_view id) {
  finding.id = fmt::format("config.{}", id);
  return finding;
}

void check_rules(const Machine& machine, std::vector<Finding>& findings) {
  ConfigView view(machine);
  for (const ConfigRule& rule : config_rules()) {
    const auto& document =
        rule.side == Side::kDeepSpeed ? machine.deepspeed : machine.training_arguments;
    if (!document.has_value() || !rule.broken(view)) {
      continue;
    }
    findings.push_back(
        {fmt::format("config.{}", rule.id), rule.status,
         fmt::format("{}: {}", where(*document, Pointer(std::string(rule.key))), rule.found),
         std::string(rule.expected), std::string(rule.fix)});
  }
}

std::string nearest(std::string_view key, std::span<const std::string_view> known) {
  std::vector<std::string_view> near = nearest_names(key, known, 1);
  return near.empty() ? "take it out" : fmt::format("did you mean {}?", near.front());
}

void check_keys(const base::JsonDocument& document, const Pointer& section,
                std::span<const std::string_view> known, Status status, std::string_view what,
                std::vector<Finding>& findings) {
  if (!document.root().contains(section) || !document.root()[section].is_object()) {
    return;
  }
  for (const auto& [key, value] : document.root()[section].items()) {
    // A leading underscore or $ is how people write comments into JSON.
    if (std::find(known.begin(), known.end(), key) == known.end() && !key.starts_with('_') &&
        !key.starts_with('$')) {
      findings.push_back(
          {"config.unknown-key", status,
           fmt::format("{}: {}", base::printable(document.where(section / key)), what),
           "a key that exists", nearest(key, known)});
    }
  }
}

// "auto" where nobody fills it in. Models of sections drop the word and take their default.
void check_auto(const base::JsonDocument& document, const Json& value, const Pointer& at,
                std::vector<Finding>& findings) {
  if (value == "auto") {
    std::string key = at.to_string();
    std::span<const std::string_view> fine = keys_that_may_be_auto();
    std::span<const KnownSection> sections = deepspeed_sections();
    bool dropped = std::any_of(sections.begin(), sections.end(), [&](const KnownSection& section) {
      return key.starts_with(std::string(section.pointer) + "/");
    });
    if (!dropped && std::find(fine.begin(), fine.end(), key) == fine.end()) {
      findings.push_back(with_id(fail(where(document, at) + ": \"auto\", which nobody fills in",
                                      "a value", "write a value, or take the key out"),
                                 "auto"));
    }
  }
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) {
      check_auto(document, child, at / key, findings);
    }
  }
}

void check_twins(const Machine& machine, std::vector<Finding>& findings) {
  for (const Twin& twin : config_twins()) {
    Pointer key{std::string(twin.key)};
    Pointer argument("/" + std::string(twin.argument));
    const Json& deepspeed = machine.deepspeed->root();
    const Json& arguments = machine.training_arguments->root();
    if (!deepspeed.contains(key) || !arguments.contains(argument) || deepspeed[key].is_string() ||
        deepspeed[key].is_null() || arguments[argument].is_null() ||
        deepspeed[key] == arguments[argument]) {
      continue;
    }
    findings.push_back(
        with_id(fail(fmt::format("{}, but {} = {}", where(*machine.deepspeed, key), twin.argument,
                                 base::printable(arguments[argument].dump(), 40)),
                     "the same in both: the Trainer refuses what differs",
                     "write \"auto\" in DeepSpeed's file"),
                "twins"));
  }
}

}  // namespace

std::vector<Finding> check_configuration(const Machine& machine) {
  std::vector<Finding> findings;
  if (!machine.deepspeed.has_value() && !machine.training_arguments.has_value()) {
    return findings;
  }
  if (machine.deepspeed.has_value()) {
    const base::JsonDocument& document = *machine.deepspeed;
    check_keys(document, Pointer(), deepspeed_keys(), Status::kWarn,
               "unknown, and DeepSpeed ignores it without a word", findings);
    for (const KnownSection& section : deepspeed_sections()) {
      check_keys(document, Pointer(std::string(section.pointer)), section.keys, Status::kFail,
                 "unknown, and DeepSpeed refuses it", findings);
    }
    check_auto(document, document.root(), Pointer(), findings);
  }
  if (machine.training_arguments.has_value()) {
    check_keys(*machine.training_arguments, Pointer(), training_argument_keys(), Status::kFail,
               "no TrainingArguments of transformers 5.24", findings);
  }
  if (machine.deepspeed.has_value() && machine.training_arguments.has_value()) {
    check_twins(machine, findings);
  }
  check_rules(machine, findings);
  if (findings.empty()) {
    findings.push_back(with_id(ok(fmt::format("{} rules hold", config_rules().size())), "files"));
  }
  return findings;
}

}  // namespace ljtrain::ljperf
