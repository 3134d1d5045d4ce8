#include "elf.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace ljtrain::ljperf {
namespace {

constexpr std::size_t kMostEntries = 4096;
constexpr std::size_t kLongestName = 4096;

class File {
 public:
  explicit File(const std::filesystem::path& file) : stream_(file, std::ios::binary) {}

  // `count` structures at an offset; fewer where the file ends.
  template <typename Struct>
  std::vector<Struct> read(std::uint64_t offset, std::size_t count) {
    std::vector<Struct> all(std::min(count, kMostEntries));
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    stream_.read(reinterpret_cast<char*>(all.data()),
                 static_cast<std::streamsize>(all.size() * sizeof(Struct)));
    auto size = stream_ ? all.size() * sizeof(Struct) : static_cast<std::size_t>(stream_.gcount());
    all.resize(size / sizeof(Struct));
    return all;
  }

  std::string text(std::uint64_t offset) {
    std::vector<char> bytes = read<char>(offset, kLongestName);
    return {bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0')};
  }

 private:
  std::ifstream stream_;
};

// Where in the file a virtual address lies.
std::optional<std::uint64_t> offset_of(const std::vector<Elf64_Phdr>& segments,
                                       std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz) {
      return segment.p_offset + (address - segment.p_vaddr);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<DynamicSection> read_dynamic_section(const std::filesystem::path& path) {
  File file(path);
  std::vector<Elf64_Ehdr> headers = file.read<Elf64_Ehdr>(0, 1);
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      headers[0].e_ident[EI_CLASS] != ELFCLASS64 || headers[0].e_ident[EI_DATA] != ELFDATA2LSB ||
      headers[0].e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  auto segments = file.read<Elf64_Phdr>(headers[0].e_phoff, headers[0].e_phnum);
  auto dynamic = std::find_if(segments.begin(), segments.end(), [](const Elf64_Phdr& segment) {
    return segment.p_type == PT_DYNAMIC;
  });
  if (dynamic == segments.end()) {
    return std::nullopt;
  }
  auto entries = file.read<Elf64_Dyn>(dynamic->p_offset, dynamic->p_filesz / sizeof(Elf64_Dyn));
  auto strings = std::find_if(entries.begin(), entries.end(),
                              [](const Elf64_Dyn& entry) { return entry.d_tag == DT_STRTAB; });
  std::optional<std::uint64_t> table =
      strings == entries.end() ? std::nullopt : offset_of(segments, strings->d_un.d_ptr);
  if (!table.has_value()) {
    return std::nullopt;
  }
  DynamicSection section;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) {
      break;
    }
    if (entry.d_tag == DT_NEEDED) {
      section.needed.push_back(file.text(*table + entry.d_un.d_val));
    } else if (entry.d_tag == DT_RPATH) {
      section.rpath = file.text(*table + entry.d_un.d_val);
    } else if (entry.d_tag == DT_RUNPATH) {
      section.runpath = file.text(*table + entry.d_un.d_val);
    }
  }
  return section;
}

}  // namespace ljtrain::ljperf
