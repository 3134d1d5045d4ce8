// ljperf memory: what a memory snapshot of PyTorch tells, and what other settings would have given.
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>

#include "allocator/report.h"
#include "base/errors.h"
#include "base/units.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf memory snapshot.pickle
  ljperf memory snapshot.pickle --limit 80GiB --top 20
  ljperf memory snapshot.pickle --settings expandable_segments:True \
    --settings max_split_size_mb:256
In the training script, before and after what is of interest:
  torch.cuda.memory._record_memory_history()
  torch.cuda.memory._dump_snapshot("snapshot.pickle")
)";

struct MemoryOptions {
  std::string file;
  std::vector<std::string> settings;
  std::string limit;
  std::string by = "frame";
  int device = -1;
  int top = 10;
  bool json = false;
};

recompute::OwnerKind owner_kind(const std::string& name) {
  using recompute::OwnerKind;
  static const std::map<std::string, OwnerKind> kKinds{{"frame", OwnerKind::kFrame},
                                                       {"category", OwnerKind::kCategory},
                                                       {"metadata", OwnerKind::kMetadata}};
  auto found = kKinds.find(name);
  if (found == kKinds.end()) {
    throw base::user_error("--by {}: must be frame, category or metadata", name);
  }
  return found->second;
}

void run_memory(const MemoryOptions& options) {
  recompute::AnalysisOptions analysis;
  analysis.settings = options.settings;
  if (!options.limit.empty()) {
    analysis.limit = static_cast<std::int64_t>(base::parse_bytes(options.limit));
    if (*analysis.limit == 0) {
      throw base::user_error("--limit 0: must be more than nothing, as in 80GiB");
    }
  }
  if (options.top < 1) {
    throw base::user_error("--top {}: must be at least 1", options.top);
  }
  for (const std::string& settings : options.settings) {
    recompute::parse_allocator_settings(settings, "--settings");
  }
  recompute::MemorySnapshot snapshot = recompute::read_memory_snapshot(
      options.file, {.device = options.device, .owner = owner_kind(options.by)});
  recompute::MemoryReport report = recompute::analyse(std::move(snapshot), options.file, analysis);
  if (options.json) {
    // File names need not be UTF-8.
    fmt::print("{}\n", recompute::report_json(report, options.top)
                           .dump(2, ' ', false, base::OrderedJson::error_handler_t::replace));
  } else {
    fmt::print("{}", recompute::report_text(report, options.top));
  }
}

}  // namespace

void add_memory(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "memory", "Read a PyTorch memory snapshot: peak, owners, fragmentation, other settings");
  auto options = std::make_shared<MemoryOptions>();
  command->add_option("file", options->file, "What torch.cuda.memory._dump_snapshot wrote")
      ->required();
  command
      ->add_option("--settings", options->settings,
                   "Try this PYTORCH_ALLOC_CONF (repeatable) instead of the usual ones")
      ->allow_extra_args(false);
  command->add_option("--limit", options->limit,
                      "Memory the process may take, as in 80GiB (default: none, or what an "
                      "out-of-memory error in the trace shows)");
  command
      ->add_option("--device", options->device,
                   "Which device of the snapshot (default: the one with the most events)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--by", options->by, "Owners by frame, category or metadata")
      ->capture_default_str();
  command->add_option("--top", options->top, "Owners to show")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] {
    run_memory(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::ljperf
