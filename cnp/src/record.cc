#include "cnp/record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <type_traits>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record_schema.h"
#include "record_fields.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using base::OrderedJson;

constexpr std::array<std::pair<Status, const char*>, 3> kStatusNames{{
    {Status::kCompleted, "completed"},
    {Status::kInterrupted, "interrupted"},
    {Status::kFailed, "failed"},
}};

// C++ to JSON. One overload a shape; what has fields() is an object.
template <typename T>
OrderedJson write(const T& value);

OrderedJson write(const Interval& interval) {
  return OrderedJson::array({interval.low, interval.high});
}

OrderedJson write(Status status) {
  for (const auto& [value, name] : kStatusNames) {
    if (value == status) return name;
  }
  return nullptr;
}

template <typename T>
OrderedJson write(const std::optional<T>& value) {
  return value.has_value() ? write(*value) : OrderedJson(nullptr);
}

template <typename T>
OrderedJson write(const std::vector<T>& values) {
  OrderedJson array = OrderedJson::array();
  for (const T& value : values) array.push_back(write(value));
  return array;
}

OrderedJson write(const std::map<std::string, std::string>& values) {
  OrderedJson object = OrderedJson::object();
  for (const auto& [name, value] : values) object[name] = value;
  return object;
}

template <typename T>
OrderedJson write(const T& value) {
  if constexpr (HasFields<T>) {
    OrderedJson object = OrderedJson::object();
    fields(value,
           [&object](const char* name, const auto& member) { object[name] = write(member); });
    for (const auto& [name, extra] : value.extra.items()) {
      if (!object.contains(name)) object[name] = extra;
    }
    return object;
  } else {
    return OrderedJson(value);
  }
}

// JSON to C++. The document has passed the schema, so only shapes that it allows arrive here.
template <typename T>
void read(const Json& json, T& value);

void read(const Json& json, double& value) {
  value = json.is_null() ? kNotFinite : json.get<double>();
}

void read(const Json& json, Interval& interval) {
  interval = {json.at(0).get<double>(), json.at(1).get<double>()};
}

void read(const Json& json, Status& status) {
  for (const auto& [value, name] : kStatusNames) {
    if (json == name) status = value;
  }
}

void read(const Json& json, OrderedJson& value) { value = json; }

template <typename T>
void read(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) read(json, value.emplace());
}

template <typename T>
void read(const Json& json, std::vector<T>& values) {
  values.assign(json.size(), T());
  for (std::size_t i = 0; i < json.size(); ++i) read(json[i], values[i]);
}

template <typename T>
void read(const Json& json, T& value) {
  if constexpr (HasFields<T>) {
    Json unknown = json;
    fields(value, [&](const char* name, auto& member) {
      if (auto found = json.find(name); found != json.end()) read(*found, member);
      unknown.erase(name);
    });
    value.extra = unknown.empty() ? OrderedJson(nullptr) : OrderedJson(unknown);
  } else {
    json.get_to(value);
  }
}

// Replaces what JSON text cannot hold; returns the path of the first number that is not finite, ""
// when there is none.
std::string make_printable(OrderedJson& json, const std::string& path) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) {
    json = nullptr;
    return path;
  }
  if (json.is_string()) {
    // dump() replaces invalid UTF-8, parse() takes the quotes and escapes off again.
    json = OrderedJson::parse(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    return "";
  }
  std::string first;
  if (json.is_object()) {
    OrderedJson clean = OrderedJson::object();
    for (auto& [name, value] : json.items()) {
      std::string found =
          make_printable(value, path.empty() ? name : fmt::format("{}.{}", path, name));
      if (first.empty()) first = std::move(found);
      OrderedJson key = name;
      make_printable(key, "");
      clean[key.get<std::string>()] = std::move(value);
    }
    json = std::move(clean);
  } else if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); ++i) {
      std::string found = make_printable(json[i], fmt::format("{}.{}", path, i));
      if (first.empty()) first = std::move(found);
    }
  }
  return first;
}

Json::json_pointer pointer_to(const std::string& dotted_key) {
  Json::json_pointer pointer;
  for (std::size_t begin = 0; begin <= dotted_key.size();) {
    std::size_t end = std::min(dotted_key.find('.', begin), dotted_key.size());
    pointer /= dotted_key.substr(begin, end - begin);
    begin = end + 1;
  }
  return pointer;
}

