#include "base/command_line.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/names.h"
#include "base/text.h"

namespace ljtrain::base {
namespace {

std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

// The subcommand that was being parsed, for "see ... --help".
std::string chosen_command(const CLI::App& app) {
  std::string name = app.get_name();
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
    return fmt::format("a command is missing: one of {}; see `{} --help`", fmt::join(names, ", "),
                       app.get_name());
  }
  std::vector<std::string_view> near = nearest_names(word, names);
  return fmt::format("there is no command `{}`{}; see `{} --help`", printable(word),
                     near.empty() ? fmt::format(" (there are {})", fmt::join(names, ", "))
                                  : fmt::format(" (near: {})", fmt::join(near, ", ")),
                     app.get_name());
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
      return fmt::format("there is no option {}{}", printable(word),
                         near.empty() ? "" : fmt::format(" (near: {})", fmt::join(near, ", ")));
    }
  }
  return "too many arguments";
}

// A message may quote a file: nothing in it is for the terminal to obey. Line ends stay.
std::string safe(std::string_view message) {
  constexpr std::size_t kLongestLine = 4000;
  std::string text;
  for (std::size_t begin = 0; begin <= message.size();) {
    std::size_t end = std::min(message.find('\n', begin), message.size());
    text += (begin == 0 ? "" : "\n") + printable(message.substr(begin, end - begin), kLongestLine);
    begin = end + 1;
  }
  return text;
}

}  // namespace

int run_command_line(CLI::App& app, int argc, char** argv, const int& exit_code) {
  auto bad_input = [&app](const std::string& sentence) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), safe(sentence));
    return kBadInput;
  };
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::RequiredError& error) {
    return bad_input(
        app.get_subcommands().empty()
            ? wrong_command(app, argc > 1 ? argv[1] : "")
            : fmt::format("{}; see `{} --help`", first_line_of(error.what()), chosen_command(app)));
  } catch (const CLI::ExtrasError&) {
    return bad_input(
        fmt::format("{}; see `{} --help`", unknown_option(app, argc, argv), chosen_command(app)));
  } catch (const CLI::ParseError& error) {
    return bad_input(
        fmt::format("{}; see `{} --help`", first_line_of(error.what()), chosen_command(app)));
  } catch (const UserError& error) {
    return bad_input(error.what());
  } catch (const RunError& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), safe(error.what()));
    return kFailed;
  }
}

int run_main(const char* program, const std::function<int()>& body) {
  // Started with a closed standard descriptor, the first file opened would take its place.
  int null = 0;
  do {
    null = ::open("/dev/null", O_RDWR);
  } while (null >= 0 && null <= STDERR_FILENO);
  ::close(null);
  try {
    int code = body();
    if (std::fflush(stdout) != 0) {
      std::fprintf(stderr, "%s: standard output cannot be written: %s\n", program,
                   std::strerror(errno));
      return code == kDone ? kFailed : code;
    }
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: internal error: %s; please report it\n", program, error.what());
    return kFailed;
  }
}

}  // namespace ljtrain::base
