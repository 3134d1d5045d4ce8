#include "folder_scan.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>

#include "base/errors.h"
#include "base/text.h"

namespace ljtrain::cnp {
namespace {

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
// File systems stamp with the kernel's tick (10 ms at most), some with whole seconds (ext3) or two
// (FAT). A stamp without a fraction may come from one of those.
constexpr std::int64_t kFineTick = kNanosecondsPerSecond / 20;
constexpr std::int64_t kCoarseTick = 2 * kNanosecondsPerSecond;

std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * kNanosecondsPerSecond + time.tv_nsec;
}

}  // namespace

FolderFingerprint fingerprint(const std::filesystem::path& folder) {
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) return {.value = "", .settled = true};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::int64_t changed = nanoseconds(status.st_mtim);
  std::int64_t tick = changed % kNanosecondsPerSecond == 0 ? kCoarseTick : kFineTick;
  return {.value = fmt::format("{}:{}:{}:{}", status.st_dev, status.st_ino, changed,
                               nanoseconds(status.st_ctim)),
          .settled = nanoseconds(now) - changed > tick};
}

FolderListing list_json_files(const std::filesystem::path& folder, FileIdentity identity) {
  struct Close {
    void operator()(DIR* stream) const { ::closedir(stream); }
  };
  FolderListing files;
  std::unique_ptr<DIR, Close> stream(::opendir(folder.c_str()));
  if (!stream) {
    if (errno == ENOENT) return files;
    throw base::user_error("{}: this folder of records cannot be read: {}",
                           base::printable(folder.string()), std::strerror(errno));
  }
  while (const dirent* entry = ::readdir(stream.get())) {
    std::string_view name = entry->d_name;
    if (name.ends_with(".json") && name.front() != '.' && entry->d_type != DT_DIR) {
      auto file = static_cast<std::int64_t>(entry->d_ino);
      struct stat status{};
      if (identity == FileIdentity::kInodeAndTime &&
          ::fstatat(::dirfd(stream.get()), entry->d_name, &status, 0) == 0) {
        file = static_cast<std::int64_t>(status.st_ino) ^ nanoseconds(status.st_ctim);
      }
      files.emplace(name, file);
    }
  }
  return files;
}

}  // namespace ljtrain::cnp
