// cnp note: what people want to remember about a record.
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "commands.h"
#include "open_store.h"
#include "store/annotations.h"
#include "store/resolve.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp note latest "after the move to the new switch"
  cnp note latest
  git log -1 | cnp note latest -
  cnp note latest --remove
)";

struct NoteOptions {
  std::string record;
  std::string text;
  bool remove = false;
  bool json = false;
};

// Line by line, so that the line ends stay and nothing else is obeyed.
std::string shown(const std::string& note) {
  std::string text;
  for (std::size_t begin = 0; begin < note.size();) {
    std::size_t end = std::min(note.find('\n', begin), note.size());
    text += base::printable(note.substr(begin, end - begin), kLongestNote) + "\n";
    begin = end + 1;
  }
  return text;
}

void note(const NoteOptions& options) {
  std::string text = options.text;
  if (options.remove && !text.empty()) {
    throw base::UserError("--remove and a text exclude each other");
  }
  if (text == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  require_note(text);
  RecordStore store = open_store();
  std::string id = stored_id(store, options.record);
  Annotation now;
  if (options.remove || !text.empty()) {
    now = change_annotation(store.folder(), id,
                            [&text](Annotation& annotation) { annotation.note = text; });
  } else {
    now.note = store.find(id)->note.value_or("");
  }
  if (options.json) {
    print_document(
        {{"schema_version", 1},
         {"record_id", id},
         {"note", now.note.empty() ? base::OrderedJson(nullptr) : base::OrderedJson(now.note)}});
  } else {
    fmt::print("{}:{}{}", id, now.note.empty() ? " no note\n" : "\n", shown(now.note));
  }
}

}  // namespace

void add_note(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("note", "Write a note on a record, or read it");
  auto options = std::make_shared<NoteOptions>();
  command->add_option("record", options->record, kSelectorHelp)->required();
  command->add_option("text", options->text, "The note; -: from standard input; none: show it");
  command->add_flag("--remove", options->remove, "Remove the note");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] {
    note(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
