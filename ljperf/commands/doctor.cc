// ljperf doctor: examines the machine, the environment and the configuration of a training.
#include <memory>

#include "commands.h"
#include "doctor/run_doctor.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf doctor                                           everything, in less than two seconds
  ljperf doctor --quick --json                            what takes milliseconds, for a probe
  ljperf doctor --release 25.07                           against what a release brought and asks for
  ljperf doctor --deepspeed ds.json --training-arguments args.json
  ljperf doctor --hosts node1,node2                       are the others reached?
  ljperf doctor --watch 30                                a line for each change, until a check fails

Exit codes: 0 no failure (warnings are none), 1 a check failed, 2 bad input, 130 interrupted.
)";

}  // namespace

void add_doctor(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Find what is wrong here: GPUs, driver, network, limits, packages, configuration");
  auto options = std::make_shared<DoctorOptions>();
  command->add_option("--release", options->release, "Judge by this release (ljperf image list)");
  command->add_option("--task", options->task, "training or inference")
      ->capture_default_str()
      ->check(CLI::IsMember({"training", "inference"}));
  command->add_option("--hosts", options->hosts, "Hosts of the job, to be reached from here")
      ->delimiter(',');
  command->add_option("--deepspeed", options->deepspeed, "DeepSpeed JSON file to check");
  command->add_option("--training-arguments", options->training_arguments,
                      "TrainingArguments as a JSON file, to check alone and against DeepSpeed's");
  command->add_option("--python", options->python, "Python of the environment that trains");
  command->add_option("--pid", options->process, "Process whose libnccl to look at");
  command->add_option("--only", options->only, "Checks or groups of them: gpu,network.interface")
      ->delimiter(',');
  command->add_flag("--brief", options->brief, "Only what is wrong, and the counts");
  command->add_flag("--quick", options->quick, "Only what takes milliseconds");
  command->add_option("--watch", options->watch,
                      "Look again every so many seconds; ends when a check fails");
  command->add_flag("--json", options->json,
                    "One JSON document on standard output (with --watch one a line)");
  command->add_option("--root", options->root, "Examine the files below this folder")->group("");
  command->footer(kExamples);
  command->callback([&context, options] { context.exit_code = run_doctor(*options); });
}

}  // namespace ljtrain::ljperf
