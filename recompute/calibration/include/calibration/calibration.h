// What no trace can know of a platform's memory, fitted from measured steps with an error bar: how
// far the memory model is off for a family under an engine, and how much more than its tensors a
// process keeps resident.
//
// Stored as JSON (docs/recompute.md, "Calibration"); fits/cpu.json ships inside the programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "calibration/regression.h"

namespace ljtrain::recompute {

// One measured step and its prediction. Bytes of the rank that needs most.
struct MeasuredPoint {
  std::string id;      // of the configuration: its points are not independent of each other
  std::string family;  // model_type
  std::string engine;  // engine_name(): "ZeRO-3"
  std::int64_t ranks = 1;
  std::int64_t layers = 0;
  std::int64_t recomputed = 0;
  bool compiled = false;
  bool lora = false;
  bool experts = false;
  double predicted_static_bytes = 0;
  double predicted_peak_bytes = 0;
  double static_bytes = 0;
  double peak_bytes = 0;
  double resident_peak_bytes = 0;  // 0: unknown
};

// How far the model is off: measured = static + offset + rise x ratio, where rise is the predicted
// peak above the state between steps.
struct RiseTerm {
  std::string family;  // "": every family
  std::string engine;  // "": every engine
  bool compiled = false;
  bool lora = false;
  std::int64_t configurations = 0;
  std::int64_t points = 0;
  double ratio = 1;  // measured over predicted
  double above = 0;  // to be added for the upper bound
};

struct RiseQuestion {
  std::string_view family;
  std::string_view engine;
  bool compiled = false;
  bool lora = false;
};

// Expected and highest, bytes.
struct Bound {
  double expected = 0;
  double upper = 0;
};

// What a process's pages come to, beside its tensors.
struct ResidentFacts {
  bool deepspeed = false;
  bool several_ranks = false;
  bool compiled = false;
  bool experts = false;
  double tensor_bytes = 0;  // at their peak
};

class Calibration {
 public:
  // Throws UserError for fewer than 8 points, or values that are not finite or not positive.
  static Calibration fit(const std::vector<MeasuredPoint>& points, std::string platform,
                         std::string date);
  // Throws UserError naming file, line and key.
  static Calibration read(const base::JsonDocument& document);
  // The one made of this project's own points; docs/recompute.md says which.
  static const Calibration& shipped();
  // That of the file LJTRAIN_CALIBRATION names (as `ljperf calibrate --output` writes it), else the
  // shipped one. Read once. Throws what read() throws.
  static const Calibration& in_force();

  base::OrderedJson to_json() const;

  // The term that speaks of it most closely: of the family under the engine, of the family, of the
  // engine, of all; 5 % where nothing like it was measured.
  const RiseTerm& rise_term(const RiseQuestion& question) const;
  // What a peak that the memory model predicts comes to.
  Bound peak(const RiseTerm& term, double predicted_static, double predicted_peak) const;
  // The predicted peak whose upper bound is `limit`: what to plan with.
  double planning_limit(const RiseTerm& term, double predicted_static, double limit) const;
  bool knows_resident() const { return resident_.coefficients.size() > 0; }
  Bound resident(const ResidentFacts& facts) const;

  const std::vector<RiseTerm>& rise_terms() const { return rise_; }
  double static_offset() const { return static_offset_; }
  std::int64_t points() const { return points_; }
  const std::string& date() const { return date_; }

 private:
  std::string platform_;
  std::string date_;
  std::int64_t points_ = 0;
  double static_offset_ = 0;  // measured state between steps less predicted: bytes
  std::vector<RiseTerm> rise_;
  RobustFit resident_;  // of resident_features()
};

// Points of answers as `ljperf sweep` writes them, one JSON object a line. Lines of failed
// configurations give none; `failed` counts them. Throws UserError naming the line.
std::vector<MeasuredPoint> read_points(std::string_view lines, const std::string& name,
                                       std::int64_t* failed = nullptr);

}  // namespace ljtrain::recompute
