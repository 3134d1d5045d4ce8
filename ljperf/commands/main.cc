// ljperf: measures the training of language models.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "catalogue/lookup.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf benchmark --model deepspeed/llama3-8b
  ljperf benchmark --model fsdp/qwen3-8b --repeat 5 --json > result.json
  ljperf benchmark --config my-model/config.json --data corpus.txt --dry-run
  ljperf train train.py --learning-rate 1e-4
  ljperf comm --peers mpi,gloo --check
  ljperf memory snapshot.pickle --limit 80GiB
  ljperf compile --explain llama3-8b
  ljperf plan --model llama3-8b --devices 8 --device-memory 80GiB
  ljperf doctor
  ljperf models
)";

std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

// The subcommand that was being parsed, for "see ... --help".
std::string chosen_command(const CLI::App& app) {
  std::string name = "ljperf";
  for (const CLI::App* sub : app.get_subcommands()) {
    name += " " + sub->get_name();
  }
  return name;
}

// What to say when no subcommand of ours was named.
std::string wrong_command(const CLI::App& app, std::string_view word) {
  std::vector<std::string_view> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  if (word.empty() || word.front() == '-') {
    return fmt::format("a command is missing: one of {}; see `ljperf --help`",
                       fmt::join(names, ", "));
  }
  std::vector<std::string_view> near = nearest_names(word, names);
  return fmt::format("there is no command `{}`{}; see `ljperf --help`", word,
                     near.empty() ? fmt::format(" (there are {})", fmt::join(names, ", "))
                                  : fmt::format(" (near: {})", fmt::join(near, ", ")));
}

// The first argument that looks like an option and is none of the chosen command's.
std::string unknown_option(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const CLI::Option* option : sub->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
  }
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    word.erase(std::min(word.find('='), word.size()));
    if (word.starts_with('-') && std::find(names.begin(), names.end(), word) == names.end()) {
      std::vector<std::string_view> known(names.begin(), names.end());
      std::vector<std::string_view> near = nearest_names(word, known);
      return fmt::format("there is no option {}{}", word,
                         near.empty() ? "" : fmt::format(" (near: {})", fmt::join(near, ", ")));
    }
  }
  return "too many arguments";
}

int run(int argc, char** argv) {
  CLI::App app("Measures the training of language models with PyTorch, honestly and repeatably.",
               "ljperf");
  app.footer(kExamples);
  app.set_version_flag("--version", fmt::format("ljperf {}", LJTRAIN_VERSION));
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  CommandContext context;
  context.command_line.assign(argv, argv + argc);
  add_benchmark(app, context);
  add_train(app, context);
  add_comm(app, context);
  add_memory(app, context);
  add_compile(app, context);
  add_doctor(app, context);
  add_image(app, context);
  add_models(app, context);
  add_plan(app, context);
  add_trace(app, context);
  add_completion(app, context);
  add_rank(app, context);
  try {
    app.parse(argc, argv);
    return context.exit_code;
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::RequiredError& error) {
    std::string sentence =
        app.get_subcommands().empty()
            ? wrong_command(app, argc > 1 ? argv[1] : "")
            : fmt::format("{}; see `{} --help`", first_line_of(error.what()), chosen_command(app));
    fmt::print(stderr, "ljperf: {}\n", sentence);
    return base::kBadInput;
  } catch (const CLI::ExtrasError&) {
    fmt::print(stderr, "ljperf: {}; see `{} --help`\n", unknown_option(app, argc, argv),
               chosen_command(app));
    return base::kBadInput;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "ljperf: {}; see `{} --help`\n", first_line_of(error.what()),
               chosen_command(app));
    return base::kBadInput;
  } catch (const base::UserError& error) {
    fmt::print(stderr, "ljperf: {}\n", error.what());
    return base::kBadInput;
  } catch (const base::RunError& error) {
    fmt::print(stderr, "ljperf: {}\n", error.what());
    return base::kFailed;
  }
}

}  // namespace
}  // namespace ljtrain::ljperf

int main(int argc, char** argv) {
  // Started with a closed standard descriptor, the first file opened would take its place.
  int null = 0;
  do {
    null = ::open("/dev/null", O_RDWR);
  } while (null >= 0 && null <= STDERR_FILENO);
  ::close(null);
  try {
    return ljtrain::ljperf::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ljperf: internal error: %s; please report it\n", error.what());
    return ljtrain::base::kFailed;
  }
}
