// What `ljperf plan` is asked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ljtrain::ljperf {

struct PlanOptions {
  std::string model;  // NAME, or ENGINE/NAME as ljperf benchmark takes it
  std::filesystem::path config;
  std::filesystem::path profile;  // of ljperf trace; empty: a shipped one
  std::optional<std::int64_t> seq;
  std::int64_t micro_batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t lora = 0;  // rank of the adapters; 0: all parameters are trained

  std::string engine;  // deepspeed, fsdp, ddp; empty: deepspeed, or what `model` names
  std::optional<int> zero;
  std::filesystem::path deepspeed_config;
  std::string precision;  // empty: the engine's under bf16=True
  bool compile = false;
  bool fused_loss = false;
  bool offload_optimizer = false;
  bool offload_parameters = false;

  std::int64_t devices = 8;
  std::string device;            // name; "host": CPU ranks
  std::string device_memory;     // "80GiB"
  std::string limit;             // "70GiB"
  std::filesystem::path record;  // a benchmark's, for times

  std::optional<std::int64_t> recompute;
  std::vector<std::string> keep;  // operators
  bool whole_layers = false;

  bool json = false;
  std::filesystem::path plot;
};

}  // namespace ljtrain::ljperf
