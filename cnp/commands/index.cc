// cnp index: what the index over the records is like, and a new one.
#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record_file.h"
#include "commands.h"
#include "open_store.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp index
  cnp index --rebuild
)";

void index(bool rebuild, bool json) {
  RecordStore store = rebuild ? rebuild_store() : open_store();
  const IndexState& state = store.index_state();
  if (json) {
    print_document({{"schema_version", 1},
                    {"folder", store.folder().string()},
                    {"records", store.count()},
                    {"rebuilt", state.rebuilt},
                    {"files_read", state.read},
                    {"in_memory", state.in_memory},
                    {"problems", problems_json(store)}});
    return;
  }
  fmt::print("{} records in {}; {}{} read\n", store.count(),
             base::printable(store.folder().string(), 1000),
             state.rebuilt ? "the index is new, " : "",
             state.read == 1 ? "1 file" : fmt::format("{} files", state.read));
}

}  // namespace

void add_index(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("index", "Bring the index over the records up to date, or rebuild it");
  auto rebuild = std::make_shared<bool>(false);
  auto json = std::make_shared<bool>(false);
  command->add_flag("--rebuild", *rebuild, "From the files alone: after edits in place");
  command->add_flag("--json", *json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, rebuild, json] {
    index(*rebuild, *json);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
