// cnp show: one record for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "base/units.h"
#include "cnp/record.h"
#include "cnp/record_file.h"
#include "commands.h"
#include "open_store.h"
#include "store/annotations.h"
#include "store/resolve.h"
#include "table.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp show latest
  cnp show 5f0c2a91
  cnp show baseline --json
)";

constexpr std::size_t kNameWidth = 12;

class Lines {
 public:
  // "memory      612.26 MiB"; nothing for an empty value.
  void add(std::string_view name, const std::string& value) {
    if (value.empty()) return;
    std::size_t width = output_width();
    constexpr std::size_t kDefaultWidth = 500;
    std::size_t room = (width == 0 ? kDefaultWidth : std::max(width, 2 * kNameWidth)) - kNameWidth;
    text_ += fmt::format("{:<{}}{}\n", name, kNameWidth, base::fitted(value, room));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string known(const Record& record, const char* key, const std::string& value) {
  return record.knows(key) ? value : "unknown";
}

std::string model_line(const Record& record) {
  std::string line =
      known(record, "engine", record.engine) + "/" + known(record, "model", record.model);
  if (!record.knows("proxy.is_proxy") || !record.proxy.is_proxy) return line;
  return fmt::format("{}; A PROXY, not the model itself: scale {}, {} of {} layers, hidden size {}",
                     line, record.proxy.scale, record.proxy.layers, record.proxy.of_layers,
                     record.proxy.hidden_size);
}

std::string set_up_line(const Record& record) {
  auto number = [&record](const char* key, auto value) {
    return known(record, key, std::to_string(value));
  };
  return fmt::format("{} ranks on {}, {}{}, sequence {}, micro-batch {} x {}, {} tokens a step",
                     number("ranks", record.ranks), known(record, "device", record.device),
                     known(record, "precision", record.precision),
                     record.zero_stage ? fmt::format(", ZeRO-{}", *record.zero_stage) : "",
                     number("sequence_length", record.sequence_length),
                     number("micro_batch", record.micro_batch),
                     number("gradient_accumulation", record.gradient_accumulation),
                     number("global_tokens_per_step", record.global_tokens_per_step));
}

std::string step_line(const Record& record) {
  const StepTime& time = record.step_time_s;
  if (!time.median) return "unknown";
  std::string line = base::format_seconds(*time.median);
  if (time.p05 && time.p95) {
    line += fmt::format(" (5 to 95 %: {} to {}", base::format_seconds(*time.p05),
                        base::format_seconds(*time.p95));
    line += time.ci95 ? fmt::format("; 95 % interval over runs: {} to {})",
                                    base::format_seconds(time.ci95->low),
                                    base::format_seconds(time.ci95->high))
                      : ")";
  }
  return fmt::format("{}; {} steps, {} run{}, warm-up of {} left out{}", line, time.all.size(),
                     record.runs.size(), record.runs.size() == 1 ? "" : "s", record.warmup.steps,
                     record.warmup.steady ? "" : ", NOT STEADY afterwards");
}

std::string throughput_line(const Record& record) {
  std::string line;
  auto add = [&line](const std::string& part) { line += (line.empty() ? "" : ", ") + part; };
  if (record.tokens_per_s) add(fmt::format("{:.5g} tokens/s", *record.tokens_per_s));
  if (record.tokens_per_s_per_rank) {
    add(fmt::format("{:.5g} tokens/s a rank", *record.tokens_per_s_per_rank));
  }
  if (record.model_tflops_per_rank) {
    add(fmt::format("{:.4g} TFLOP/s a rank", *record.model_tflops_per_rank));
  }
  if (record.mfu) add(fmt::format("MFU {:.1f} %", *record.mfu * 100));
  if (line.empty()) return "unknown";
  return record.flops_convention.empty()
             ? line
             : line + fmt::format(" (FLOPs: {})", record.flops_convention);
}

std::string active(const Record& record) {
  std::vector<std::string> names;
  if (record.components.accl) names.emplace_back("accl");
  if (record.components.compile) names.emplace_back("compile");
  if (record.components.recompute) {
    names.push_back(
        fmt::format("recompute ({} of {} layers)", record.recompute.layers, record.recompute.of));
  }
  if (!record.knows("components.accl")) return "unknown";
  return names.empty() ? "none of ljtrain's parts" : fmt::format("{}", fmt::join(names, ", "));
}

std::string losses(const Record& record) {
  if (record.loss.empty()) return "";
  return fmt::format("{:.4f} to {:.4f} over {} steps", record.loss.front(), record.loss.back(),
                     record.loss.size());
}

std::string versions(const Record& record) {
  std::vector<std::string> parts;
  for (const char* name : {"torch", "transformers", "deepspeed", "python"}) {
    auto found = record.environment.versions.find(name);
    if (found != record.environment.versions.end()) {
      parts.push_back(fmt::format("{} {}", name, found->second));
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string status_line(const base::Json& root) {
  std::string status = root.at("status").get<std::string>();
  const base::Json& failure = root.at("failure");
  return failure.is_null() ? status : status + ": " + failure.at("sentence").get<std::string>();
}

void add_benchmark(const Record& record, Lines& lines) {
  lines.add("model", model_line(record));
  lines.add("set-up", set_up_line(record));
  lines.add("step", step_line(record));
  lines.add("throughput", throughput_line(record));
  if (record.peak_memory_bytes.max) {
    lines.add("memory", base::format_bytes(static_cast<double>(*record.peak_memory_bytes.max)) +
                            " at most a rank");
  }
  lines.add("loss", losses(record));
  lines.add("active", active(record));
  lines.add("versions", versions(record));
  lines.add("machine",
            known(record, "environment.hardware.cpu_model", record.environment.hardware.cpu_model));
  for (const Gpu& gpu : record.environment.hardware.gpus) lines.add("", gpu.name);
  lines.add("command", fmt::format("{}", fmt::join(record.command, " ")));
}

void add_collectives(const base::Json& root, Lines& lines) {
  lines.add("library", "nccl " + root.at("library_version").dump());
  lines.add("ranks", root.at("ranks").dump());
  for (const base::Json& row : root.at("rows")) {
    auto cell = [&row](const char* key) {
      return row.at(key).is_null() ? "-" : row.at(key).dump();
    };
    lines.add(row.at("op").get<std::string>(),
              fmt::format("{:>10}{}  {} us, algorithm bandwidth {} GB/s, bus {} GB/s, wrong {}",
                          base::format_bytes(row.at("bytes").get<double>()),
                          row.at("in_place").get<bool>() ? " in place" : "", cell("time_us"),
                          cell("algbw_gbps"), cell("busbw_gbps"), cell("wrong")));
  }
}

void add_source(const base::Json& root, Lines& lines) {
  if (!root.contains("source") || root["source"].is_null()) return;
  const base::Json& source = root["source"];
  lines.add("source", fmt::format("{} of {}, imported {}", source.at("file").get<std::string>(),
                                  source.at("format").get<std::string>(),
                                  source.at("imported").get<std::string>()));
  for (const base::Json& note : source.at("notes")) lines.add("", note.get<std::string>());
}

void show(const std::string& selector, bool json) {
  RecordStore store = open_store();
  std::filesystem::path file = resolve_record(store, selector);
  base::JsonDocument document = read_record_document(file);
  const base::Json& root = document.root();
  std::optional<Summary> stored = store.find(root.at("record_id").get<std::string>());
  if (json) {
    auto text = base::OrderedJson(root);
    base::OrderedJson annotation{{"tags", base::OrderedJson::array()}, {"note", nullptr}};
    if (stored) annotation["tags"] = stored->tags;
    if (stored && stored->note) annotation["note"] = *stored->note;
    text["annotation"] = annotation;
    print_document(text);
    return;
  }
  Lines lines;
  lines.add("record", root.at("record_id").get<std::string>());
  lines.add("created", root.at("created").get<std::string>());
  lines.add("status", status_line(root));
  if (kind_of(root) == "benchmark") {
    add_benchmark(from_json(document), lines);
  } else {
    add_collectives(root, lines);
  }
  add_source(root, lines);
  if (stored) {
    lines.add("tags", fmt::format("{}", fmt::join(stored->tags, ", ")));
    lines.add("note", stored->note.value_or(""));
  }
  lines.add("file", file.string());
  fmt::print("{}", lines.text());
}

}  // namespace

void add_show(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("show", "Show one record");
  auto record = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command->add_option("record", *record, kSelectorHelp)->required();
  command->add_flag("--json", *json, "The record, with its tags and note, on standard output");
  command->footer(kExamples);
  command->callback([&context, record, json] {
    show(*record, *json);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
