#include "state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using base::OrderedJson;

constexpr int kStateVersion = 1;
constexpr const char* kFile = "state.json";

template <typename T>
OrderedJson write(const std::optional<T>& value) {
  return value.has_value() ? OrderedJson(*value) : OrderedJson(nullptr);
}

template <typename T>
std::optional<T> read_optional(const Json& object, const char* key) {
  auto found = object.find(key);
  return found == object.end() || found->is_null() ? std::nullopt : std::optional(found->get<T>());
}

OrderedJson write(const Measured& run) {
  return {{"row", run.row},
          {"completed", run.completed},
          {"sentence", run.sentence},
          {"refused", run.refused},
          {"record_id", run.record_id},
          {"step_s", run.step_s},
          {"tokens_per_s", run.tokens_per_s},
          {"wall_s", run.wall_s},
          {"steps", run.steps},
          {"peak_bytes", write(run.peak_bytes)},
          {"resident_bytes", write(run.resident_bytes)}};
}

Measured read_run(const Json& object) {
  Measured run;
  run.row = object.at("row").get<std::string>();
  run.completed = object.at("completed").get<bool>();
  run.sentence = object.at("sentence").get<std::string>();
  run.refused = object.at("refused").get<bool>();
  run.record_id = object.at("record_id").get<std::string>();
  run.step_s = object.at("step_s").get<double>();
  run.tokens_per_s = object.at("tokens_per_s").get<double>();
  run.wall_s = object.at("wall_s").get<double>();
  run.steps = object.at("steps").get<int>();
  run.peak_bytes = read_optional<std::uint64_t>(object, "peak_bytes");
  run.resident_bytes = read_optional<std::uint64_t>(object, "resident_bytes");
  return run;
}

OrderedJson write(const std::vector<Measured>& runs) {
  OrderedJson list = OrderedJson::array();
  for (const Measured& run : runs) {
    list.push_back(write(run));
  }
  return list;
}

std::vector<Measured> read_runs(const Json& list) {
  std::vector<Measured> runs;
  for (const Json& run : list) {
    runs.push_back(read_run(run));
  }
  return runs;
}

OrderedJson write(const AblationOptions& options) {
  return {{"model", options.model},
          {"environments", options.environments},
          {"axes", options.axes},
          {"leave_one_out", options.leave_one_out},
          {"limit_row", options.limit_row},
          {"until", options.until},
          {"budget_s", options.budget_s},
          {"steps", write(options.steps)},
          {"blocks", write(options.blocks)},
          {"seed", options.seed},
          {"run_timeout_s", options.run_timeout_s},
          {"ljperf", options.ljperf.string()},
          {"more", options.more}};
}

AblationOptions read_options(const Json& object) {
  AblationOptions options;
  options.model = object.at("model").get<std::string>();
  object.at("environments").get_to(options.environments);
  object.at("axes").get_to(options.axes);
  options.leave_one_out = object.at("leave_one_out").get<bool>();
  options.limit_row = object.at("limit_row").get<bool>();
  options.until = object.at("until").get<double>();
  options.budget_s = object.at("budget_s").get<double>();
  options.steps = read_optional<int>(object, "steps");
  options.blocks = read_optional<int>(object, "blocks");
  options.seed = object.at("seed").get<std::uint64_t>();
  options.run_timeout_s = object.at("run_timeout_s").get<double>();
  options.ljperf = object.at("ljperf").get<std::string>();
  object.at("more").get_to(options.more);
  return options;
}

}  // namespace

Measured summarize(const Row& row, const RunOutcome& outcome) {
  Measured run;
  run.row = row.id;
  run.completed = outcome.end == RunEnd::kCompleted;
  run.sentence = outcome.sentence;
  run.refused = outcome.refused;
  run.wall_s = outcome.wall_s;
  if (!outcome.record.has_value()) {
    return run;
  }
  const Record& record = *outcome.record;
  run.record_id = record.record_id;
  run.step_s = record.step_time_s.median.value_or(0);
  run.tokens_per_s = record.tokens_per_s.value_or(0);
  run.steps = record.runs.empty() ? 0 : static_cast<int>(record.runs.front().steps.size());
  run.peak_bytes = record.peak_memory_bytes.max;
  run.resident_bytes = record.resident_peak_bytes.max;
  return run;
}

void save(const Ablation& ablation) {
  OrderedJson blocks = OrderedJson::array();
  for (const std::vector<Measured>& block : ablation.blocks) {
    blocks.push_back(write(block));
  }
  OrderedJson document{{"schema_version", kStateVersion},
                       {"id", ablation.id},
                       {"created", ablation.created},
                       {"options", write(ablation.options)},
                       {"records", ablation.records.string()},
                       {"stock_compile", ablation.stock_compile},
                       {"stock_compile_ratio", write(ablation.stock_compile_ratio)},
                       {"full_bytes", write(ablation.full_bytes)},
                       {"none_bytes", write(ablation.none_bytes)},
                       {"limit_bytes", write(ablation.limit_bytes)},
                       {"steps", ablation.steps},
                       {"spent_s", ablation.spent_s},
                       {"proxy", ablation.proxy},
                       {"warmup", write(ablation.warmup)},
                       {"blocks", blocks},
                       {"stopped", ablation.stopped}};
  base::write_file_atomically(ablation.folder / kFile, document.dump(1) + "\n");
}

Ablation load(const std::filesystem::path& folder) {
  std::filesystem::path file = folder / kFile;
  base::JsonDocument document = base::JsonDocument::read(file);
  const Json& root = document.root();
  try {
    if (root.at("schema_version") != kStateVersion) {
      throw base::user_error("{}: written by a later release; upgrade to go on with it",
                             file.string());
    }
    Ablation ablation;
    ablation.folder = std::filesystem::absolute(folder);
    ablation.id = root.at("id").get<std::string>();
    ablation.created = root.at("created").get<std::string>();
    ablation.options = read_options(root.at("options"));
    ablation.records = root.at("records").get<std::string>();
    ablation.stock_compile = root.at("stock_compile").get<bool>();
    ablation.stock_compile_ratio = read_optional<double>(root, "stock_compile_ratio");
    ablation.full_bytes = read_optional<std::uint64_t>(root, "full_bytes");
    ablation.none_bytes = read_optional<std::uint64_t>(root, "none_bytes");
    ablation.limit_bytes = read_optional<std::uint64_t>(root, "limit_bytes");
    ablation.steps = root.at("steps").get<int>();
    ablation.spent_s = root.at("spent_s").get<double>();
    ablation.proxy = root.at("proxy").get<std::string>();
    ablation.warmup = read_runs(root.at("warmup"));
    for (const Json& block : root.at("blocks")) {
      ablation.blocks.push_back(read_runs(block));
    }
    ablation.stopped = root.at("stopped").get<std::string>();
    return ablation;
  } catch (const Json::exception& error) {
    throw base::user_error("{}: not the state of an ablation: {}", file.string(), error.what());
  }
}

}  // namespace ljtrain::cnp
