// ljperf trace: traces the memory profile of a model family (python/ljtrain/trace.py).
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "benchmark/python_environment.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf trace --family llama                     write llama.json
  ljperf trace --config my-model/config.json --output my-model/profile.json
  ljperf trace --all --output recompute/profiles  every shipped family (half an hour)

Needs PyTorch and transformers, no GPU and no weights: a tiny model of the family is run on fake tensors.
)";

struct TraceOptions {
  std::string family;
  std::string config;
  std::string output;
  std::string python;
  bool all = false;
};

// Becomes the tracer, so that its output and exit code are this program's.
[[noreturn]] void become_tracer(const TraceOptions& options) {
  std::vector<std::string> words = {find_python(options.python).string(), "-m", "ljtrain.trace"};
  auto add = [&words](const char* name, const std::string& value) {
    if (!value.empty()) {
      words.insert(words.end(), {name, value});
    }
  };
  add("--family", options.family);
  add("--config", options.config);
  add("--output", options.output);
  if (options.all) {
    words.emplace_back("--all");
  }
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  ::setenv("PYTHONSAFEPATH", "1", 1);  // not a folder `ljtrain` where the command was typed
  ::execvp(argv[0], argv.data());
  throw base::user_error("cannot start {}: {}; choose a Python with --python, or run `make set-up`",
                         words[0], std::strerror(errno));
}

}  // namespace

void add_trace(CLI::App& app, CommandContext& /*context*/) {
  CLI::App* command =
      app.add_subcommand("trace", "Trace the memory profile of a model family (needs PyTorch)");
  auto options = std::make_shared<TraceOptions>();
  auto* what = command->add_option_group("Subject");
  what->add_option("--family", options->family, "A shipped family: llama, mixtral, bert, ...");
  what->add_option("--config", options->config, "A config.json, of any family transformers has");
  what->add_flag("--all", options->all, "Every shipped family");
  what->require_option(1);
  command->add_option("--output", options->output,
                      "File to write (default: FAMILY.json); with --all a folder");
  command->add_option("--python", options->python, "Python of the environment with PyTorch");
  command->footer(kExamples);
  command->callback([options] { become_tracer(*options); });
}

}  // namespace ljtrain::ljperf
