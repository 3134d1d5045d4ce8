#include "selected.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record_file.h"
#include "store/resolve.h"

namespace ljtrain::cnp {
namespace {

using base::OrderedJson;

OrderedJson number(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
}

OrderedJson interval_json(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  return OrderedJson::array({number(interval->low), number(interval->high)});
}

template <typename T>
OrderedJson optional_json(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

const char* name_of(RatioMethod method) {
  switch (method) {
    case RatioMethod::kPairs:
      return "pairs";
    case RatioMethod::kSessions:
      return "sessions";
    case RatioMethod::kSteps:
      return "steps";
  }
  return "";
}

const char* name_of(Parity parity) {
  switch (parity) {
    case Parity::kSame:
      return "same";
    case Parity::kWithin:
      return "within";
    case Parity::kOutside:
      return "outside";
    case Parity::kUnknown:
      return "unknown";
  }
  return "";
}

OrderedJson speed_json(const RunRatio& speed) {
  OrderedJson json = OrderedJson::object();
  json["ratio"] = number(speed.ratio);
  json["interval"] = interval_json(speed.interval);
  json["level"] = speed.level;
  json["verdict"] = verdict(speed);
  json["p_value"] = optional_json(speed.p_value);
  json["method"] = name_of(speed.method);
  json["how"] = speed.how;
  json["runs"] = {speed.runs_a, speed.runs_b};
  json["sessions"] = {speed.sessions_a, speed.sessions_b};
  json["pairs"] = speed.pairs;
  return json;
}

OrderedJson memory_json(const MemoryComparison& memory) {
  OrderedJson json = OrderedJson::object();
  json["a_bytes"] = optional_json(memory.a);
  json["b_bytes"] = optional_json(memory.b);
  json["ratio"] = optional_json(memory.ratio);
  json["interval"] = interval_json(memory.interval);
  return json;
}

OrderedJson loss_json(const LossParity& loss) {
  OrderedJson json = OrderedJson::object();
  bool known = loss.verdict != Parity::kUnknown;
  json["verdict"] = name_of(loss.verdict);
  json["tolerance"] = known ? OrderedJson(loss.tolerance) : OrderedJson(nullptr);
  json["largest"] = known ? number(loss.largest) : OrderedJson(nullptr);
  json["step"] = known ? OrderedJson(loss.worst_step) : OrderedJson(nullptr);
  json["steps"] = loss.steps;
  json["mean_difference"] = known ? number(loss.mean_difference) : OrderedJson(nullptr);
  json["sentence"] = loss.sentence;
  return json;
}

}  // namespace

std::vector<Record> selected(const RecordStore& store, const std::vector<std::string>& selectors) {
  std::vector<Record> records;
  std::set<std::string> seen;
  for (const std::string& list : selectors) {
    for (std::size_t begin = 0; begin <= list.size();) {
      std::size_t end = std::min(list.find(',', begin), list.size());
      for (const std::filesystem::path& file :
           resolve_records(store, std::string_view(list).substr(begin, end - begin))) {
        Record record = read_record(file);
        if (seen.insert(record.record_id).second) records.push_back(std::move(record));
      }
      begin = end + 1;
    }
  }
  return records;
}

void require_apart(const std::vector<Record>& a, const std::vector<Record>& b) {
  for (const Record& one : a) {
    for (const Record& other : b) {
      if (one.record_id == other.record_id) {
        throw base::user_error("record {} stands on both sides: give two different ones",
                               base::printable(one.record_id));
      }
    }
  }
}

std::string proxy_line(const Side& a, const Side& b) {
  const Proxy& of_a = a.records.front().proxy;
  const Proxy& of_b = b.records.front().proxy;
  if (!of_a.is_proxy && !of_b.is_proxy) return "";
  return fmt::format("PROXY: {}; its figures are not those of the full model",
                     base::printable(of_a.is_proxy ? of_a.rule : of_b.rule, 300));
}

OrderedJson to_json(const Side& side) {
  OrderedJson json = OrderedJson::object();
  json["selector"] = side.name;
  json["record_ids"] = OrderedJson::array();
  std::size_t runs = 0;
  for (const Record& record : side.records) {
    json["record_ids"].push_back(record.record_id);
    runs += record.runs.size();
  }
  json["runs"] = runs;
  double seconds = step_time(side);
  json["step_time_s"] = number(seconds);
  std::optional<double> tokens = tokens_per_step(side);
  json["tokens_per_s"] = tokens ? number(*tokens / seconds) : OrderedJson(nullptr);
  return json;
}

OrderedJson to_json(const Comparison& comparison) {
  OrderedJson json = OrderedJson::object();
  json["differences"] = OrderedJson::array();
  for (const Difference& difference : comparison.differences) {
    json["differences"].push_back({{"key", difference.key},
                                   {"a", difference.a},
                                   {"b", difference.b},
                                   {"unlike", difference.unlike}});
  }
  json["alike"] = unlike_sentence(comparison.differences).empty();
  json["proxy"] = comparison.proxy;
  json["speedup"] = speed_json(comparison.speed);
  json["memory"] = memory_json(comparison.memory);
  json["loss"] = loss_json(comparison.loss);
  return json;
}

}  // namespace ljtrain::cnp
