// Other programs' results as records, marked with their source. What a file does not say is null,
// never guessed; what is derived is told in the record's source.notes.
//
//   torchtitan     the log of a training. Lines of torchtitan/components/metrics.py (2025 to 2026):
//                  "step: 10  loss:  2.33  grad_norm:  0.46  memory: 69.83GiB(88.19%)  tps: 42,332
//                  tflops: 270.71  mfu: 27.37%"; with or without colours, one rank's or several's
//   megatron       the log of a training. Lines of megatron/training/training.py (training_log),
//                  Megatron-LM 2021 to 2026: " iteration  10/ 100 | consumed samples: .. | elapsed
//                  time per iteration (ms): 1552.8 | .. | lm loss: 6.25E+00 | ..", its dump of
//                  arguments and "[Rank 0] (after 10 iterations) memory (MB) | .."
//   trainer_state  trainer_state.json of transformers (TrainerState.save_to_json; 5.24)
//   nccl-tests     the file that -J writes (src/util.cu, JSON_FILE_VERSION 1 and 2)
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ljtrain::cnp {

// What the user knows and the file may not say. Where the file says otherwise, that is an error.
struct StatedFacts {
  std::optional<std::string> model;
  std::optional<std::string> engine;
  std::optional<std::string> device;
  std::optional<std::string> precision;
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> sequence_length;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::int64_t> gradient_accumulation;
};

// A file's content, with what it is called.
struct ImportSource {
  std::string text;
  std::string name;  // in messages and in the record: without folders
  std::chrono::system_clock::time_point now;
};

// The names above, "auto" first.
const std::vector<std::string_view>& import_formats();

// The format of a file by its content. UserError that lists the formats when it is none of them.
std::string detect_format(const ImportSource& source);

// The record's document, checked against its schema. `format` is one of import_formats(); "auto"
// detects it. UserError, with the file's name, when the file holds no result, or one that no record
// can hold.
base::OrderedJson import_document(const ImportSource& source, const std::string& format,
                                  const StatedFacts& facts);

// Reads a file of at most 1 GiB. UserError when it cannot be read or is larger.
ImportSource read_import_source(const std::filesystem::path& file);

// FNV-1a, 64 bits, in hexadecimal (Fowler, Noll, Vo; RFC 9923).
std::string digest_of(std::string_view content);

}  // namespace ljtrain::cnp
