// cnp: keeps, compares and judges the records of benchmarks.
#include <fmt/format.h>

#include "base/command_line.h"
#include "commands.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp list
  cnp list --model llama3-8b --since 7d
  cnp show latest
  cnp tag latest release-1.2
  cnp import torchtitan.log --model llama3-8b
  cnp compare latest~1 latest
  cnp gate --baseline release --max-slowdown 3%
)";

int run(int argc, char** argv) {
  CLI::App app("Keeps the records of benchmarks: finds, compares and judges them.", "cnp");
  app.footer(kExamples);
  app.set_version_flag("--version", fmt::format("cnp {}", LJTRAIN_VERSION));
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  CommandContext context;
  context.command_line.assign(argv, argv + argc);
  add_list(app, context);
  add_show(app, context);
  add_tag(app, context);
  add_note(app, context);
  add_import(app, context);
  add_export(app, context);
  add_prune(app, context);
  add_index(app, context);
  add_compare(app, context);
  add_gate(app, context);
  add_ablate(app, context);
  return base::run_command_line(app, argc, argv, context.exit_code);
}

}  // namespace
}  // namespace ljtrain::cnp

int main(int argc, char** argv) {
  return ljtrain::base::run_main("cnp", [=] { return ljtrain::cnp::run(argc, argv); });
}
