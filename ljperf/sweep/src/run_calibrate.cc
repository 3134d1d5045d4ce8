#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <functional>
#include <set>

#include "base/errors.h"
#include "base/units.h"
#include "calibration/calibration.h"
#include "sweep/run_sweep.h"

namespace ljtrain::ljperf {
namespace {

using base::OrderedJson;
using recompute::Bound;
using recompute::Calibration;
using recompute::MeasuredPoint;

constexpr int kSchemaVersion = 1;
constexpr std::size_t kFolds = 5;
constexpr const char* kPlatform = "host";

struct Errors {
  std::vector<double> before;    // of the peak above the state between steps, relative
  std::vector<double> after;     // with the fit
  std::vector<double> margin;    // of the upper bound above the measured peak, of the rise
  std::vector<double> resident;  // of the resident peak
  std::size_t above = 0;         // measured peaks above their upper bound
};

double quantile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(share * last))];
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }
double worst(const std::vector<double>& values) { return quantile(values, 1); }

void judge(const Calibration& calibration, const MeasuredPoint& point, Errors& errors) {
  double rise = point.peak_bytes - point.static_bytes;
  double predicted = point.predicted_peak_bytes - point.predicted_static_bytes;
  Bound bound = calibration.peak(
      calibration.rise_term({point.family, point.engine, point.compiled, point.lora}),
      point.predicted_static_bytes, point.predicted_peak_bytes);
  errors.before.push_back(std::abs(predicted / rise - 1));
  errors.after.push_back(std::abs(bound.expected - point.peak_bytes) / rise);
  errors.margin.push_back((bound.upper - point.peak_bytes) / rise);
  errors.above += point.peak_bytes > bound.upper ? 1 : 0;
  if (point.resident_peak_bytes > 0 && calibration.knows_resident()) {
    Bound resident = calibration.resident({.deepspeed = point.engine.starts_with("ZeRO"),
                                           .several_ranks = point.ranks > 1,
                                           .compiled = point.compiled,
                                           .experts = point.experts,
                                           .tensor_bytes = bound.expected});
    errors.resident.push_back(std::abs(resident.expected / point.resident_peak_bytes - 1));
  }
}

// Every point is judged by a fit to the configurations of the other folds; a configuration's points
// stay together.
Errors held_out(const std::vector<MeasuredPoint>& points, const std::string& date) {
  auto fold_of = [](const MeasuredPoint& point) {
    return std::hash<std::string>{}(point.id) % kFolds;
  };
  Errors errors;
  for (std::size_t fold = 0; fold < kFolds; ++fold) {
    std::vector<MeasuredPoint> others;
    std::copy_if(points.begin(), points.end(), std::back_inserter(others),
                 [&](const MeasuredPoint& point) { return fold_of(point) != fold; });
    if (others.size() == points.size()) {
      continue;
    }
    Calibration calibration = Calibration::fit(others, kPlatform, date);
    for (const MeasuredPoint& point : points) {
      if (fold_of(point) == fold) {
        judge(calibration, point, errors);
      }
    }
  }
  return errors;
}

std::string today() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:%Y-%m-%d}", parts);
}

std::vector<MeasuredPoint> read_all(const CalibrateOptions& options, std::int64_t& failed) {
  std::vector<std::filesystem::path> files = options.points;
  if (files.empty()) {
    files.push_back(SweepOptions().output);
  }
  std::vector<MeasuredPoint> points;
  for (const std::filesystem::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      throw base::user_error("cannot read {}; `ljperf sweep` makes such a file", file.string());
    }
    std::string text{std::istreambuf_iterator<char>(stream), {}};
    std::vector<MeasuredPoint> more = recompute::read_points(text, file.string(), &failed);
    points.insert(points.end(), more.begin(), more.end());
  }
  return points;
}

OrderedJson summary_of(const Errors& errors) {
  return {
      {"rise_error_before", {{"median", median(errors.before)}, {"worst", worst(errors.before)}}},
      {"rise_error_after", {{"median", median(errors.after)}, {"worst", worst(errors.after)}}},
      {"above_upper_bound", errors.above},
      {"upper_bound_margin", {{"median", median(errors.margin)}, {"worst", worst(errors.margin)}}},
      {"resident_error", {{"median", median(errors.resident)}, {"worst", worst(errors.resident)}}}};
}

void print_text(const Errors& errors, std::size_t points, std::size_t configurations,
                std::int64_t failed, const CalibrateOptions& options) {
  auto percent = [](double share) { return fmt::format("{:.2f} %", 100 * share); };
  fmt::print("{} points of {} configurations{}\n\n", points, configurations,
             failed > 0 ? fmt::format(" ({} failed ones left out)", failed) : "");
  fmt::print("{:44}{:>10}{:>10}\n", "error on configurations held out of the fit", "median",
             "worst");
  fmt::print("{:44}{:>10}{:>10}\n", "peak above the state, memory model alone",
             percent(median(errors.before)), percent(worst(errors.before)));
  fmt::print("{:44}{:>10}{:>10}\n", "peak above the state, calibrated",
             percent(median(errors.after)), percent(worst(errors.after)));
  if (!errors.resident.empty()) {
    fmt::print("{:44}{:>10}{:>10}\n", "resident size", percent(median(errors.resident)),
               percent(worst(errors.resident)));
  }
  fmt::print(
      "\nmeasured peaks above the upper bound: {} of {}; the bound is {} above the measured "
      "peak in the median\n",
      errors.above, points, percent(median(errors.margin)));
  if (options.output.empty()) {
    fmt::print("nothing was written; --output FILE keeps the fit\n");
  } else {
    fmt::print("written to {}; LJTRAIN_CALIBRATION={} uses it\n", options.output.string(),
               options.output.string());
  }
}

}  // namespace

int run_calibrate(const CalibrateOptions& options) {
  std::int64_t failed = 0;
  std::vector<MeasuredPoint> points = read_all(options, failed);
  std::set<std::string> configurations;
  for (const MeasuredPoint& point : points) {
    configurations.insert(point.id);
  }
  std::string date = today();
  Calibration calibration = Calibration::fit(points, kPlatform, date);
  Errors errors = held_out(points, date);
  OrderedJson fit = calibration.to_json();
  if (!options.output.empty()) {
    base::write_file_atomically(options.output, fit.dump(1) + "\n");
  }
  if (options.json) {
    OrderedJson document = {{"schema_version", kSchemaVersion},
                            {"points", points.size()},
                            {"configurations", configurations.size()},
                            {"failed", failed}};
    document.update(summary_of(errors));
    document["fit"] = fit;
    fmt::print("{}\n", document.dump(2));
  } else {
    print_text(errors, points.size(), configurations.size(), failed, options);
  }
  return base::kDone;
}

}  // namespace ljtrain::ljperf
