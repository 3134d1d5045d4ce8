// A global that is never destroyed: threads, and handles that a program forgot, may use it while
// the process ends.
#pragma once

#include <cstddef>
#include <memory>

namespace ljtrain::accl::api {

template <typename T>
T& leaked() {
  alignas(T) static std::byte memory[sizeof(T)];
  static T* const object = std::construct_at(reinterpret_cast<T*>(memory));
  return *object;
}

}  // namespace ljtrain::accl::api
