// ljperf comm: measures collective libraries side by side.
#include <memory>

#include "comm/options.h"
#include "comm/run_comm.h"
#include "comm/serve.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf comm                                                 all_reduce, 8 B to 64 MiB, beside memcpy
  ljperf comm --op all --sizes 8:64MiB:x2 --ranks 2,4 --check every operation, every element verified
  ljperf comm --peers mpi,oneccl,deepspeed_shm                against other libraries, C against C
  ljperf comm --peers gloo --dtype bfloat16 --interface c10d  through PyTorch, beside Gloo
  ljperf comm --explain --op all_reduce --sizes 8:64MiB:x8    which algorithm for which size, and why
  ljperf comm --op all_gather --sizes 64MiB --registered --in-place --json

Sizes are nccl-tests': the whole buffer, also where each rank has a share of it. Exit codes: 0 done, 1 a library
failed or computed wrong values, 2 bad input, 130 interrupted (what was measured is kept).
)";

void add_subject_options(CLI::App& command, CommOptions& options) {
  command
      .add_option("--op", options.ops,
                  "all, or all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,...")
      ->group("Subject")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--sizes", options.sizes, "Bytes: FROM:TO:xFACTOR, FROM:TO:STEP, or a list")
      ->group("Subject")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--dtype", options.dtypes, "float32,bfloat16,float16,float64,int32,...")
      ->group("Subject")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--ranks", options.ranks, "Processes, one or more numbers (default: one a core)")
      ->group("Subject")
      ->delimiter(',');
  command.add_flag("--in-place", options.in_place, "Rows for ACCL in place, too")->group("Subject");
  command.add_flag("--registered", options.registered, "Rows for ACCL on registered memory, too")
      ->group("Subject");
}

void add_peer_options(CLI::App& command, CommOptions& options) {
  command
      .add_option("--peers", options.peers,
                  "Libraries beside ACCL: gloo,oneccl,mpi,deepspeed_shm,nccl")
      ->group("Peers")
      ->delimiter(',');
  command
      .add_option("--interface", options.interfaces,
                  "c, c10d or both (default: c, and c10d for gloo and nccl)")
      ->group("Peers")
      ->delimiter(',');
  command
      .add_option("--python", options.python,
                  "Python of the environment with PyTorch and DeepSpeed")
      ->group("Peers");
  command
      .add_option("--oneccl-root", options.oneccl_root, "Folder with oneCCL's include/ and lib/")
      ->group("Peers");
}

void add_measuring_options(CLI::App& command, CommOptions& options) {
  command.add_flag("--check", options.check, "Verify every element against a reference")
      ->group("Measurement");
  command
      .add_option("--blocks", options.blocks, "Blocks of each library and size; 20 give a verdict")
      ->group("Measurement")
      ->capture_default_str();
  command.add_option("--min-time", options.min_time, "Milliseconds a block takes at least")
      ->group("Measurement")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of the order of the blocks")
      ->group("Measurement")
      ->capture_default_str();
  command
      .add_option("--timeout", options.timeout,
                  "Seconds without an answer until a library counts as hung")
      ->group("Measurement")
      ->capture_default_str();
}

}  // namespace

void add_comm(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("comm", "Measure collectives: ACCL beside other libraries and memcpy");
  auto options = std::make_shared<CommOptions>();
  auto serve = std::make_shared<std::string>();
  add_subject_options(*command, *options);
  add_peer_options(*command, *options);
  add_measuring_options(*command, *options);
  command
      ->add_flag("--explain", options->explain,
                 "Print the topology and the algorithm ACCL chooses a size, measure nothing")
      ->group("Output");
  command->add_flag("--json", options->json, "One JSON document on standard output")
      ->group("Output");
  command->add_option("--output", options->output, "File for the JSON document, beside the table")
      ->group("Output");
  command->add_option("--serve", *serve, "A rank of a library in ljperf itself")->group("");
  command->footer(kExamples);
  command->callback([&context, options, serve] {
    if (!serve->empty()) {
      context.exit_code = serve_rank(*serve);
      return;
    }
    options->command_line = context.command_line;
    context.exit_code = run_comm(*options);
  });
}

}  // namespace ljtrain::ljperf
