// Files in /dev/shm that the libraries under test make and, when their ranks are killed, leave
// behind.
#pragma once

#include <set>
#include <string>

namespace ljtrain::ljperf {

// Remembers what is there when it is made; removes, in the end, only files that came later, are
// this user's, and were seen mapped by a rank of ours.
class SharedMemoryFiles {
 public:
  SharedMemoryFiles();
  ~SharedMemoryFiles() { remove(); }
  SharedMemoryFiles(const SharedMemoryFiles&) = delete;
  SharedMemoryFiles& operator=(const SharedMemoryFiles&) = delete;

  // Looks through the mappings of a live process.
  void note_of(int pid);
  void remove() noexcept;

 private:
  std::set<std::string> before_;
  std::set<std::string> ours_;
};

}  // namespace ljtrain::ljperf
