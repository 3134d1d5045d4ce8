// The subcommands of ljperf, one file each. Each adds itself to the command line and, when chosen,
// runs and sets the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ljtrain::ljperf {

struct CommandContext {
  std::vector<std::string> command_line;  // as typed
  int exit_code = 0;
};

void add_benchmark(CLI::App& app, CommandContext& context);
void add_comm(CLI::App& app, CommandContext& context);
void add_memory(CLI::App& app, CommandContext& context);
void add_compile(CLI::App& app, CommandContext& context);
void add_trace(CLI::App& app, CommandContext& context);
void add_models(CLI::App& app, CommandContext& context);
void add_plan(CLI::App& app, CommandContext& context);
void add_doctor(CLI::App& app, CommandContext& context);
void add_train(CLI::App& app, CommandContext& context);
void add_rank(CLI::App& app, CommandContext& context);
void add_image(CLI::App& app, CommandContext& context);
void add_sweep(CLI::App& app, CommandContext& context);
void add_calibrate(CLI::App& app, CommandContext& context);
void add_completion(CLI::App& app, CommandContext& context);

}  // namespace ljtrain::ljperf
