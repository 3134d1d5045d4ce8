// The subcommands of cnp, one file each. Each adds itself to the command line and, when chosen, runs
// and sets the exit code. A new one: its file, its declaration here, and its line in main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ljtrain::cnp {

struct CommandContext {
  std::vector<std::string> command_line;  // as typed
  int exit_code = 0;
};

void add_compare(CLI::App& app, CommandContext& context);
void add_gate(CLI::App& app, CommandContext& context);
void add_ablate(CLI::App& app, CommandContext& context);
void add_export(CLI::App& app, CommandContext& context);
void add_import(CLI::App& app, CommandContext& context);
void add_index(CLI::App& app, CommandContext& context);
void add_list(CLI::App& app, CommandContext& context);
void add_note(CLI::App& app, CommandContext& context);
void add_prune(CLI::App& app, CommandContext& context);
void add_show(CLI::App& app, CommandContext& context);
void add_tag(CLI::App& app, CommandContext& context);

}  // namespace ljtrain::cnp
