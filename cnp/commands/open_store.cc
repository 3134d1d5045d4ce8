#include "open_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record_file.h"
#include "store/resolve.h"

namespace ljtrain::cnp {
namespace {

constexpr std::size_t kProblemsShown = 3;
constexpr std::size_t kLongestProblem = 1000;

void say(const std::string& sentence) { fmt::print(stderr, "cnp: {}\n", sentence); }

void tell(const RecordStore& store) {
  const IndexState& state = store.index_state();
  if (!state.why_rebuilt.empty()) {
    say(fmt::format(
        "the index was damaged ({}) and has been rebuilt from {} files; no record is lost",
        state.why_rebuilt, state.read));
  }
  if (state.in_memory) {
    say(fmt::format(
        "the index in {} cannot be written ({}); working without it, which takes longer",
        base::printable((store.folder() / ".cnp").string(), kLongestProblem), state.why_in_memory));
  }
  std::vector<Problem> problems = store.problems();
  for (std::size_t i = 0; i < std::min(problems.size(), kProblemsShown); ++i) {
    say(fmt::format("passed over {}", base::printable(problems[i].sentence, kLongestProblem)));
  }
  if (problems.size() > kProblemsShown) {
    say(fmt::format("and {} more files that are no records; `cnp list --json` names them",
                    problems.size() - kProblemsShown));
  }
}

}  // namespace

RecordStore open_store() {
  RecordStore store(records_folder());
  tell(store);
  return store;
}

RecordStore rebuild_store() {
  RecordStore store(records_folder(), RecordStore::Index::kRebuild);
  tell(store);
  return store;
}

std::string stored_id(const RecordStore& store, std::string_view selector) {
  std::filesystem::path file = resolve_record(store, selector);
  std::string id = file.stem().string();
  std::error_code code;
  if (!std::filesystem::equivalent(file, store.file_of(id), code) || !store.find(id)) {
    throw base::user_error("{}: is no record of {}; `cnp import` takes it in",
                           base::printable(file.string(), kLongestProblem),
                           base::printable(store.folder().string(), kLongestProblem));
  }
  return id;
}

base::OrderedJson problems_json(const RecordStore& store) {
  base::OrderedJson list = base::OrderedJson::array();
  for (const Problem& problem : store.problems()) {
    list.push_back({{"file", problem.file}, {"problem", problem.sentence}});
  }
  return list;
}

void print_document(const base::OrderedJson& document) {
  print_text(document.dump(2, ' ', false, base::OrderedJson::error_handler_t::replace) + "\n");
}

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw base::run_error("standard output cannot be written: {}", std::strerror(errno));
  }
}

std::string short_id(std::string_view id) {
  constexpr std::size_t kLetters = 8;
  if (id.size() <= kLetters || id[id.size() - kLetters - 1] != '-') return std::string(id);
  std::string_view end = id.substr(id.size() - kLetters);
  bool hex = end.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return std::string(hex ? end : id);
}

}  // namespace ljtrain::cnp
