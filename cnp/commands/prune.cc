// cnp prune: removes records that nobody has tagged or noted.
#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "commands.h"
#include "filter_options.h"
#include "open_store.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp prune --before 90d
  cnp prune --before 90d --yes
  cnp prune --model deepspeed/llama3-8b --keep 20 --yes
  cnp prune --status failed --yes
)";
constexpr std::size_t kShown = 20;

struct PruneOptions {
  FilterOptions filter;
  std::size_t keep = 0;
  bool yes = false;
  bool json = false;
};

bool chooses(const PruneOptions& options) {
  const FilterOptions& filter = options.filter;
  for (const std::string* text : {&filter.model, &filter.engine, &filter.status, &filter.kind,
                                  &filter.since, &filter.before}) {
    if (!text->empty()) return true;
  }
  return options.keep > 0;
}

// Ids to remove, oldest last.
std::vector<std::string> chosen(const RecordStore& store, const PruneOptions& options,
                                std::size_t& spared) {
  std::vector<std::string> ids;
  std::size_t seen = 0;
  for (const Summary& summary : store.list(filter_of(options.filter))) {
    if (seen++ < options.keep) continue;
    if (summary.tags.empty() && !summary.note) {
      ids.push_back(summary.id);
    } else {
      ++spared;
    }
  }
  return ids;
}

void prune(const PruneOptions& options) {
  if (!chooses(options)) {
    throw base::UserError(
        "which records? name --before, --keep, --status, --model, --engine or --kind; to remove "
        "all, "
        "--before 1m");
  }
  if (!options.filter.tag.empty()) {
    throw base::UserError("--tag: tagged records are never pruned; `cnp tag --remove` frees them");
  }
  RecordStore store = open_store();
  std::size_t spared = 0;
  std::vector<std::string> ids = chosen(store, options, spared);
  std::vector<std::string> removed;
  std::size_t leftovers = 0;
  if (options.yes) {
    for (const std::string& id : ids) {
      if (remove_record(store.folder(), id)) removed.push_back(id);
    }
    leftovers = remove_leftovers(store.folder());
  }
  if (options.json) {
    print_document({{"schema_version", 1},
                    {"dry_run", !options.yes},
                    {"chosen", ids},
                    {"removed", removed},
                    {"spared", spared},
                    {"leftovers_removed", leftovers}});
    return;
  }
  for (std::size_t i = 0; i < std::min(ids.size(), kShown); ++i) {
    fmt::print("{} {}\n", options.yes ? "removed" : "would remove", ids[i]);
  }
  if (ids.size() > kShown) fmt::print("... and {} more\n", ids.size() - kShown);
  fmt::print("{} records {}{}{}\n", options.yes ? removed.size() : ids.size(),
             options.yes ? "removed" : "would be removed",
             spared == 0 ? "" : fmt::format(", {} with a tag or a note spared", spared),
             options.yes || ids.empty() ? "" : "; add --yes to do it");
}

}  // namespace

void add_prune(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("prune", "Remove records without tag and note (only with --yes)");
  auto options = std::make_shared<PruneOptions>();
  add_filter_options(*command, options->filter);
  command->add_option("--keep", options->keep, "Spare the newest so many of those that fit");
  command->add_flag("--yes", options->yes, "Remove them; without it they are only named");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] {
    prune(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
