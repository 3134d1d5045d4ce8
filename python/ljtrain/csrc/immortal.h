// One object of a type for the whole process, which is never destroyed: threads and tensors may
// outlive main().
#pragma once

namespace ljtrain {

template <typename T>
T& immortal() {
  union Storage {
    Storage() : value() {}
    ~Storage() {}
    T value;
  };
  static Storage storage;
  return storage.value;
}

}  // namespace ljtrain
