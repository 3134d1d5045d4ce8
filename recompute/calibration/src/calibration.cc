#include "calibration/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
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
constexpr std::array kResidentTerms{"constant", "tensor_bytes", "deepspeed", "several_ranks",
                                    "compiled"};

Eigen::VectorXd resident_features(const ResidentFacts& facts) {
  Eigen::VectorXd row(static_cast<Eigen::Index>(kResidentTerms.size()));
  // Tensors in GiB: near 1, so that the normal equations are well conditioned.
  row << 1, facts.tensor_bytes / (1 << 30), facts.deepspeed, facts.several_ranks, facts.compiled;
  return row;
}

ResidentFacts facts_of(const MeasuredPoint& point) {
  return {.deepspeed = point.engine.starts_with("ZeRO"),
          .several_ranks = point.ranks > 1,
          .compiled = point.compiled,
          .tensor_bytes = point.peak_bytes};
}

double predicted_rise(const MeasuredPoint& point) {
  return point.predicted_peak_bytes - point.predicted_static_bytes;
}

double ratio_of(const MeasuredPoint& point) {
  return (point.peak_bytes - point.static_bytes) / predicted_rise(point);
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
// the number of recomputed layers only and err together, so a configuration counts once: by the
// point of it that is furthest off.
RiseTerm fit_ratio(const std::vector<const MeasuredPoint*>& points) {
  std::map<std::string, double> furthest;
  for (const MeasuredPoint* point : points) {
    double ratio = ratio_of(*point);
    auto [entry, made] = furthest.try_emplace(point->id, ratio);
    if (!made && std::abs(ratio - 1) > std::abs(entry->second - 1)) {
      entry->second = ratio;
    }
  }
  RiseTerm term;
  term.points = static_cast<std::int64_t>(points.size());
  double worst = 0;
  for (const auto& [id, ratio] : furthest) {
    worst = std::max(worst, ratio);
  }
  if (furthest.size() < 4) {  // too few for a scale: what was seen, and as much again
    term.ratio = worst;
    term.above = std::max(kLeastAbove, std::abs(worst - 1));
    return term;
  }
  auto rows = static_cast<Eigen::Index>(furthest.size());
  Eigen::MatrixXd ones = Eigen::MatrixXd::Ones(rows, 1);
  Eigen::VectorXd values(rows);
  Eigen::Index row = 0;
  for (const auto& [id, ratio] : furthest) {
    values[row++] = ratio;
  }
  RobustFit fit = fit_huber(ones, values);
  term.ratio = fit.coefficients[0];
  // Not below what was seen: the noise is no normal one, it is the model's faults.
  double seen = worst - term.ratio;
  term.above = std::max({kLeastAbove, fit.above(Eigen::VectorXd::Ones(1), kShareAbove), seen});
  return term;
}

std::vector<RiseTerm> fit_rise(const std::vector<MeasuredPoint>& points) {
  // (compiled, family, engine), from the closest to the most general; "" for all.
  std::map<std::tuple<bool, std::string, std::string>, std::vector<const MeasuredPoint*>> groups;
  for (const MeasuredPoint& point : points) {
    for (const std::string& family : {point.family, std::string()}) {
      for (const std::string& engine : {point.engine, std::string()}) {
        groups[{point.compiled, family, engine}].push_back(&point);
      }
    }
  }
  std::vector<RiseTerm> terms;
  for (const auto& [key, members] : groups) {
    RiseTerm term = fit_ratio(members);
    std::tie(term.compiled, term.family, term.engine) = key;
    terms.push_back(std::move(term));
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
  Eigen::VectorXd values(static_cast<Eigen::Index>(points.size()));
  for (std::size_t i = 0; i < points.size(); ++i) {
    values[static_cast<Eigen::Index>(i)] =
        points[i].static_bytes - points[i].predicted_static_bytes;
  }
  return fit_huber(Eigen::MatrixXd::Ones(values.size(), 1), values).coefficients[0];
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

const RiseTerm& Calibration::rise_term(std::string_view family, std::string_view engine,
                                       bool compiled) const {
  static const RiseTerm kUnknown{.family = "", .engine = "", .above = 0.05};  // docs/recompute.md: 4.98 % was the worst of 63
  auto find = [&](std::string_view f, std::string_view e, bool c) -> const RiseTerm* {
    for (const RiseTerm& term : rise_) {
      if (term.family == f && term.engine == e && term.compiled == c) {
        return &term;
      }
    }
    return nullptr;
  };
  for (bool as_compiled : {compiled, false}) {
    for (auto [f, e] : {std::pair(family, engine), std::pair(family, std::string_view()),
                        std::pair(std::string_view(), engine),
                        std::pair(std::string_view(), std::string_view())}) {
      if (const RiseTerm* term = find(f, e, as_compiled)) {
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

base::OrderedJson Calibration::to_json() const {
  base::OrderedJson rise = base::OrderedJson::array();
  for (const RiseTerm& term : rise_) {
    rise.push_back({{"family", term.family},
                    {"engine", term.engine},
                    {"compiled", term.compiled},
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
                  .compiled = entry.value("compiled", false)};
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
