#include "benchmark/host_allocator.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "benchmark/options.h"

namespace ljtrain::ljperf {
namespace {

// The pair that --with stack stands for: the fastest of benchmarks/ljperf/allocators.py.
constexpr const char* kStackAllocator = "jemalloc";
constexpr bool kStackHugePages = true;

struct Library {
  const char* allocator;
  const char* file;
  const char* package;
};
constexpr std::array kLibraries{
    Library{"jemalloc", "libjemalloc.so.2", "libjemalloc2"},
    Library{"tcmalloc", "libtcmalloc_minimal.so.4",
            "libtcmalloc-minimal4 (libtcmalloc-minimal4t64 from Ubuntu 24.04 on)"}};

// Freed memory is kept instead of given back, as a training asks for the same again in the next
// step. Left alone, each allocator returns large blocks to the kernel at once: llama3-8b at 1/8, two
// ranks, takes 125,000 page faults a step on glibc and 290,000 on jemalloc, and 70 with these.
// oversize_threshold:0 does away with jemalloc's arena for large blocks, which never keeps any.
constexpr const char* kJemallocKeeps = "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1";
constexpr const char* kJemallocHugePages = "thp:always,metadata_thp:auto,";
constexpr const char* kTcmallocKeeps = "0";  // TCMALLOC_RELEASE_RATE
// Huge pages without keeping them would be zeroed again and again.
constexpr const char* kGlibcHugePages =
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:"
    "glibc.malloc.trim_threshold=4294967296";

std::filesystem::path find_library(const Library& library,
                                   const std::vector<std::filesystem::path>& folders) {
  for (const std::filesystem::path& folder : folders) {
    std::error_code error;
    if (std::filesystem::is_regular_file(folder / library.file, error)) {
      return folder / library.file;
    }
  }
  throw base::user_error("--allocator {}: {} is not installed; `apt-get install {}`",
                         library.allocator, library.file, library.package);
}

// "always [madvise] never" -> "madvise".
std::string bracketed(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string text;
  std::getline(stream, text);
  std::size_t open = text.find('[');
  std::size_t close = text.find(']', open);
  return open == std::string::npos || close == std::string::npos
             ? ""
             : text.substr(open + 1, close - open - 1);
}

std::string value_of(const base::Environment& environment, const std::string& name) {
  auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// Ours, then the user's.
std::string joined(const std::string& ours, const std::string& theirs, char separator) {
  return theirs.empty() ? ours : ours + separator + theirs;
}

}  // namespace

bool HostAllocator::expects_huge_pages() const {
  return huge_pages && (kernel_huge_pages == "always" || kernel_huge_pages == "madvise");
}

std::span<const std::string> allocator_names() {
  static const std::array<std::string, 3> kNames{"glibc", "jemalloc", "tcmalloc"};
  return kNames;
}

std::vector<std::filesystem::path> library_folders(const base::Environment& environment) {
  std::vector<std::filesystem::path> folders;
  std::istringstream own(value_of(environment, "LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(own, folder, ':');) {
    if (!folder.empty()) {
      folders.emplace_back(folder);
    }
  }
#if defined(__aarch64__)
  const std::string triplet = "aarch64-linux-gnu";
#else
  const std::string triplet = "x86_64-linux-gnu";
#endif
  for (const std::string& folder :
       {"/usr/local/lib/" + triplet, std::string("/usr/local/lib"), "/usr/lib/" + triplet,
        "/lib/" + triplet, std::string("/usr/lib64"), std::string("/usr/lib")}) {
    folders.emplace_back(folder);
  }
  return folders;
}

HostAllocator choose_allocator(const BenchmarkOptions& options,
                               const std::vector<std::filesystem::path>& folders,
                               const std::filesystem::path& huge_pages_file,
                               std::vector<std::string>& notes) {
  bool stack = std::ranges::find(options.with, "stack") != options.with.end();
  HostAllocator choice;
  if (!options.allocator.empty()) {
    choice.name = options.allocator;
  } else if (stack) {
    choice.name = kStackAllocator;
  }
  choice.huge_pages = options.huge_pages.value_or(stack && kStackHugePages);
  for (const Library& library : kLibraries) {
    if (choice.name == library.allocator) {
      choice.library = find_library(library, folders);
    }
  }
  choice.kernel_huge_pages = bracketed(huge_pages_file);
  if (choice.huge_pages && !choice.expects_huge_pages()) {
    notes.push_back(
        fmt::format("warning: no huge pages: {} {}", huge_pages_file.string(),
                    choice.kernel_huge_pages.empty()
                        ? "is not there, this kernel has none"
                        : fmt::format("says {}; as root, `echo madvise > {}`",
                                      choice.kernel_huge_pages, huge_pages_file.string())));
  }
  return choice;
}

std::map<std::string, std::optional<std::string>> allocator_variables(
    const HostAllocator& allocator, const base::Environment& environment) {
  std::map<std::string, std::optional<std::string>> variables;
  auto put = [&](const std::string& name, const std::string& ours, char separator) {
    variables[name] = joined(ours, value_of(environment, name), separator);
  };
  if (!allocator.library.empty()) {
    put("LD_PRELOAD", allocator.library.string(), ':');
  }
  if (allocator.name == "jemalloc") {
    put("MALLOC_CONF",
        (allocator.huge_pages ? kJemallocHugePages : "") + std::string(kJemallocKeeps), ',');
  }
  if (allocator.name == "tcmalloc" && !environment.contains("TCMALLOC_RELEASE_RATE")) {
    variables["TCMALLOC_RELEASE_RATE"] = kTcmallocKeeps;
  }
  if (allocator.huge_pages && allocator.name == "glibc") {
    put("GLIBC_TUNABLES", kGlibcHugePages, ':');
  }
  if (allocator.huge_pages && allocator.name == "tcmalloc") {
    variables["THP_MEM_ALLOC_ENABLE"] = "1";  // gperftools has no switch; PyTorch's own has effect
  }
  return variables;
}

}  // namespace ljtrain::ljperf
