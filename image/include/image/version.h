// Versions compared as what they are: lists of whole numbers. "575.57.08" is above "575.9".
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::image {

class Version {
 public:
  Version() = default;
  explicit Version(std::vector<int> parts) : parts_(std::move(parts)) {}

  // The n-th number, 0 where there is none: 12.8 is 12.8.0.
  int part(std::size_t index) const { return index < parts_.size() ? parts_[index] : 0; }
  int major() const { return part(0); }
  int minor() const { return part(1); }
  std::size_t size() const { return parts_.size(); }
  std::string text() const;  // "575.57.8"

  std::strong_ordering operator<=>(const Version& other) const;
  bool operator==(const Version& other) const { return (*this <=> other) == 0; }

 private:
  std::vector<int> parts_;
};

// "575.57.08", "12.8", "580": one to six numbers of at most nine digits with dots between, and
// nothing else. nullopt for any other text.
std::optional<Version> parse_version(std::string_view text);

// The first such version inside a text, as in "Kernel Module  580.65.06  Release Build"; at least
// two numbers.
std::optional<Version> find_version(std::string_view text);

}  // namespace ljtrain::image
