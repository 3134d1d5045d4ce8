#include "calibration/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "embedded_fit.h"

namespace ljtrain::recompute {
namespace {

using base::Json;

constexpr int kSchemaVersion = 1;
constexpr std::size_t kFewestPoints = 8;
// Of measurements that are above the upper bound: one in forty.
constexpr double kShareAbove = 0.025;
// A scale of nothing is rather too few points than certainty: a step never was closer than this.
constexpr double kLeastAbove = 0.002;
// Configurations that make a scale.
constexpr std::int64_t kFewestConfigurations = 4;
constexpr std::array kResidentTerms{"constant",      "tensor_bytes", "deepspeed",
                                    "several_ranks", "compiled",     "experts"};

Eigen::VectorXd resident_features(const ResidentFacts& facts) {
  Eigen::VectorXd row(static_cast<Eigen::Index>(kResidentTerms.size()));
  // Tensors in GiB: near 1, so that the normal equations are well conditioned.
  row << 1, facts.tensor_bytes / (1 << 30), facts.deepspeed, facts.several_ranks, facts.compiled,
      facts.experts;
  return row;
}

ResidentFacts facts_of(const MeasuredPoint& point) {
  return {.deepspeed = point.engine.starts_with("ZeRO"),
          .several_ranks = point.ranks > 1,
          .compiled = point.compiled,
          .experts = point.experts,
          .tensor_bytes = point.peak_bytes};
}

double predicted_rise(const MeasuredPoint& point) {
  return point.predicted_peak_bytes - point.predicted_static_bytes;
}

double ratio_of(const MeasuredPoint& point) {
  return (point.peak_bytes - point.static_bytes) / predicted_rise(point);
}

RobustFit fit_constant(const std::vector<double>& values) {
  auto rows = static_cast<Eigen::Index>(values.size());
  return fit_huber(Eigen::MatrixXd::Ones(rows, 1),
                   Eigen::Map<const Eigen::VectorXd>(values.data(), rows));
}

void check(const MeasuredPoint& point) {
  for (double value : {point.predicted_peak_bytes, point.predicted_static_bytes, point.peak_bytes,
                       point.static_bytes}) {
    if (!std::isfinite(value) || value <= 0) {
      throw base::user_error("{}: {} is no number of bytes", point.id, value);
    }
  }
  if (predicted_rise(point) <= 0 || point.peak_bytes <= point.static_bytes) {
    throw base::user_error("{}: the peak is not above the state between steps", point.id);
  }
}

// One ratio of many, with the bound for a new configuration. Points of one configuration differ in
// the number of recomputed layers only and err together, so for the bound a configuration counts
// once: by its point that is furthest above the prediction.
RiseTerm fit_ratio(const std::vector<const MeasuredPoint*>& points) {
  std::map<std::string, double> highest;
  std::vector<double> ratios;
  for (const MeasuredPoint* point : points) {
    ratios.push_back(ratio_of(*point));
    auto [entry, made] = highest.try_emplace(point->id, ratios.back());
    entry->second = std::max(entry->second, ratios.back());
  }
  RiseTerm term;
  term.points = static_cast<std::int64_t>(points.size());
  term.configurations = static_cast<std::int64_t>(highest.size());
  double worst = 0;
  std::vector<double> tops;
  for (const auto& [id, ratio] : highest) {
    worst = std::max(worst, ratio);
    tops.push_back(ratio);
  }
  if (term.configurations < kFewestConfigurations) {
    // Too few for a scale: what was seen, and as far again.
    term.ratio = worst;
    term.above = std::max(kLeastAbove, std::abs(worst - 1));
    return term;
  }
  term.ratio = fit_constant(ratios).coefficients[0];
  RobustFit top = fit_constant(tops);
  double upper = top.coefficients[0] + top.above(Eigen::VectorXd::Ones(1), kShareAbove);
  // Not below what was seen: what is left is no normal noise, it is the model's faults.
  term.above = std::max({kLeastAbove, upper - term.ratio, worst - term.ratio});
  return term;
}

std::vector<RiseTerm> fit_rise(const std::vector<MeasuredPoint>& points) {
  // (compiled, LoRA, family, engine); "" for all.
  std::map<std::tuple<bool, bool, std::string, std::string>, std::vector<const MeasuredPoint*>>
      groups;
  for (const MeasuredPoint& point : points) {
    for (const std::string& family : {point.family, std::string()}) {
      for (const std::string& engine : {point.engine, std::string()}) {
        groups[{point.compiled, point.lora, family, engine}].push_back(&point);
      }
    }
  }
  std::vector<RiseTerm> terms;
  for (const auto& [key, members] : groups) {
    RiseTerm term = fit_ratio(members);
    std::tie(term.compiled, term.lora, term.family, term.engine) = key;
    // A handful says less of a family under an engine than all that is known of either.
    bool general = term.family.empty() && term.engine.empty();
    if (general || term.configurations >= kFewestConfigurations) {
      terms.push_back(std::move(term));
    }
  }
  return terms;
}

RobustFit fit_resident(const std::vector<MeasuredPoint>& points) {
  std::vector<const MeasuredPoint*> known;
  for (const MeasuredPoint& point : points) {
    if (point.resident_peak_bytes > 0) {
      known.push_back(&point);
    }
  }
  if (known.size() < kFewestPoints) {
    return {};
  }
  auto rows = static_cast<Eigen::Index>(known.size());
  auto columns = static_cast<Eigen::Index>(kResidentTerms.size());
  Eigen::MatrixXd all(rows, columns);
  Eigen::VectorXd values(rows);
  for (Eigen::Index row = 0; row < rows; ++row) {
    const MeasuredPoint& point = *known[static_cast<std::size_t>(row)];
    all.row(row) = resident_features(facts_of(point)).transpose();
    values[row] = point.resident_peak_bytes;
  }
  // A term that never varies cannot be told from the constant: it stays 0.
  std::vector<Eigen::Index> varying{0};
  for (Eigen::Index column = 1; column < columns; ++column) {
    if (all.col(column).maxCoeff() > all.col(column).minCoeff()) {
      varying.push_back(column);
    }
  }
  RobustFit part = fit_huber(all(Eigen::all, varying), values);
  RobustFit fit = part;
  fit.coefficients = Eigen::VectorXd::Zero(columns);
  fit.information = Eigen::MatrixXd::Identity(columns, columns) * static_cast<double>(rows);
  for (std::size_t i = 0; i < varying.size(); ++i) {
    fit.coefficients[varying[i]] = part.coefficients[static_cast<Eigen::Index>(i)];
    for (std::size_t j = 0; j < varying.size(); ++j) {
      fit.information(varying[i], varying[j]) =
          part.information(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j));
    }
  }
  return fit;
}

double fit_offset(const std::vector<MeasuredPoint>& points) {
  std::vector<double> offsets;
  for (const MeasuredPoint& point : points) {
    offsets.push_back(point.static_bytes - point.predicted_static_bytes);
  }
  return fit_constant(offsets).coefficients[0];
}

double number_at(const base::JsonDocument& document, const Json& object, const std::string& pointer,
                 const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number()) {
    throw base::user_error("{}: a number is missing",
                           document.where(Json::json_pointer(pointer + "/" + key)));
  }
  return object[key].get<double>();
}

}  // namespace

