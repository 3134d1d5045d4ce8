// The file of nccl-tests -J; see importers/import.h.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "formats.h"
#include "log_text.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using base::OrderedJson;

// nccl-tests' names where ljperf comm has others.
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kOperations = {
    {{"alltoall", "all_to_all"}}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {
    {{"half", "float16"}, {"float", "float32"}, {"double", "float64"}, {"fp16", "float16"}}};

template <std::size_t count>
std::string renamed(const std::array<std::pair<std::string_view, std::string_view>, count>& names,
                    std::string name) {
  for (const auto& [theirs, ours] : names) {
    if (name == theirs) return std::string(ours);
  }
  return name;
}

// "/opt/build/all_reduce_perf" -> "all_reduce".
std::string operation_of(const Json& root) {
  const Json args = root.value("args", Json::array());
  if (!args.is_array() || args.empty() || !args[0].is_string()) return "unknown";
  std::string name = args[0].get<std::string>();
  name.erase(0, name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
  if (std::size_t end = name.rfind("_perf"); end != std::string::npos) name.erase(end);
  return name.empty() ? "unknown" : renamed(kOperations, name);
}

OrderedJson amount(const Json& side, const char* key) {
  auto found = side.find(key);
  if (found == side.end() || !found->is_number()) return nullptr;  // "nan", null
  double value = found->get<double>();
  return std::isfinite(value) && value >= 0 ? OrderedJson(value) : OrderedJson(nullptr);
}

std::optional<std::int64_t> count_at(const Json& object, const char* key, std::int64_t least) {
  if (!object.is_object()) return std::nullopt;
  auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return as_count(found->get<double>(), least);
}

// Each process names the first of its GPUs; all have nthreads x ngpus.
std::optional<std::int64_t> ranks_of(const Json& config) {
  std::optional<std::int64_t> threads = count_at(config, "nthreads", 1);
  std::optional<std::int64_t> gpus = count_at(config, "ngpus", 1);
  if (!threads || !gpus || !config.contains("devices") || !config["devices"].is_array()) {
    return std::nullopt;
  }
  return as_count(static_cast<double>(*threads) * static_cast<double>(*gpus) *
                      static_cast<double>(config["devices"].size()),
                  1);
}

OrderedJson nullable(const std::optional<std::int64_t>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

void add_rows(const Json& result, const std::string& operation, const OrderedJson& ranks,
              OrderedJson& rows) {
  std::optional<std::int64_t> bytes = count_at(result, "size", 0);
  if (!bytes) return;
  const Json type = result.value("type", Json());
  for (const char* name : {"out_of_place", "in_place"}) {
    const Json side = result.value(name, Json());
    if (!side.is_object()) continue;
    OrderedJson time = amount(side, "time");
    OrderedJson row{
        {"library", "nccl"},
        {"interface", "c"},
        {"op", operation},
        {"dtype", type.is_string() ? OrderedJson(renamed(kTypes, type.get<std::string>()))
                                   : OrderedJson(nullptr)},
        {"ranks", ranks},
        {"bytes", *bytes},
        {"in_place", std::string_view(name) == "in_place"},
        {"time_us", time},
        {"algbw_gbps", amount(side, "alg_bw")},
        {"busbw_gbps", amount(side, "bus_bw")},
        {"wrong", amount(side, "nwrong")}};
    if (side.contains("cpu_time")) row["cpu_time_us"] = amount(side, "cpu_time");
    rows.push_back(std::move(row));
  }
}

// 22703 -> "2.27.3" (NCCL_VERSION_CODE from 2.9 on; before: 2804 -> "2.8.4").
OrderedJson version_of(const Json& root) {
  std::optional<std::int64_t> code = count_at(root, "nccl_version", 1);
  if (!code) return nullptr;
  constexpr std::int64_t kNewScheme = 10'000;
  return *code < kNewScheme
             ? fmt::format("{}.{}.{}", *code / 1000, *code % 1000 / 100, *code % 100)
             : fmt::format("{}.{}.{}", *code / 10'000, *code % 10'000 / 100, *code % 100);
}

OrderedJson gpus_of(const Json& config) {
  OrderedJson names = OrderedJson::array();
  const Json devices = config.is_object() ? config.value("devices", Json::array()) : Json::array();
  for (const Json& device : devices) {
    if (!device.is_object()) continue;
    const Json name = device.value("device_info", Json());
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

}  // namespace

OrderedJson read_nccl_tests(const base::JsonDocument& document) {
  const Json& root = document.root();
  const Json results = root.is_object() ? root.value("results", Json()) : Json();
  if (!results.is_array()) {
    throw base::user_error("{}: has no list `results`; is it what nccl-tests -J wrote?",
                           base::printable(document.name()));
  }
  const Json config = root.value("config", Json::object());
  std::string operation = operation_of(root);
  OrderedJson ranks = nullable(ranks_of(config));
  OrderedJson rows = OrderedJson::array();
  for (const Json& result : results) {
    if (result.is_object()) add_rows(result, operation, ranks, rows);
  }
  if (rows.empty()) {
    throw base::user_error("{}: its list `results` holds no measurement",
                           base::printable(document.name()));
  }
  OrderedJson record{
      {"schema_version", 1},    {"kind", "collectives"}, {"record_id", ""},
      {"created", ""},          {"status", "completed"}, {"failure", nullptr},
      {"source", nullptr},      {"ranks", ranks},        {"library_version", version_of(root)},
      {"gpus", gpus_of(config)}};
  const Json wrong = root.value("out_of_bounds", Json::object());
  if (std::optional<std::int64_t> count = count_at(wrong, "count", 1)) {
    record["status"] = "failed";
    record["failure"] = {{"sentence", fmt::format("{} results were out of bounds", *count)}};
  }
  record["rows"] = std::move(rows);
  return record;
}

}  // namespace ljtrain::cnp
