#include "shared_memory_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string_view>

namespace ljtrain::ljperf {
namespace {

constexpr std::string_view kFolder = "/dev/shm/";

}  // namespace

SharedMemoryFiles::SharedMemoryFiles() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, error)) {
    before_.insert(entry.path().string());
  }
}

void SharedMemoryFiles::note_of(int pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    std::size_t start = line.find(kFolder);
    if (start != std::string::npos && !line.ends_with(" (deleted)")) {
      std::string file = line.substr(start);
      if (!before_.contains(file)) {
        ours_.insert(file);
      }
    }
  }
}

void SharedMemoryFiles::remove() noexcept {
  for (const std::string& file : ours_) {
    struct stat status{};
    if (::lstat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == ::getuid()) {
      ::unlink(file.c_str());
    }
  }
  ours_.clear();
}

}  // namespace ljtrain::ljperf
