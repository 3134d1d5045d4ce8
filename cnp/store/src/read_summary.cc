#include "read_summary.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record_file.h"

namespace ljtrain::cnp {
namespace {

using base::Json;

// The index is for tables; whoever wants the whole text reads the record.
constexpr std::size_t kLongestText = 200;

// Cut where a UTF-8 character starts.
std::string cut(std::string text) {
  if (text.size() <= kLongestText) return text;
  std::size_t end = kLongestText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;
  text.resize(end);
  return text;
}

// The value at a path, null when any part of it is missing.
const Json& at(const Json& record, std::initializer_list<const char*> path) {
  static const Json kNull;
  const Json* value = &record;
  for (const char* key : path) {
    if (!value->is_object()) return kNull;
    auto found = value->find(key);
    if (found == value->end()) return kNull;
    value = &*found;
  }
  return *value;
}

std::optional<std::string> text(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  return cut(value.get<std::string>());
}

std::optional<std::int64_t> integer(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  return value.get<std::int64_t>();
}

std::optional<double> real(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  return value.get<double>();
}

std::optional<std::string> active_components(const Json& components) {
  std::string names;
  for (const char* name : {"accl", "compile", "recompute"}) {
    if (at(components, {name}) == true)
      names += fmt::format("{}{}", names.empty() ? "" : " ", name);
  }
  return components.is_object() ? std::optional(names) : std::nullopt;
}

}  // namespace

Summary summarize(const Json& record) {
  Summary summary;
  summary.id = record.at("record_id").get<std::string>();
  summary.created = text(at(record, {"created"})).value_or("");
  summary.kind = text(at(record, {"kind"})).value_or("benchmark");
  summary.status = text(at(record, {"status"})).value_or("completed");
  summary.failure = text(at(record, {"failure", "sentence"}));
  summary.source = text(at(record, {"source", "format"}));
  summary.source_digest = text(at(record, {"source", "digest"}));
  summary.model = text(at(record, {"model"}));
  summary.engine = text(at(record, {"engine"}));
  summary.device = text(at(record, {"device"}));
  summary.precision = text(at(record, {"precision"}));
  summary.scale = text(at(record, {"proxy", "scale"}));
  summary.ranks = integer(at(record, {"ranks"}));
  summary.zero_stage = integer(at(record, {"zero_stage"}));
  summary.sequence_length = integer(at(record, {"sequence_length"}));
  summary.micro_batch = integer(at(record, {"micro_batch"}));
  summary.step_median_s = real(at(record, {"step_time_s", "median"}));
  if (const Json& ci = at(record, {"step_time_s", "ci95"}); ci.is_array() && ci.size() == 2) {
    summary.step_ci95_s = Interval{.low = ci[0].get<double>(), .high = ci[1].get<double>()};
  }
  summary.tokens_per_s = real(at(record, {"tokens_per_s"}));
  summary.mfu = real(at(record, {"mfu"}));
  summary.peak_memory_bytes = integer(at(record, {"peak_memory_bytes", "max"}));
  summary.components = active_components(at(record, {"components"}));
  return summary;
}

Summary read_summary(const std::filesystem::path& file) {
  base::JsonDocument document = read_record_document(file);
  Summary summary = summarize(document.root());
  if (summary.id != file.stem().string()) {
    throw base::user_error(
        "{}: names itself `{}`; a record's file is called RECORD_ID.json: rename it",
        base::printable(file.string(), 1000), base::printable(summary.id));
  }
  return summary;
}

base::OrderedJson to_json(const Summary& summary) {
  base::OrderedJson json = base::OrderedJson::object();
  auto put = [&json](const char* name, const auto& value) {
    json[name] = value.has_value() ? base::OrderedJson(*value) : base::OrderedJson(nullptr);
  };
  json["record_id"] = summary.id;
  json["created"] = summary.created;
  json["kind"] = summary.kind;
  json["status"] = summary.status;
  put("failure", summary.failure);
  put("source", summary.source);
  put("model", summary.model);
  put("engine", summary.engine);
  put("device", summary.device);
  put("precision", summary.precision);
  put("scale", summary.scale);
  put("ranks", summary.ranks);
  put("zero_stage", summary.zero_stage);
  put("sequence_length", summary.sequence_length);
  put("micro_batch", summary.micro_batch);
  base::OrderedJson& step = json["step_time_s"] = base::OrderedJson::object();
  step["median"] = summary.step_median_s.has_value() ? base::OrderedJson(*summary.step_median_s)
                                                     : base::OrderedJson(nullptr);
  step["ci95"] = summary.step_ci95_s.has_value()
                     ? base::OrderedJson{summary.step_ci95_s->low, summary.step_ci95_s->high}
                     : base::OrderedJson(nullptr);
  put("tokens_per_s", summary.tokens_per_s);
  put("mfu", summary.mfu);
  put("peak_memory_bytes", summary.peak_memory_bytes);
  put("components", summary.components);
  json["tags"] = summary.tags;
  put("note", summary.note);
  return json;
}

}  // namespace ljtrain::cnp
