// Typed access to the keys of a config.json, with errors that name file, line and key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/json.h"

namespace ljtrain::ljperf {

// Largest values accepted: above anything published, and small enough that products of a few of
// them stay exact in a double.
struct Limit {
  // Hidden size, ffn size, vocabulary, positions.
  static constexpr std::int64_t kSize = 268'435'456;
  static constexpr std::int64_t kHeads = 65'536;
  static constexpr std::int64_t kExperts = 65'536;
  static constexpr std::int64_t kLayers = 10'000;
};

class ConfigReader {
 public:
  explicit ConfigReader(const base::JsonDocument& document) : document_(document) {}

  // The first of `names` that is present, "" when none is.
  std::string_view present(std::initializer_list<std::string_view> names) const;
  // Present and not null.
  bool has(std::string_view key) const;

  // An integer between `least` and `most`. Absent or null: nullopt.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least,
                                      std::int64_t most) const;
  // Absent or null is a UserError.
  std::int64_t required(std::string_view key, std::int64_t least, std::int64_t most) const;
  // Absent (or null): `otherwise`.
  std::int64_t integer_or(std::string_view key, std::int64_t least, std::int64_t most,
                          std::int64_t otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::string string_or(std::string_view key, std::string_view otherwise) const;
  // A list of strings or integers of at most Limit::kLayers entries. Absent or null: nullopt.
  std::optional<std::vector<std::string>> strings(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;

  // "FILE:LINE: key `key`".
  std::string where(std::string_view key) const;
  const std::string& file() const { return document_.name(); }

 private:
  const base::Json* find(std::string_view key) const;
  base::UserError wrong_type(std::string_view key, std::string_view wanted) const;

  const base::JsonDocument& document_;
};

// A value as it is shown in an error: JSON, cut after a few characters.
std::string shown(const base::Json& value);

}  // namespace ljtrain::ljperf
