#include "allocator/settings.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/names.h"

namespace ljtrain::recompute {
namespace {

constexpr std::int64_t kSmallestBlock = 512;
constexpr std::int64_t kLargeThreshold = 10 * kMebibyte;
constexpr int kFirstInterval = 20;  // log2 of 1 MiB

constexpr std::array<std::string_view, 9> kKeys{
    "large_segment_size_mb",        "max_split_size_mb",        "max_non_split_rounding_mb",
    "garbage_collection_threshold", "roundup_power2_divisions", "expandable_segments",
    "per_process_memory_fraction",  "throw_on_cudamalloc_oom",  "backend"};
// Pinned host memory, locking, and CUDA graphs' streams.
constexpr std::array<std::string_view, 11> kKeysWithoutEffect{
    "pinned_use_background_threads",    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",        "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",     "pinned_reserve_segment_size_mb",
    "pinned_num_register_threads",      "pinned_free_catch_all",
    "release_lock_on_cudamalloc",       "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse"};

// "key:[a:1,b:2],other:x" as words and the marks between them; blanks mean nothing.
std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool open = false;
  for (char c : text) {
    if (c == ',' || c == ':' || c == '[' || c == ']') {
      words.emplace_back(1, c);
      open = false;
    } else if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      if (!open) {
        words.emplace_back();
      }
      words.back() += c;
      open = true;
    }
  }
  return words;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view where)
      : words_(split_words(text)), where_(where), text_(text) {}

  AllocatorSettings parse() {
    settings_.text = text_;
    while (at_ < words_.size()) {
      std::string key = next("a key");
      expect(":", key);
      read_value(key);
      if (at_ < words_.size()) {
        expect(",", key);
      }
    }
    check_sizes();
    return settings_;
  }

 private:
  void read_value(const std::string& key) {
    if (key == "large_segment_size_mb") {
      settings_.large_segment = mebibytes(key);
      if (settings_.large_segment <= kLargeThreshold || settings_.large_segment > kMebibyte << 20) {
        throw error(key, "must be more than 10, and no more than a terabyte");
      }
    } else if (key == "max_split_size_mb") {
      settings_.max_split = mebibytes(key);
      at_least_large_segment_.emplace_back(key, settings_.max_split);
    } else if (key == "max_non_split_rounding_mb") {
      settings_.max_non_split_rounding = mebibytes(key);
      at_least_large_segment_.emplace_back(key, settings_.max_non_split_rounding);
    } else if (key == "garbage_collection_threshold") {
      settings_.garbage_collection_threshold = fraction(key, false);
    } else if (key == "roundup_power2_divisions") {
      read_divisions(key);
    } else if (key == "expandable_segments") {
      settings_.expandable_segments = boolean(key);
    } else if (key == "per_process_memory_fraction") {
      settings_.per_process_memory_fraction = fraction(key, true);
    } else if (key == "throw_on_cudamalloc_oom") {
      settings_.throw_on_cudamalloc_oom = boolean(key);
    } else if (key == "backend") {
      read_backend(key);
    } else if (std::ranges::find(kKeysWithoutEffect, key) != kKeysWithoutEffect.end()) {
      next("a value");
      settings_.without_effect.push_back(key);
    } else {
      throw unknown(key);
    }
  }

  // A list "[256:1,512:2,>:8]" of power-of-two sizes in MiB, or one number for all sizes.
  void read_divisions(const std::string& key) {
    auto& divisions = settings_.roundup_power2_divisions;
    std::string word = next("a value");
    if (word != "[") {
      std::int64_t all = power_of_two(key, word, false);
      divisions.fill(all);
      return;
    }
    std::size_t last = 0;
    bool first = true;
    while ((word = next("a size or ]")) != "]") {
      expect(":", key);
      std::int64_t value = power_of_two(key, next("a number"), true);
      if (word == ">") {
        std::fill(divisions.begin() + std::min(last + 1, divisions.size()), divisions.end(), value);
      } else {
        auto size = static_cast<std::uint64_t>(power_of_two(key, word, false));
        std::size_t index = std::min<std::size_t>(std::bit_width(size) - 1, divisions.size() - 1);
        if (first) {
          std::fill_n(divisions.begin(), index, value);
          first = false;
        }
        divisions[index] = value;
        last = index;
      }
      if (peek() != "]") {
        expect(",", key);
      }
    }
  }

  void read_backend(const std::string& key) {
    std::string name = next("a value");
    if (name == "cudaMallocAsync") {
      throw error(key,
                  "cudaMallocAsync is the CUDA driver's allocator, which cannot be simulated; "
                  "leave the key out for PyTorch's own");
    }
    if (name != "native") {
      throw error(key, fmt::format("`{}` is neither native nor cudaMallocAsync", name));
    }
    settings_.without_effect.push_back(key);
  }

  void check_sizes() {
    // Only what was written is checked: the default of the rounding may be less.
    for (const auto& [key, bytes] : at_least_large_segment_) {
      if (bytes < settings_.large_segment) {
        throw error(key, fmt::format("must be at least {}", settings_.large_segment / kMebibyte));
      }
    }
    if (settings_.garbage_collection_threshold > 0 && !settings_.collects_garbage()) {
      settings_.without_effect.emplace_back(
          "garbage_collection_threshold (needs per_process_memory_fraction below 1)");
    }
  }

  std::int64_t mebibytes(const std::string& key) {
    std::string word = next("a number");
    if (word == "-1") {
      return kUnlimited;  // what PyTorch's conversion to unsigned makes of it
    }
    std::int64_t value = whole_number(key, word);
    return value > kUnlimited / kMebibyte ? kUnlimited : value * kMebibyte;
  }

  std::int64_t whole_number(const std::string& key, const std::string& word) {
    std::int64_t value = 0;
    auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (failure != std::errc() || end != word.data() + word.size() || value < 0) {
      throw error(key, fmt::format("`{}` is not a whole number", word));
    }
    return value;
  }

  std::int64_t power_of_two(const std::string& key, const std::string& word, bool zero_allowed) {
    std::int64_t value = whole_number(key, word);
    if (!std::has_single_bit(static_cast<std::uint64_t>(value)) && !(zero_allowed && value == 0)) {
      throw error(key, fmt::format("`{}` is not a power of two", word));
    }
    return value;
  }

  double fraction(const std::string& key, bool one_allowed) {
    std::string word = next("a number");
    double value = 0;
    auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
    bool above_zero = one_allowed ? value >= 0 : value > 0;
    if (failure != std::errc() || end != word.data() + word.size() || !above_zero ||
        !(one_allowed ? value <= 1 : value < 1)) {
      throw error(key, fmt::format("`{}` is not a number between 0 and 1", word));
    }
    return value;
  }

  bool boolean(const std::string& key) {
    std::string word = next("True or False");
    if (word != "True" && word != "False") {
      throw error(key, fmt::format("`{}` is neither True nor False (capitals matter)", word));
    }
    return word == "True";
  }

  std::string_view peek() const {
    return at_ < words_.size() ? std::string_view(words_[at_]) : std::string_view();
  }

  std::string next(std::string_view what) {
    if (at_ == words_.size()) {
      throw base::user_error("{}: `{}` ends where {} should stand", where_, text_, what);
    }
    return words_[at_++];
  }

  void expect(std::string_view mark, const std::string& key) {
    if (peek() != mark) {
      throw base::user_error("{}: `{}` should stand at `{}` after `{}` in `{}`", where_, mark,
                             at_ < words_.size() ? peek() : "the end", key, text_);
    }
    ++at_;
  }

  base::UserError error(std::string_view key, std::string_view what) const {
    return base::user_error("{}: {}: {}", where_, key, what);
  }

  base::UserError unknown(const std::string& key) const {
    std::vector<std::string_view> known(kKeys.begin(), kKeys.end());
    known.insert(known.end(), kKeysWithoutEffect.begin(), kKeysWithoutEffect.end());
    std::vector<std::string_view> near = base::nearest_names(key, known);
    return base::user_error("{}: there is no setting `{}`{}", where_, key,
                            near.empty() ? fmt::format(" (there are {})", fmt::join(kKeys, ", "))
                                         : fmt::format(" (near: {})", fmt::join(near, ", ")));
  }

  std::vector<std::string> words_;
  std::size_t at_ = 0;
  std::string where_;
  std::string text_;
  AllocatorSettings settings_;
  std::vector<std::pair<std::string, std::int64_t>> at_least_large_segment_;
};

}  // namespace

std::int64_t AllocatorSettings::divisions_for(std::int64_t bytes) const {
  int log2 = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 1;
  int last = static_cast<int>(roundup_power2_divisions.size()) - 1;
  return roundup_power2_divisions[std::clamp(log2 - kFirstInterval, 0, last)];
}

std::int64_t AllocatorSettings::rounded(std::int64_t bytes) const {
  if (bytes < kSmallestBlock) {
    return kSmallestBlock;
  }
  std::int64_t divisions = divisions_for(bytes);
  if (divisions <= 1 || bytes <= kSmallestBlock * divisions) {
    return (bytes + kSmallestBlock - 1) / kSmallestBlock * kSmallestBlock;
  }
  auto floor = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
  if (bytes == floor) {
    return bytes;
  }
  std::int64_t step = floor / divisions;
  return step == 0 ? 2 * floor : (bytes + step - 1) / step * step;
}

AllocatorSettings parse_allocator_settings(std::string_view text, std::string_view where) {
  return Parser(text, where).parse();
}

}  // namespace ljtrain::recompute