Calibration Calibration::fit(const std::vector<MeasuredPoint>& points, std::string platform,
                             std::string date) {
  if (points.size() < kFewestPoints) {
    throw base::user_error("{} measured points are too few for a fit; at least {} are needed",
                           points.size(), kFewestPoints);
  }
  for (const MeasuredPoint& point : points) {
    check(point);
  }
  Calibration made;
  made.platform_ = std::move(platform);
  made.date_ = std::move(date);
  made.points_ = static_cast<std::int64_t>(points.size());
  made.static_offset_ = fit_offset(points);
  made.rise_ = fit_rise(points);
  made.resident_ = fit_resident(points);
  return made;
}

const RiseTerm& Calibration::rise_term(const RiseQuestion& question) const {
  // docs/recompute.md: 4.98 % was the worst of 63.
  static const RiseTerm kUnknown{.family = "", .engine = "", .above = 0.05};
  auto find = [&](std::string_view family, std::string_view engine, bool compiled,
                  bool lora) -> const RiseTerm* {
    for (const RiseTerm& term : rise_) {
      if (term.family == family && term.engine == engine && term.compiled == compiled &&
          term.lora == lora) {
        return &term;
      }
    }
    return nullptr;
  };
  for (auto [compiled, lora] : {std::pair(question.compiled, question.lora),
                                std::pair(false, question.lora), std::pair(false, false)}) {
    for (auto [family, engine] : {std::pair(question.family, question.engine),
                                  std::pair(question.family, std::string_view()),
                                  std::pair(std::string_view(), question.engine),
                                  std::pair(std::string_view(), std::string_view())}) {
      if (const RiseTerm* term = find(family, engine, compiled, lora)) {
        return *term;
      }
    }
  }
  return kUnknown;
}

Bound Calibration::peak(const RiseTerm& term, double predicted_static,
                        double predicted_peak) const {
  double rise = std::max(0.0, predicted_peak - predicted_static);
  double state = predicted_static + static_offset_;
  return {.expected = state + rise * term.ratio, .upper = state + rise * (term.ratio + term.above)};
}

double Calibration::planning_limit(const RiseTerm& term, double predicted_static,
                                   double limit) const {
  return predicted_static + (limit - predicted_static - static_offset_) / (term.ratio + term.above);
}

Bound Calibration::resident(const ResidentFacts& facts) const {
  if (!knows_resident()) {
    return {};
  }
  Eigen::VectorXd features = resident_features(facts);
  double expected = resident_.value(features);
  return {.expected = expected, .upper = expected + resident_.above(features, kShareAbove)};
}

