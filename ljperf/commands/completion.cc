// ljperf completion SHELL: prints a completion script, made from the options that exist.
#include <fmt/format.h>

#include <cstdio>
#include <map>

#include "base/errors.h"
#include "catalogue/lookup.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

struct Words {
  std::vector<std::string> commands;
  std::map<std::string, std::vector<std::string>> options;  // by command
  std::vector<std::string> models;
};

Words collect(const CLI::App& app) {
  Words words;
  for (std::string_view engine : engines()) {
    for (const CatalogueModel& model : catalogue_models()) {
      words.models.push_back(fmt::format("{}/{}", engine, model.id));
    }
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    words.commands.push_back(sub->get_name());
    for (const CLI::Option* option : sub->get_options()) {
      if (option->get_group().empty()) {
        continue;  // not for people
      }
      for (const std::string& name : option->get_lnames()) {
        words.options[sub->get_name()].push_back("--" + name);
      }
    }
  }
  return words;
}

std::string bash_script(const Words& words) {
  std::string cases;
  for (const auto& [command, options] : words.options) {
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command, fmt::join(options, " "));
  }
  return fmt::format(R"(# bash completion of ljperf; load it with: source <(ljperf completion bash)
_ljperf() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  COMPREPLY=()
  case $before in
    --model) COMPREPLY=($(compgen -W "{0}" -- "$word")); return ;;
    --config|--data|--deepspeed-config|--python) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --output|--tokenizer) COMPREPLY=($(compgen -d -- "$word")); return ;;
  esac
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "{1} --help --version" -- "$word")); return
  fi
  case ${{COMP_WORDS[1]}} in
{2}  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -F _ljperf ljperf
)",
                     fmt::join(words.models, " "), fmt::join(words.commands, " "), cases);
}

std::string fish_script(const Words& words) {
  std::string script =
      "# fish completion of ljperf; load it with: ljperf completion fish | source\n";
  for (const std::string& command : words.commands) {
    script += fmt::format("complete -c ljperf -f -n __fish_use_subcommand -a {}\n", command);
  }
  for (const auto& [command, options] : words.options) {
    for (const std::string& option : options) {
      script += fmt::format(
          "complete -c ljperf -n '__fish_seen_subcommand_from {}' -l {}{}\n", command,
          option.substr(2),
          option == "--model" ? fmt::format(" -x -a '{}'", fmt::join(words.models, " ")) : "");
    }
  }
  return script;
}

std::string script_for(const std::string& shell, const Words& words) {
  if (shell == "bash") {
    return bash_script(words);
  }
  if (shell == "zsh") {
    return "# zsh completion of ljperf; load it with: source <(ljperf completion zsh)\n"
           "autoload -U +X bashcompinit && bashcompinit\n" +
           bash_script(words);
  }
  if (shell == "fish") {
    return fish_script(words);
  }
  throw base::user_error("completion {}: the shells known are bash, zsh and fish", shell);
}

}  // namespace

void add_completion(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("completion", "Print a shell completion script");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")->required();
  command->footer("Example:\n  source <(ljperf completion bash)\n");
  command->callback([&app, &context, shell] {
    fmt::print("{}", script_for(*shell, collect(app)));
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::ljperf
