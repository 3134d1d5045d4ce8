// The options that say where and how ranks are started, shared by benchmark and train.
#pragma once

#include <CLI/CLI.hpp>

#include "launcher/launch_options.h"

namespace ljtrain::ljperf {

void add_launch_options(CLI::App& command, LaunchOptions& options);

}  // namespace ljtrain::ljperf
