#include <sstream>

#include "base/errors.h"
#include "base/json.h"
#include "calibration/calibration.h"

namespace ljtrain::recompute {
namespace {

using base::Json;

void add_points(const Json& answer, std::vector<MeasuredPoint>& points) {
  const Json& description = answer.at("prediction").at("description");
  const Json& shape = description.at("shape");
  const Json& setup = description.at("setup");
  auto peaks = answer.at("prediction").at("peaks").get<std::vector<double>>();
  for (const Json& measured : answer.at("points")) {
    auto recomputed = measured.at("k").get<std::size_t>();
    points.push_back({.id = answer.at("id"),
                      .family = shape.at("family"),
                      .engine = setup.at("engine"),
                      .ranks = setup.at("ranks"),
                      .layers = static_cast<std::int64_t>(shape.at("layers").size()),
                      .recomputed = static_cast<std::int64_t>(recomputed),
                      .compiled = setup.value("compiled", false),
                      .lora = shape.value("lora", false),
                      .experts = shape.at("layers").dump().find("moe") != std::string::npos,
                      .predicted_static_bytes = answer.at("prediction").at("static_bytes"),
                      .predicted_peak_bytes = peaks.at(recomputed),
                      .static_bytes = measured.at("static_bytes"),
                      .peak_bytes = measured.at("peak_bytes"),
                      .resident_peak_bytes = measured.value("resident_peak_bytes", 0.0)});
  }
}

}  // namespace

std::vector<MeasuredPoint> read_points(std::string_view lines, const std::string& name,
                                       std::int64_t* failed) {
  std::vector<MeasuredPoint> points;
  std::istringstream stream{std::string(lines)};
  std::int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.empty()) {
      continue;
    }
    try {
      Json answer = Json::parse(line);
      if (answer.contains("error") || answer.at("prediction").contains("error")) {
        if (failed != nullptr) {
          ++*failed;
        }
        continue;
      }
      add_points(answer, points);
    } catch (const std::exception& error) {
      throw base::user_error("{}:{}: this is no answer of `ljperf sweep`: {}", name, number,
                             error.what());
    }
  }
  return points;
}

}  // namespace ljtrain::recompute
