// What every program here does with its command line: one clear line on bad input, the exit codes of
// base/errors.h, never a bare stack trace.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace ljtrain::base {

// Parses and runs the chosen subcommand (CLI11 callbacks), which sets `exit_code`. Bad usage and
// UserError give kBadInput, RunError kFailed, each with one line on standard error that starts with
// the app's name and, for a mistyped command or option, names the nearest ones.
int run_command_line(CLI::App& app, int argc, char** argv, const int& exit_code);

// The body of main(): sees to it that descriptors 0 to 2 are open, and turns what nobody caught into
// one line and kFailed.
int run_main(const char* program, const std::function<int()>& body);

}  // namespace ljtrain::base
