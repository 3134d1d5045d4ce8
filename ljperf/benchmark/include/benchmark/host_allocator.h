// Which malloc the ranks run with, and whether it asks the kernel for huge pages: all that the row
// `stack` differs in from the base.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/process.h"

namespace ljtrain::ljperf {

struct BenchmarkOptions;

struct HostAllocator {
  std::string name = "glibc";     // glibc, jemalloc or tcmalloc
  std::filesystem::path library;  // what is preloaded; empty for glibc
  bool huge_pages = false;        // asked for
  // The choice in the kernel's transparent_hugepage/enabled: always, madvise or never; empty where
  // the kernel has none.
  std::string kernel_huge_pages;

  // Whether huge pages were asked for and the kernel can give any.
  bool expects_huge_pages() const;
};

// The names that --allocator takes.
std::span<const std::string> allocator_names();

// Where the allocators of Debian and Ubuntu are looked for: LD_LIBRARY_PATH of `environment`, then
// the loader's usual folders.
std::vector<std::filesystem::path> library_folders(const base::Environment& environment);

// By --allocator, --huge-pages and --with stack; a switch given by itself beats --with stack.
// `huge_pages_file` is the kernel's setting. Throws UserError naming the package when the library
// is in none of `folders`; adds to `notes` what keeps huge pages from being had.
HostAllocator choose_allocator(const BenchmarkOptions& options,
                               const std::vector<std::filesystem::path>& folders,
                               const std::filesystem::path& huge_pages_file,
                               std::vector<std::string>& notes);

// The variables that make it so in the ranks. What the user has set of MALLOC_CONF, GLIBC_TUNABLES
// and LD_PRELOAD stays, behind ours: where an allocator reads a key twice, the last one counts.
std::map<std::string, std::optional<std::string>> allocator_variables(
    const HostAllocator& allocator, const base::Environment& environment);

}  // namespace ljtrain::ljperf
