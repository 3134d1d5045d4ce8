#include "transport/shared_memory/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace ljtrain::accl::shared_memory {
namespace {

constexpr std::uint64_t kMagic = 0x314c4343416a6cULL;  // "ljACCL1"
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::byte* map_memory(int fd, std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    throw error(ErrorCode::kSystem, "cannot map {} bytes of shared memory: {}", bytes,
                std::strerror(errno));
  }
  // Huge pages where the machine gives them to shared memory
  // (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise).
  ::madvise(base, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(base);
}

}  // namespace

class Segment::Mapping {
 public:
  Mapping(int fd, std::size_t bytes) : base_(map_memory(fd, bytes)), bytes_(bytes) {}
  ~Mapping() { ::munmap(base_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* base() const { return base_; }

  // The one of this process, by the memory's inode.
  static std::shared_ptr<Mapping> of(int fd, std::size_t bytes) {
    struct stat facts{};
    if (::fstat(fd, &facts) != 0) {
      throw error(ErrorCode::kSystem, "fstat of shared memory: {}", std::strerror(errno));
    }
    static std::mutex mutex;
    static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Mapping>> known;
    const std::scoped_lock lock(mutex);
    std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
    auto& entry = known[{facts.st_dev, facts.st_ino}];
    std::shared_ptr<Mapping> mapping = entry.lock();
    if (!mapping) {
      mapping = std::make_shared<Mapping>(fd, bytes);
      entry = mapping;
    }
    return mapping;
  }

 private:
  std::byte* base_;
  std::size_t bytes_;
};

Segment::Segment(base::UniqueFd memory, std::size_t bytes)
    : memory_(std::move(memory)),
      mapping_(Mapping::of(memory_.get(), bytes)),
      base_(mapping_->base()) {}

Segment Segment::create(int ranks, std::size_t stage_bytes, std::size_t channel_bytes) {
  base::UniqueFd memory(::memfd_create("accl", MFD_CLOEXEC));
  if (!memory) {
    throw error(ErrorCode::kSystem, "memfd_create: {}", std::strerror(errno));
  }
  const auto n = static_cast<std::size_t>(ranks);
  SegmentHeader layout{};
  layout.magic = kMagic;
  layout.layout_version = kLayoutVersion;
  layout.ranks = static_cast<std::uint32_t>(ranks);
  layout.stage_bytes = round_up(stage_bytes);
  layout.channel_bytes = round_up(channel_bytes);
  layout.stage_offset = round_up(sizeof(SegmentHeader) + n * sizeof(RankControl));
  layout.channel_offset = layout.stage_offset + n * layout.stage_bytes;
  layout.bytes = layout.channel_offset + 2 * n * n * layout.channel_bytes;
  if (::ftruncate(memory.get(), static_cast<off_t>(layout.bytes)) != 0) {
    throw error(ErrorCode::kSystem, "cannot size shared memory to {} bytes: {}", layout.bytes,
                std::strerror(errno));
  }
  Segment segment(std::move(memory), layout.bytes);
  SegmentHeader& header = segment.header();
  header.layout_version = layout.layout_version;
  header.ranks = layout.ranks;
  header.bytes = layout.bytes;
  header.stage_offset = layout.stage_offset;
  header.stage_bytes = layout.stage_bytes;
  header.channel_offset = layout.channel_offset;
  header.channel_bytes = layout.channel_bytes;
  header.magic = layout.magic;
  return segment;
}

Segment Segment::map(base::UniqueFd memory) {
  struct stat facts{};
  if (::fstat(memory.get(), &facts) != 0 ||
      static_cast<std::size_t>(facts.st_size) < sizeof(SegmentHeader)) {
    throw error(ErrorCode::kInternal, "the shared memory received is not ACCL's");
  }
  const auto bytes = static_cast<std::size_t>(facts.st_size);
  Segment segment(std::move(memory), bytes);
  const SegmentHeader& header = segment.header();
  if (header.magic != kMagic || header.layout_version != kLayoutVersion || header.bytes != bytes) {
    throw error(
        ErrorCode::kInternal,
        "the shared memory received has layout {}, this library has {}: all ranks must load "
        "the same ACCL",
        header.layout_version, kLayoutVersion);
  }
  return segment;
}

RankControl& Segment::control(int rank) const {
  return reinterpret_cast<RankControl*>(base_ + sizeof(SegmentHeader))[rank];
}

std::byte* Segment::stage(int rank) const {
  const SegmentHeader& facts = header();
  return base_ + facts.stage_offset + static_cast<std::size_t>(rank) * facts.stage_bytes;
}

std::byte* Segment::channel(int lane, int from, int to) const {
  const SegmentHeader& facts = header();
  const auto n = static_cast<std::size_t>(facts.ranks);
  const auto index = (static_cast<std::size_t>(lane) * n + static_cast<std::size_t>(from)) * n +
                     static_cast<std::size_t>(to);
  return base_ + facts.channel_offset + index * facts.channel_bytes;
}

}  // namespace ljtrain::accl::shared_memory
