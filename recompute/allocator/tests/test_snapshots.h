// Snapshots for the tests: written as JSON, pickled as Python's pickle does.
#pragma once

#include <bit>
#include <string>

#include "base/json.h"

namespace ljtrain::recompute {

// Pickles JSON; protocol 2 or 4.
class PickleWriter {
 public:
  explicit PickleWriter(int protocol) : protocol_(protocol) {}

  std::string write(const base::OrderedJson& json) {
    out_ = {'\x80', static_cast<char>(protocol_)};
    value(json);
    out_ += '.';
    return out_;
  }

 private:
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      out_ += static_cast<char>(value >> (8 * i));
    }
  }

  void integer(std::int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      number(static_cast<std::uint64_t>(value), 1);
    } else if (value >= 0 && value < 65536) {
      out_ += 'M';
      number(static_cast<std::uint64_t>(value), 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      number(static_cast<std::uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";
      number(static_cast<std::uint64_t>(value), 8);
    }
  }

  void text(const std::string& text) {
    if (protocol_ >= 4 && text.size() < 256) {
      out_ += '\x8c';
      number(text.size(), 1);
    } else {
      out_ += 'X';
      number(text.size(), 4);
    }
    out_ += text;
    if (protocol_ >= 4) {
      out_ += '\x94';
    } else {
      out_ += 'r';
      number(memo_++, 4);
    }
  }

  void value(const base::OrderedJson& json) {
    if (json.is_object()) {
      out_ += "}(";
      for (const auto& [key, entry] : json.items()) {
        text(key);
        value(entry);
      }
      out_ += 'u';
    } else if (json.is_array()) {
      out_ += "](";
      for (const auto& entry : json) {
        value(entry);
      }
      out_ += 'e';
    } else if (json.is_string()) {
      text(json.get<std::string>());
    } else if (json.is_boolean()) {
      out_ += json.get<bool>() ? '\x88' : '\x89';
    } else if (json.is_number_float()) {
      auto bits = std::bit_cast<std::uint64_t>(json.get<double>());
      out_ += 'G';
      for (int i = 7; i >= 0; --i) {
        out_ += static_cast<char>(bits >> (8 * i));
      }
    } else if (json.is_number()) {
      integer(json.get<std::int64_t>());
    } else {
      out_ += 'N';
    }
  }

  int protocol_;
  std::string out_;
  std::uint32_t memo_ = 0;
};

inline std::string pickled(const base::OrderedJson& json, int protocol = 4) {
  return PickleWriter(protocol).write(json);
}

inline base::OrderedJson frame(const std::string& file, int line, const std::string& name) {
  return {{"filename", file}, {"line", line}, {"name", name}};
}

// Two allocations, one older than the recording, one that waits for another stream, a failed one.
inline base::OrderedJson sample_snapshot() {
  constexpr std::int64_t kMiB = 1 << 20;
  constexpr std::int64_t kBase = 0x7f0000000000;
  base::OrderedJson model = base::OrderedJson::array(
      {frame("/venv/torch/nn/modules/linear.py", 134, "forward"),
       frame("/home/me/model.py", 7, "block"), frame("/home/me/train.py", 3, "main")});
  auto event = [&](const char* action, std::int64_t addr, std::int64_t size) {
    return base::OrderedJson{{"action", action}, {"addr", addr},    {"size", size},
                             {"stream", 0},      {"frames", model}, {"time_us", 1700000000000000}};
  };
  base::OrderedJson trace = base::OrderedJson::array();
  trace.push_back(event("segment_alloc", kBase, 20 * kMiB));
  trace.push_back(event("alloc", kBase, 4 * kMiB));
  trace.push_back(event("alloc", kBase + 4 * kMiB, 5 * kMiB));
  trace.push_back(event("free_requested", kBase + 4 * kMiB, 5 * kMiB));
  trace.push_back(event("free_requested", kBase + 64 * kMiB, 30 * kMiB));  // from before
  trace.push_back(event("free_completed", kBase + 64 * kMiB, 30 * kMiB));
  trace.push_back(event("free_completed", kBase + 4 * kMiB, 5 * kMiB));
  trace.push_back(event("segment_free", kBase + 64 * kMiB, 30 * kMiB));
  trace.push_back({{"action", "oom"},
                   {"device_free", 10 * kMiB},
                   {"size", 40 * kMiB},
                   {"stream", 0},
                   {"frames", model}});
  trace.push_back({{"action", "snapshot"}, {"addr", 0}, {"size", 0}, {"stream", 0}});
  auto block = [&](std::int64_t address, std::int64_t size, std::int64_t requested,
                   const char* state) {
    return base::OrderedJson{{"address", address},
                             {"size", size},
                             {"requested_size", requested},
                             {"state", state},
                             {"frames", model}};
  };
  base::OrderedJson blocks =
      base::OrderedJson::array({block(kBase, 4 * kMiB, 4 * kMiB, "active_allocated"),
                                block(kBase + 4 * kMiB, 16 * kMiB, 0, "inactive")});
  base::OrderedJson old_blocks = base::OrderedJson::array(
      {block(kBase + 128 * kMiB, 12 * kMiB, 12 * kMiB - 100, "active_allocated")});
  auto segment = [](std::int64_t address, std::int64_t total, base::OrderedJson held) {
    return base::OrderedJson{{"device", 0},
                             {"address", address},
                             {"total_size", total},
                             {"stream", 0},
                             {"segment_type", "large"},
                             {"segment_pool_id", {0, 0}},
                             {"blocks", std::move(held)}};
  };
  return {{"segments",
           {segment(kBase, 20 * kMiB, std::move(blocks)),
            segment(kBase + 128 * kMiB, 12 * kMiB, std::move(old_blocks))}},
          {"device_traces", base::OrderedJson::array({trace})},
          {"allocator_settings", {{"PYTORCH_CUDA_ALLOC_CONF", ""}, {"expandable_segments", false}}},
          {"external_annotations", base::OrderedJson::array()}};
}

}  // namespace ljtrain::recompute
