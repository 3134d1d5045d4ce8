// ljperf models: the models of the catalogue, with their sizes and FLOPs.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/errors.h"
#include "base/units.h"
#include "catalogue/listing.h"
#include "catalogue/lookup.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf models
  ljperf models --seq 8192 --json
  ljperf models --config my-model/config.json
  ljperf benchmark --model deepspeed/qwen3-8b
)";
constexpr int kDefaultSequence = 8192;

struct ModelsOptions {
  bool json = false;
  int seq = kDefaultSequence;
  std::string scale = "full";
  std::string config;
};

// FLOPs of a token in units of 10^9, four digits.
std::string giga(const base::OrderedJson& flops, const char* convention) {
  return fmt::format("{:.4g}", flops.at(convention).get<double>() / 1e9);
}

void print_table(const base::OrderedJson& listing) {
  fmt::print("{:<15} {:>10} {:>10} {:>6} {:>6}   GFLOPs a token, counted as\n", "", "", "", "", "");
  fmt::print("{:<15} {:>10} {:>10} {:>6} {:>6} {:>9} {:>10} {:>7} {:>7}\n", "MODEL", "PARAMETERS",
             "ACTIVE", "LAYERS", "HIDDEN", "megatron", "torchtitan", "palm", "6n");
  for (const base::OrderedJson& model : listing.at("models")) {
    const base::OrderedJson& flops = model.at("flops_per_token");
    fmt::print(
        "{:<15} {:>10} {:>10} {:>6} {:>6} {:>9} {:>10} {:>7} {:>7}\n",
        model.at("id").get<std::string>(), base::format_count(model.at("parameters").get<double>()),
        base::format_count(model.at("active_parameters").get<double>()),
        model.at("layers").get<int>(), model.at("hidden_size").get<int>(), giga(flops, "megatron"),
        giga(flops, "torchtitan"), giga(flops, "palm"), giga(flops, "6n"));
  }
  fmt::print(
      "\nAt {} tokens a sequence (or as many as the model has positions).\n"
      "Engines: {}; for example: ljperf benchmark --model deepspeed/llama3-8b\n",
      listing.at("seq").get<int>(), fmt::join(engines(), ", "));
}

}  // namespace

void add_models(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("models", "List the models, their parameters and FLOPs");
  auto options = std::make_shared<ModelsOptions>();
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->add_option("--seq", options->seq, "Tokens a sequence, for the FLOPs")
      ->capture_default_str();
  command->add_option("--scale", options->scale, "full or 1/D: the proxies of that scale")
      ->capture_default_str();
  command->add_option("--config", options->config, "List this Hugging Face config.json instead");
  command->footer(kExamples);
  command->callback([&context, options] {
    if (options->seq < 1) {
      throw base::user_error("--seq {}: must be at least 1", options->seq);
    }
    Scale scale = parse_scale(options->scale);
    base::OrderedJson listing =
        options->config.empty()
            ? list_models(scale, options->seq)
            : list_config(base::JsonDocument::read(options->config), scale, options->seq);
    if (options->json) {
      fmt::print("{}\n", listing.dump(2));
    } else {
      print_table(listing);
    }
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::ljperf