// Puts 0, "" or false where a null stands that the member cannot hold; returns those keys.
std::set<std::string> fill_unknown(Json& body) {
  static const Json kShape = [] {
    Record blank;
    return Json(write(blank));
  }();
  std::set<std::string> unknown;
  for (const std::string& key : unknowable_keys()) {
    Json::json_pointer pointer = pointer_to(key);
    if (!body.contains(pointer) || !body.at(pointer).is_null()) continue;
    unknown.insert(key);
    const Json& shape = kShape.at(pointer);
    body.at(pointer) = shape.is_string() ? Json("") : shape.is_boolean() ? Json(false) : Json(0);
  }
  return unknown;
}

// A schema_version of the future is told apart before anything else is looked at.
void check_version(const base::JsonDocument& document) {
  static const Json::json_pointer kVersion("/schema_version");
  const Json& root = document.root();
  if (!root.is_object() || !root.contains("schema_version")) return;
  const Json& version = root["schema_version"];
  if (version.is_number() && version.get<double>() > kRecordSchemaVersion) {
    throw base::user_error(
        "{}: this record has schema {}, and this version of ljtrain reads up to {}: upgrade it",
        document.where(kVersion), version.dump(), kRecordSchemaVersion);
  }
}

}  // namespace

const std::vector<std::string>& unknowable_keys() {
  static const std::vector<std::string> kKeys = {"model",
                                                 "engine",
                                                 "proxy.is_proxy",
                                                 "proxy.scale",
                                                 "proxy.layers",
                                                 "proxy.of_layers",
                                                 "proxy.hidden_size",
                                                 "device",
                                                 "precision",
                                                 "ranks",
                                                 "threads_per_rank",
                                                 "sequence_length",
                                                 "micro_batch",
                                                 "gradient_accumulation",
                                                 "global_tokens_per_step",
                                                 "stock_compile",
                                                 "flops_convention",
                                                 "components.accl",
                                                 "components.compile",
                                                 "components.recompute",
                                                 "recompute.layers",
                                                 "recompute.of",
                                                 "data.kind",
                                                 "environment.hardware.cpu_model",
                                                 "environment.hardware.cores",
                                                 "environment.hardware.memory_bytes",
                                                 "environment.hardware.numa_nodes",
                                                 "environment.os",
                                                 "environment.kernel"};
  return kKeys;
}

OrderedJson to_json(const Record& record) {
  OrderedJson json = OrderedJson::object();
  json["schema_version"] = kRecordSchemaVersion;
  json.update(write(record));
  for (const std::string& key : record.unknown) {
    json.at(OrderedJson::json_pointer(pointer_to(key).to_string())) = nullptr;
  }
  std::string not_finite = make_printable(json, "");
  if (!not_finite.empty() && record.status == Status::kCompleted && !record.source) {
    json["status"] = write(Status::kFailed);
    json["failure"] =
        write(Failure{.sentence = fmt::format("{} is not a finite number", not_finite),
                      .rank = std::nullopt,
                      .last_lines = {}});
  }
  return json;
}

std::string kind_of(const Json& document) {
  if (!document.is_object()) return "benchmark";
  auto kind = document.find("kind");
  return kind != document.end() && kind->is_string() ? kind->get<std::string>() : "benchmark";
}

void check_record(const base::JsonDocument& document) {
  check_version(document);
  std::string kind = kind_of(document.root());
  if (kind != "benchmark" && kind != "collectives") {
    throw base::user_error(
        "{}: a record of the kind `{}`, which this version of ljtrain does not know: "
        "upgrade it",
        document.where(Json::json_pointer("/kind")), base::printable(kind));
  }
  std::vector<Violation> wrong = kind == "benchmark"
                                     ? validate(document.root())
                                     : violations(document.root(), collectives_schema());
  if (!wrong.empty()) {
    const Violation& first = wrong.front();
    std::string place = first.where.empty() ? document.name() : document.where(first.where);
    throw base::user_error("{}: {}; this is no record of ljperf benchmark", place, first.message);
  }
}

Record from_json(const base::JsonDocument& document) {
  check_record(document);
  if (std::string kind = kind_of(document.root()); kind != "benchmark") {
    throw base::user_error("{}: a record of {}, and here one of a benchmark is needed",
                           document.name(), kind);
  }
  Json body = document.root();
  body.erase("schema_version");
  std::set<std::string> unknown = fill_unknown(body);
  Record record;
  read(body, record);
  record.unknown = std::move(unknown);
  return record;
}

}  // namespace ljtrain::cnp
