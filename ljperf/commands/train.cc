// ljperf train: launches a user's own training script, on this host or many.
#include <memory>

#include "base/errors.h"
#include "base/names.h"
#include "commands.h"
#include "launch_options.h"
#include "train/run_train.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Usage: ljperf train [OPTIONS] SCRIPT [ARGUMENTS...]
       ljperf train [OPTIONS] -m MODULE [ARGUMENTS...]

Examples:
  ljperf train train.py --learning-rate 1e-4                     one rank a GPU, on hosts one a core
  ljperf train --ranks 2 --output logs -m my_package.train       a module; the ranks' logs are kept
  ljperf train --launcher torchrun --hosts a,b --max-restarts 3 train.py
  ljperf train --launcher slurm --nodes 4 --time-limit 8:00:00 train.py
  ljperf train --launcher kubernetes --nodes 2 --gpus-per-node 8 --image IMAGE --dry-run train.py

What stands after SCRIPT is the script's own. Exit codes: 0 done, 1 the training failed, 2 bad input, 130
interrupted.
)";

// The script and its arguments. An option that stands before the script and is none of ours is a
// mistake, not a script.
std::vector<std::string> script_of(const CLI::App& command) {
  std::vector<std::string> rest = command.remaining();
  if (rest.empty()) {
    throw base::user_error("SCRIPT is missing; see `ljperf train --help`");
  }
  const std::string& first = rest.front();
  if (first.starts_with('-') && first != "-m") {
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
    std::vector<std::string_view> known(names.begin(), names.end());
    std::vector<std::string_view> near = base::nearest_names(first, known);
    throw base::user_error("there is no option {}{}; see `ljperf train --help`", first,
                           near.empty() ? "" : fmt::format(" (near: {})", fmt::join(near, ", ")));
  }
  if (first == "-m" && rest.size() < 2) {
    throw base::user_error("SCRIPT is missing; see `ljperf train --help`");
  }
  return rest;
}

}  // namespace

void add_train(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("train", "Launch your own training script: here, or on a cluster");
  auto options = std::make_shared<TrainOptions>();
  command->add_option("--ranks", options->ranks,
                      "Processes a host (default: one a GPU, on hosts one a core)");
  command->add_flag("--oversubscribe", options->oversubscribe, "Allow more ranks than cores");
  command->add_option("--python", options->python, "Python of the environment that trains");
  command->add_option("--output", options->output, "Folder for the ranks' logs");
  command->add_flag("--dry-run", options->dry_run,
                    "Print the command, script or manifest, start nothing");
  command->add_flag("--json", options->json, "With --dry-run: as one JSON document");
  add_launch_options(*command, options->launch);
  command->prefix_command();
  command->footer(kExamples);
  command->callback([&context, command, options] {
    options->script = script_of(*command);
    options->command_line = context.command_line;
    context.exit_code = run_train(*options);
  });
}

}  // namespace ljtrain::ljperf
