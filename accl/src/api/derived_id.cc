#include "api/derived_id.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace ljtrain::accl::api {
namespace {

constexpr std::size_t kWords = sizeof(UniqueId) / sizeof(std::uint64_t);

// The finalizer of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// 2014).
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Takes words in, one after the other, into as many lanes as an id has words.
class Sponge {
 public:
  void absorb(std::uint64_t word) {
    for (std::size_t lane = 0; lane < kWords; ++lane) {
      const std::uint64_t neighbour = state_[(lane + 1) % kWords];
      state_[lane] = mix(state_[lane] + word + (lane + 1) * 0x9e3779b97f4a7c15ULL) ^ neighbour;
    }
  }
  UniqueId squeeze() {
    absorb(0);  // the last word reaches all lanes
    UniqueId id;
    std::memcpy(id.bytes.data(), state_.data(), sizeof(id));
    return id;
  }

 private:
  std::array<std::uint64_t, kWords> state_{};
};

}  // namespace

UniqueId derive_id(const UniqueId& parent, std::string_view purpose,
                   std::span<const std::uint64_t> numbers) {
  Sponge sponge;
  for (std::size_t word = 0; word < kWords; ++word) {
    std::uint64_t value = 0;
    std::memcpy(&value, parent.bytes.data() + word * sizeof(value), sizeof(value));
    sponge.absorb(value);
  }
  for (const char letter : purpose) {
    sponge.absorb(static_cast<unsigned char>(letter));
  }
  for (const std::uint64_t number : numbers) {
    sponge.absorb(number);
  }
  return sponge.squeeze();
}

std::uint64_t hash_of(const UniqueId& id) {
  std::uint64_t first = 0;
  std::memcpy(&first, id.bytes.data(), sizeof(first));
  return first;
}

}  // namespace ljtrain::accl::api
