// cnp gate: may this candidate pass? For CI.
#include "cnp/gate.h"

#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "commands.h"
#include "open_store.h"
#include "selected.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp gate --baseline release --max-slowdown 3% --max-memory +2%
  cnp gate --baseline release candidate --junit gate.xml

Exit code 0: all checks pass. 1: one fails. 2: one cannot be told, or bad usage.
)";

struct GateOptions {
  std::string baseline;
  std::vector<std::string> candidate = {"latest"};
  std::string slowdown = "3%";
  std::string memory = "2%";
  bool skip_loss = false;
  std::string junit;
  bool json = false;
};

const char* name_of(CheckResult result) {
  switch (result) {
    case CheckResult::kPass:
      return "pass";
    case CheckResult::kFail:
      return "fail";
    case CheckResult::kCannotTell:
      return "cannot tell";
  }
  return "";
}

std::string joined(const std::vector<std::string>& selectors) {
  std::string text;
  for (const std::string& selector : selectors) text += (text.empty() ? "" : ",") + selector;
  return text;
}

base::OrderedJson check_json(const Check& check) {
  auto number = [](const std::optional<double>& value) {
    return value ? base::OrderedJson(*value) : base::OrderedJson(nullptr);
  };
  base::OrderedJson json = base::OrderedJson::object();
  json["id"] = check.id;
  json["result"] = name_of(check.result);
  json["sentence"] = check.sentence;
  json["value"] = number(check.value);
  json["interval"] = nullptr;
  if (check.interval) json["interval"] = {check.interval->low, check.interval->high};
  json["limit"] = number(check.limit);
  json["detectable"] = number(check.detectable);
  return json;
}

void print_checks(const GateVerdict& verdict, const std::string& proxy) {
  if (!proxy.empty()) fmt::print("{}\n", proxy);
  for (const Check& check : verdict.checks) {
    fmt::print("{:<11}  {:<13}  {}\n", name_of(check.result), check.id, check.sentence);
  }
  switch (verdict.exit_code()) {
    case base::kDone:
      fmt::print("PASSED\n");
      break;
    case base::kFailed:
      fmt::print("FAILED\n");
      break;
    default:
      fmt::print("CANNOT TELL\n");
  }
  if (!proxy.empty()) fmt::print("{}\n", proxy);
}

int run_gate(const GateOptions& options) {
  GateLimits limits{.slowdown = parse_percent("--max-slowdown", options.slowdown),
                    .memory = parse_percent("--max-memory", options.memory),
                    .loss = !options.skip_loss};
  RecordStore store = open_store();
  std::vector<Record> baseline = selected(store, {options.baseline});
  std::vector<Record> candidate = selected(store, options.candidate);
  require_apart(baseline, candidate);
  std::string proxy = proxy_line({"", baseline}, {"", candidate});
  std::string names = fmt::format("{} against {}", joined(options.candidate), options.baseline);
  base::OrderedJson ids = base::OrderedJson::object();
  for (const Record& record : baseline) ids["baseline"].push_back(record.record_id);
  for (const Record& record : candidate) ids["candidate"].push_back(record.record_id);
  GateVerdict verdict = gate(options.baseline, std::move(baseline), joined(options.candidate),
                             std::move(candidate), limits);
  if (!options.junit.empty()) {
    base::write_file_atomically(options.junit, junit_xml(verdict, names));
  }
  if (!options.json) {
    print_checks(verdict, proxy);
    return verdict.exit_code();
  }
  base::OrderedJson document = base::OrderedJson::object();
  document["schema_version"] = 1;
  document["passed"] = verdict.exit_code() == base::kDone;
  document["exit_code"] = verdict.exit_code();
  document["record_ids"] = std::move(ids);
  document["proxy"] = !proxy.empty();
  document["checks"] = base::OrderedJson::array();
  for (const Check& check : verdict.checks) document["checks"].push_back(check_json(check));
  document["comparison"] = nullptr;
  if (verdict.comparison) document["comparison"] = to_json(*verdict.comparison);
  print_document(document);
  return verdict.exit_code();
}

}  // namespace

void add_gate(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("gate", "Fail when a candidate is slower, larger or different");
  auto options = std::make_shared<GateOptions>();
  command->add_option("--baseline", options->baseline, kSideHelp)->required();
  command->add_option("CANDIDATE", options->candidate, "The same; it is judged")
      ->capture_default_str();
  command->add_option("--max-slowdown", options->slowdown, "Longer step time that is allowed")
      ->capture_default_str();
  command->add_option("--max-memory", options->memory, "Larger peak memory that is allowed")
      ->capture_default_str();
  command->add_flag("--skip-loss", options->skip_loss, "Do not compare the losses");
  command->add_option("--junit", options->junit, "Write the checks to this file as JUnit XML");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] { context.exit_code = run_gate(*options); });
}

}  // namespace ljtrain::cnp
