// ljperf rank and ljperf host-agent: what launchers start on the hosts of a run. Not for people, and
// so not in the help.
#include <memory>

#include "commands.h"
#include "launcher/host_agent.h"
#include "launcher/rank_entry.h"

namespace ljtrain::ljperf {

void add_rank(CLI::App& app, CommandContext& context) {
  CLI::App* rank = app.add_subcommand("rank", "Become the program of one rank")->group("");
  auto task = std::make_shared<std::string>();
  rank->add_option("TASK", *task, "JSON: argv, log")->required();
  rank->callback([task] { become_rank(*task); });
  CLI::App* agent = app.add_subcommand("host-agent", "Run what standard input says")->group("");
  agent->callback([&context] { context.exit_code = run_host_agent(); });
}

}  // namespace ljtrain::ljperf