const Calibration& Calibration::in_force() {
  static const Calibration kInForce = [] {
    const char* file = std::getenv("LJTRAIN_CALIBRATION");
    return file != nullptr && *file != '\0' ? read(base::JsonDocument::read(file)) : shipped();
  }();
  return kInForce;
}

base::OrderedJson Calibration::to_json() const {
  base::OrderedJson rise = base::OrderedJson::array();
  for (const RiseTerm& term : rise_) {
    rise.push_back({{"family", term.family},
                    {"engine", term.engine},
                    {"compiled", term.compiled},
                    {"lora", term.lora},
                    {"configurations", term.configurations},
                    {"points", term.points},
                    {"ratio", term.ratio},
                    {"above", term.above}});
  }
  base::OrderedJson resident = nullptr;
  if (knows_resident()) {
    base::OrderedJson coefficients = base::OrderedJson::object();
    base::OrderedJson information = base::OrderedJson::array();
    for (std::size_t i = 0; i < kResidentTerms.size(); ++i) {
      auto row = static_cast<Eigen::Index>(i);
      coefficients[kResidentTerms[i]] = resident_.coefficients[row];
      std::vector<double> values;
      for (Eigen::Index column = 0; column < resident_.information.cols(); ++column) {
        values.push_back(resident_.information(row, column));
      }
      information.push_back(values);
    }
    resident = {{"coefficients", coefficients},
                {"scale", resident_.scale},
                {"degrees_of_freedom", resident_.degrees_of_freedom},
                {"information", information}};
  }
  return {{"schema_version", kSchemaVersion},
          {"platform", platform_},
          {"date", date_},
          {"points", points_},
          {"static_offset_bytes", static_offset_},
          {"rise", rise},
          {"resident", resident}};
}

Calibration Calibration::read(const base::JsonDocument& document) {
  const Json& root = document.root();
  if (number_at(document, root, "", "schema_version") != kSchemaVersion) {
    throw base::user_error("{}: this version reads {}; refit with `ljperf calibrate`",
                           document.where(Json::json_pointer("/schema_version")), kSchemaVersion);
  }
  Calibration made;
  made.platform_ = root.value("platform", "host");
  made.date_ = root.value("date", "");
  made.points_ = static_cast<std::int64_t>(number_at(document, root, "", "points"));
  made.static_offset_ = number_at(document, root, "", "static_offset_bytes");
  if (!root.contains("rise") || !root["rise"].is_array()) {
    throw base::user_error("{}: a list is missing", document.where(Json::json_pointer("/rise")));
  }
  for (std::size_t i = 0; i < root["rise"].size(); ++i) {
    const Json& entry = root["rise"][i];
    std::string pointer = fmt::format("/rise/{}", i);
    RiseTerm term{.family = entry.value("family", ""),
                  .engine = entry.value("engine", ""),
                  .compiled = entry.value("compiled", false),
                  .lora = entry.value("lora", false),
                  .configurations = entry.value("configurations", std::int64_t{0})};
    term.points = static_cast<std::int64_t>(number_at(document, entry, pointer, "points"));
    term.ratio = number_at(document, entry, pointer, "ratio");
    term.above = number_at(document, entry, pointer, "above");
    if (term.ratio <= 0 || term.above < 0) {
      throw base::user_error("{}: ratio must be above 0 and above at least 0",
                             document.where(Json::json_pointer(pointer)));
    }
    made.rise_.push_back(std::move(term));
  }
  if (!root.contains("resident") || root["resident"].is_null()) {
    return made;
  }
  const Json& resident = root["resident"];
  auto size = static_cast<Eigen::Index>(kResidentTerms.size());
  made.resident_.coefficients.resize(size);
  made.resident_.information.resize(size, size);
  made.resident_.scale = number_at(document, resident, "/resident", "scale");
  made.resident_.degrees_of_freedom =
      number_at(document, resident, "/resident", "degrees_of_freedom");
  const Json empty = Json::object();
  const Json& coefficients = resident.contains("coefficients") ? resident["coefficients"] : empty;
  auto information = resident.value("information", std::vector<std::vector<double>>());
  if (information.size() != kResidentTerms.size()) {
    throw base::user_error("{}: {} rows are needed",
                           document.where(Json::json_pointer("/resident/information")), size);
  }
  for (Eigen::Index i = 0; i < size; ++i) {
    made.resident_.coefficients[i] = number_at(document, coefficients, "/resident/coefficients",
                                               kResidentTerms[static_cast<std::size_t>(i)]);
    const std::vector<double>& row = information[static_cast<std::size_t>(i)];
    for (Eigen::Index j = 0; j < size && j < static_cast<Eigen::Index>(row.size()); ++j) {
      made.resident_.information(i, j) = row[static_cast<std::size_t>(j)];
    }
  }
  return made;
}

const Calibration& Calibration::shipped() {
  static const Calibration kShipped =
      read(base::JsonDocument::parse(std::string(embedded_fit()), "the shipped calibration"));
  return kShipped;
}

}  // namespace ljtrain::recompute
