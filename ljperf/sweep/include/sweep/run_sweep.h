#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sweep/grid.h"

namespace ljtrain::ljperf {

struct SweepOptions {
  SweepGrid grid;
  std::filesystem::path output = "points.jsonl";  // one configuration a line
  std::filesystem::path python;
  bool gloo = false;  // collectives through Gloo instead of ACCL
  bool dry_run = false;
  bool json = false;
};

// `ljperf sweep`: trains what `output` does not have yet and appends it line by line. Returns the
// exit code: 0; 1 when a configuration failed (its line says why); 130 when interrupted. Throws
// UserError for bad input, RunError when the measuring process ends early.
int run_sweep(const SweepOptions& options);

struct CalibrateOptions {
  std::vector<std::filesystem::path> points;  // empty: the file that `ljperf sweep` writes
  std::filesystem::path output;               // empty: the calibration is only judged
  bool json = false;
};

// `ljperf calibrate`: fits the points and says how far predictions are off without and with the
// fit, on configurations that the fit had not seen. Returns the exit code.
int run_calibrate(const CalibrateOptions& options);

}  // namespace ljtrain::ljperf
