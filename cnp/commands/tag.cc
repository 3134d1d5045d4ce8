// cnp tag: names for records, such as the one that others are held against.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/errors.h"
#include "commands.h"
#include "open_store.h"
#include "store/annotations.h"
#include "store/resolve.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp tag latest baseline --move
  cnp tag 5f0c2a91 release-1.2 h100
  cnp tag baseline baseline --remove
)";

struct TagOptions {
  std::string record;
  std::vector<std::string> tags;
  bool remove = false;
  bool move = false;
  bool json = false;
};

// Takes the tags from every record but `id`; returns from which.
std::vector<std::string> take_from_others(const RecordStore& store, const std::string& id,
                                          const std::vector<std::string>& tags) {
  std::vector<std::string> others;
  for (const std::string& tag : tags) {
    Filter filter;
    filter.tag = tag;
    for (const Summary& summary : store.list(filter)) {
      if (summary.id == id) continue;
      change_annotation(store.folder(), summary.id,
                        [&tag](Annotation& annotation) { std::erase(annotation.tags, tag); });
      others.push_back(summary.id);
    }
  }
  return others;
}

void tag(const TagOptions& options) {
  if (options.move && options.remove) {
    throw base::UserError("--move and --remove exclude each other");
  }
  for (const std::string& name : options.tags) require_tag(name);
  RecordStore store = open_store();
  std::string id = stored_id(store, options.record);
  // The new bearer first: a process that is killed in between leaves a tag on two, not on none.
  Annotation now = change_annotation(store.folder(), id, [&options](Annotation& annotation) {
    for (const std::string& name : options.tags) {
      std::erase(annotation.tags, name);
      if (!options.remove) annotation.tags.push_back(name);
    }
  });
  std::vector<std::string> others;
  if (options.move) others = take_from_others(store, id, options.tags);
  if (options.json) {
    print_document(
        {{"schema_version", 1}, {"record_id", id}, {"tags", now.tags}, {"taken_from", others}});
    return;
  }
  fmt::print("{}: {}\n", id,
             now.tags.empty() ? "no tags" : fmt::format("{}", fmt::join(now.tags, ", ")));
  for (const std::string& other : others) fmt::print("taken from {}\n", other);
}

}  // namespace

void add_tag(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("tag", "Give a record tags, or take them away");
  auto options = std::make_shared<TagOptions>();
  command->add_option("record", options->record, kSelectorHelp)->required();
  command->add_option("tag", options->tags, "Letters, digits and . _ - + : @")->required();
  command->add_flag("--remove", options->remove, "Take the tags away");
  command->add_flag("--move", options->move, "Take the tags from all other records");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] {
    tag(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
