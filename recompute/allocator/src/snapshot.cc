#include "allocator/snapshot.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "snapshot_document.h"

namespace ljtrain::recompute {
namespace {

constexpr std::uintmax_t kLargestFile = std::uintmax_t{16} << 30;
constexpr int kMostDevices = 1024;

enum class Action {
  kAllocate,
  kFreeRequested,
  kFreeCompleted,
  kReserve,
  kRelease,
  kOutOfMemory,
  kOther
};

Action action_of(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Action>, 8> kActions{
      {{"alloc", Action::kAllocate},
       {"free_requested", Action::kFreeRequested},
       {"free_completed", Action::kFreeCompleted},
       {"segment_alloc", Action::kReserve},
       {"segment_map", Action::kReserve},
       {"segment_free", Action::kRelease},
       {"segment_unmap", Action::kRelease},
       {"oom", Action::kOutOfMemory}}};
  for (const auto& [known, action] : kActions) {
    if (known == name) {
      return action;
    }
  }
  return Action::kOther;  // snapshot, user_defined, and what a later version may add
}

struct Entry {
  Action action = Action::kOther;
  std::int32_t owner = 0;
  std::int32_t pool = 0;
  std::int64_t address = 0;  // device_free for kOutOfMemory
  std::int64_t bytes = 0;
  std::int64_t stream = 0;
};

// A block in use when the snapshot was taken.
struct LiveBlock {
  std::int64_t bytes = 0;
  std::int32_t owner = 0;
  std::int32_t pool = 0;
  std::int64_t stream = 0;
};

class SnapshotReader {
 public:
  SnapshotReader(const SnapshotDocument& document, const SnapshotOptions& options)
      : document_(document),
        options_(options),
        owners_(document, options.owner, snapshot_.trace.owners) {}

  MemorySnapshot read() {
    if (document_.root().kind != PickleValue::Kind::kDictionary) {
      throw base::user_error(
          "{}: holds {} where a snapshot is a dictionary; write it with "
          "torch.cuda.memory._dump_snapshot(FILE)",
          document_.name(), kind_name(document_.root().kind));
    }
    choose_device();
    read_settings();
    read_entries();
    read_segments();
    if (entries_.empty() && live_blocks_.empty()) {
      throw base::user_error(
          "{}: device {} has no allocation in it; call "
          "torch.cuda.memory._record_memory_history() before the training",
          document_.name(), snapshot_.device);
    }
    build_trace();
    return std::move(snapshot_);
  }

 private:
  static constexpr const char* kTraces = "device_traces";
  static constexpr const char* kSegments = "segments";

  const std::vector<PickleValue>& list(std::string_view key) {
    return document_.list(document_.find(document_.root(), key, "the snapshot"), std::string(key));
  }

  // Each part of a true snapshot takes a byte of the file at least; a list that is repeated does
  // not, and could keep us reading for ever.
  void count_part(const std::string& path) {
    if (++parts_ > document_.size()) {
      throw document_.error(path, "repeats itself more often than a snapshot can");
    }
  }

  void choose_device() {
    const std::vector<PickleValue>& traces = list(kTraces);
    if (traces.size() > kMostDevices) {
      throw document_.error(kTraces, fmt::format("has {} devices", traces.size()));
    }
    for (std::size_t i = 0; i < traces.size(); ++i) {
      auto events = document_.list(&traces[i], fmt::format("{}[{}]", kTraces, i)).size();
      snapshot_.events_per_device.push_back(static_cast<std::int64_t>(events));
    }
    auto most = std::ranges::max_element(snapshot_.events_per_device);
    bool recorded = most != snapshot_.events_per_device.end() && *most > 0;
    if (options_.device >= 0) {
      snapshot_.device = options_.device;
    } else if (recorded) {
      snapshot_.device = static_cast<int>(most - snapshot_.events_per_device.begin());
    } else {
      snapshot_.device = fullest_device();
    }
    bool any_segment = std::ranges::any_of(list(kSegments), [&](PickleValue segment) {
      return document_.optional_integer(segment, "device", kSegments).value_or(0) ==
             snapshot_.device;
    });
    if (snapshot_.device >= static_cast<int>(traces.size()) && !any_segment) {
      throw base::user_error("{}: there is no device {}; it has {}", document_.name(),
                             snapshot_.device,
                             traces.empty() ? "none" : fmt::format("0 to {}", traces.size() - 1));
    }
  }

  // Without a recording: the device with the most reserved memory.
  int fullest_device() {
    std::map<std::int64_t, std::int64_t> reserved;
    for (PickleValue segment : list(kSegments)) {
      std::int64_t device = document_.optional_integer(segment, "device", kSegments).value_or(0);
      reserved[device] += document_.bytes(segment, "total_size", kSegments) >> 20;
    }
    std::int64_t best = 0;
    for (const auto& [device, mebibytes] : reserved) {
      if (mebibytes > reserved[best] && device >= 0 && device < kMostDevices) {
        best = device;
      }
    }
    return static_cast<int>(best);
  }

  std::int32_t pool_number(PoolId id) {
    auto [entry, fresh] =
        pools_.emplace(id, static_cast<std::int32_t>(snapshot_.trace.pools.size()));
    if (fresh) {
      snapshot_.trace.pools.push_back(id);
    }
    return entry->second;
  }

  void read_entries() {
    const std::vector<PickleValue>& traces = list(kTraces);
    if (snapshot_.device >= static_cast<int>(traces.size())) {
      return;
    }
    std::string path = fmt::format("{}[{}]", kTraces, snapshot_.device);
    const std::vector<PickleValue>& events = document_.list(&traces[snapshot_.device], path);
    entries_.reserve(events.size());
    for (std::size_t i = 0; i < events.size(); ++i) {
      read_entry(events[i], path, i);
    }
  }

  void read_entry(PickleValue value, const std::string& list_path, std::size_t index) {
    std::string path = fmt::format("{}[{}]", list_path, index);
    count_part(path);
    Entry entry;
    entry.action = action_of(document_.text(value, "action", path));
    if (entry.action == Action::kOther) {
      return;
    }
    entry.bytes = document_.bytes(value, "size", path);
    if (entry.action == Action::kOutOfMemory) {
      entry.address = document_.optional_integer(value, "device_free", path).value_or(0);
    } else {
      entry.address = document_.integer(value, "addr", path);
    }
    entry.stream = document_.optional_integer(value, "stream", path).value_or(0);
    if (entry.action == Action::kAllocate || entry.action == Action::kOutOfMemory ||
        entry.action == Action::kFreeRequested || entry.action == Action::kFreeCompleted) {
      if (entry.bytes == 0) {
        ++snapshot_.left_out;
        return;
      }
      entry.owner = owners_.of(value, path);
      entry.pool = pool_number(document_.pool(value, "pool_id", path));
    }
    entries_.push_back(entry);
  }

  void read_segments() {
    const std::vector<PickleValue>& segments = list(kSegments);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      std::string path = fmt::format("{}[{}]", kSegments, i);
      count_part(path);
      if (document_.optional_integer(segments[i], "device", path).value_or(0) == snapshot_.device) {
        read_segment(segments[i], path);
      }
    }
  }

  void read_segment(PickleValue segment, const std::string& path) {
    snapshot_.recorded.reserved_at_end =
        sum(snapshot_.recorded.reserved_at_end, document_.bytes(segment, "total_size", path), path);
    std::int64_t address = document_.integer(segment, "address", path);
    LiveBlock live;
    live.stream = document_.optional_integer(segment, "stream", path).value_or(0);
    live.pool = pool_number(document_.pool(segment, "segment_pool_id", path));
    const std::vector<PickleValue>& blocks =
        document_.list(document_.find(segment, "blocks", path), path + ".blocks");
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::string block_path = fmt::format("{}.blocks[{}]", path, i);
      count_part(block_path);
      std::int64_t bytes = document_.bytes(blocks[i], "size", block_path);
      if (document_.text(blocks[i], "state", block_path).starts_with("active")) {
        live.bytes =
            document_.optional_integer(blocks[i], "requested_size", block_path).value_or(bytes);
        if (live.bytes < 0 || live.bytes > bytes) {
          throw document_.error(block_path + ".requested_size", "is not between 0 and size");
        }
        live.owner = owners_.of(blocks[i], block_path);
        if (live.bytes > 0) {
          live_blocks_[document_.optional_integer(blocks[i], "address", block_path)
                           .value_or(address)] = live;
        }
      }
      address = sum(address, bytes, block_path);
    }
  }

  std::int64_t sum(std::int64_t a, std::int64_t b, const std::string& path) const {
    std::int64_t total = 0;
    if (__builtin_add_overflow(a, b, &total)) {
      throw document_.error(path, "adds up to more than 64 bits hold");
    }
    return total;
  }

  void read_settings() {
    const PickleValue* settings =
        document_.find(document_.root(), "allocator_settings", "the snapshot");
    if (settings == nullptr || settings->kind == PickleValue::Kind::kNone) {
      return;
    }
    std::string path = "allocator_settings";
    std::string text(
        document_.optional_text(*settings, "PYTORCH_CUDA_ALLOC_CONF", path).value_or(""));
    try {
      parse_allocator_settings(text, path);
      snapshot_.settings = text;
    } catch (const base::UserError& error) {
      snapshot_.settings_problem = error.what();
    }
  }

  void build_trace();

  const SnapshotDocument& document_;
  const SnapshotOptions& options_;
  MemorySnapshot snapshot_;
  OwnerNames owners_;
  std::map<PoolId, std::int32_t> pools_{{PoolId{0, 0}, 0}};
  std::vector<Entry> entries_;
  std::map<std::int64_t, LiveBlock> live_blocks_;  // by address
  std::size_t parts_ = 0;
};

// Turns addresses into numbered allocations, and finds out what was there before the recording.
class TraceBuilder {
 public:
  TraceBuilder(const SnapshotDocument& document, MemorySnapshot& snapshot,
               const std::vector<Entry>& entries)
      : document_(document), snapshot_(snapshot), entries_(entries) {}

  void build(const std::map<std::int64_t, LiveBlock>& live_blocks) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      add(i);
    }
    for (const auto& [address, block] : live_blocks) {
      if (!live_.contains(address)) {
        before_.push_back({address, block});
      }
    }
    put_together();
    summarize();
  }

 private:
  using Kind = TraceEvent::Kind;
  struct Live {
    std::int64_t number = 0;
    bool freeing = false;
  };
  struct Before {
    std::int64_t address = 0;
    LiveBlock block;
  };
  // What the trace's events are made of; reserved bytes go along to be added up later.
  struct Step {
    TraceEvent event;
    bool is_event = false;
    std::int64_t reserved = 0;
    std::int64_t device_free = 0;
  };

  void add(std::size_t index) {
    const Entry& entry = entries_[index];
    switch (entry.action) {
      case Action::kAllocate:
        allocate(entry);
        break;
      case Action::kFreeRequested:
        request_free(entry, index + 1 < entries_.size() &&
                                entries_[index + 1].action == Action::kFreeCompleted &&
                                entries_[index + 1].address == entry.address);
        break;
      case Action::kFreeCompleted:
        complete_free(entry);
        break;
      case Action::kReserve:
        steps_.push_back({.event = {}, .reserved = entry.bytes});
        break;
      case Action::kRelease:
        steps_.push_back({.event = {}, .reserved = -entry.bytes});
        break;
      case Action::kOutOfMemory:
        push({.kind = Kind::kOutOfMemory,
              .owner = entry.owner,
              .pool = entry.pool,
              .bytes = entry.bytes,
              .stream = entry.stream});
        steps_.back().device_free = std::max<std::int64_t>(0, entry.address);
        break;
      case Action::kOther:
        break;
    }
  }

  void push(const TraceEvent& event) { steps_.push_back({.event = event, .is_event = true}); }

  void allocate(const Entry& entry) {
    auto found = live_.find(entry.address);
    if (found != live_.end()) {  // its end was not recorded
      push({.kind = found->second.freeing ? Kind::kComplete : Kind::kFree,
            .allocation = found->second.number});
      ++snapshot_.left_out;
    }
    live_[entry.address] = {.number = allocations_};
    push({.kind = Kind::kAllocate,
          .owner = entry.owner,
          .pool = entry.pool,
          .allocation = allocations_,
          .bytes = entry.bytes,
          .stream = entry.stream});
    ++allocations_;
  }

  // The number of the allocation at the entry's address, one from before the recording if need be:
  // those are -1, -2, ... until all are known.
  Live& live_at(const Entry& entry) {
    auto [found, fresh] = live_.try_emplace(entry.address);
    if (fresh) {
      before_.push_back({entry.address,
                         {.bytes = entry.bytes,
                          .owner = entry.owner,
                          .pool = entry.pool,
                          .stream = entry.stream}});
      found->second.number = -static_cast<std::int64_t>(before_.size());
    }
    return found->second;
  }

  void request_free(const Entry& entry, bool at_once) {
    Live& live = live_at(entry);
    if (live.freeing) {
      ++snapshot_.left_out;
      return;
    }
    live.freeing = true;
    if (!at_once) {
      push({.kind = Kind::kFreeLater, .allocation = live.number});
      later_.insert_or_assign(live.number, true);
    }
  }

  void complete_free(const Entry& entry) {
    Live live = live_at(entry);
    push({.kind = later_.erase(live.number) > 0 ? Kind::kComplete : Kind::kFree,
          .allocation = live.number});
    live_.erase(entry.address);
  }

  // Allocations from before come first, by address, as if the program had made them in that order.
  void put_together() {
    std::vector<std::size_t> order(before_.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return before_[i].address; });
    auto count = static_cast<std::int64_t>(before_.size());
    std::vector<std::int64_t> number(before_.size());
    Trace& trace = snapshot_.trace;
    for (std::int64_t i = 0; i < count; ++i) {
      const LiveBlock& block = before_[order[i]].block;
      number[order[i]] = i;
      trace.events.push_back({.kind = Kind::kAllocate,
                              .owner = block.owner,
                              .pool = block.pool,
                              .allocation = i,
                              .bytes = block.bytes,
                              .stream = block.stream});
    }
    trace.before = count;
    trace.allocations = count + allocations_;
    snapshot_.live_before = count;
    for (Step& step : steps_) {
      std::int64_t& allocation = step.event.allocation;
      allocation = allocation < 0 ? number[-allocation - 1] : allocation + count;
    }
  }

  // Adds up what the events say, backwards from the end for the reserved memory.
  void summarize() {
    Trace& trace = snapshot_.trace;
    RecordedMemory& recorded = snapshot_.recorded;
    std::int64_t live = 0;
    std::vector<std::int64_t> bytes(trace.allocations);
    for (const TraceEvent& event : trace.events) {
      bytes[event.allocation] = event.bytes;
      live = plus(live, event.bytes);
    }
    std::int64_t reserved = recorded.reserved_at_end;
    for (const Step& step : steps_) {
      reserved = plus(reserved, -step.reserved);
    }
    reserved = std::max<std::int64_t>(reserved, 0);
    note(live, reserved, trace.before - 1);
    for (const Step& step : steps_) {
      auto index = static_cast<std::int64_t>(trace.events.size());
      if (step.is_event) {
        apply(step, bytes, live, reserved, index);
        trace.events.push_back(step.event);
      } else {
        reserved = plus(reserved, step.reserved);
        ++(step.reserved > 0 ? recorded.device_allocations : recorded.device_frees);
        --index;
      }
      note(live, reserved, index);
    }
    recorded.live_at_end = live;
  }

  void apply(const Step& step, std::vector<std::int64_t>& bytes, std::int64_t& live,
             std::int64_t reserved, std::int64_t index) {
    const TraceEvent& event = step.event;
    if (event.kind == Kind::kAllocate) {
      bytes[event.allocation] = event.bytes;
      live = plus(live, event.bytes);
    } else if (event.kind == Kind::kFree || event.kind == Kind::kFreeLater) {
      live -= bytes[event.allocation];
    } else if (event.kind == Kind::kOutOfMemory) {
      snapshot_.recorded.failures.push_back({.event = index,
                                             .requested = event.bytes,
                                             .device_free = step.device_free,
                                             .reserved = reserved,
                                             .live = live,
                                             .owner = event.owner});
    }
  }

  // More than a petabyte in use is no trace of a device.
  std::int64_t plus(std::int64_t a, std::int64_t b) const {
    if (std::abs(a + b) > kLargestRequest) {
      throw document_.error("device_traces", "adds up to more memory than a device can have");
    }
    return a + b;
  }

  void note(std::int64_t live, std::int64_t reserved, std::int64_t event) {
    RecordedMemory& recorded = snapshot_.recorded;
    if (live > recorded.peak_live) {
      recorded.peak_live = live;
      recorded.peak_live_event = event;
    }
    if (reserved > recorded.peak_reserved ||
        (reserved == recorded.peak_reserved && live > recorded.live_at_peak_reserved)) {
      recorded.peak_reserved = reserved;
      recorded.peak_reserved_event = event;
      recorded.live_at_peak_reserved = live;
    }
  }

  const SnapshotDocument& document_;
  MemorySnapshot& snapshot_;
  const std::vector<Entry>& entries_;
  std::unordered_map<std::int64_t, Live> live_;  // by address
  std::unordered_map<std::int64_t, bool> later_;
  std::vector<Before> before_;
  std::vector<Step> steps_;
  std::int64_t allocations_ = 0;
};

void SnapshotReader::build_trace() {
  TraceBuilder(document_, snapshot_, entries_).build(live_blocks_);
}

}  // namespace

MemorySnapshot parse_memory_snapshot(std::string bytes, const std::string& name,
                                     const SnapshotOptions& options) {
  SnapshotDocument document(PickleDocument::parse(std::move(bytes), name));
  return SnapshotReader(document, options).read();
}

MemorySnapshot read_memory_snapshot(const std::filesystem::path& file,
                                    const SnapshotOptions& options) {
  std::error_code problem;
  std::uintmax_t size = std::filesystem::is_regular_file(file, problem)
                            ? std::filesystem::file_size(file, problem)
                            : 0;
  std::ifstream stream(file, std::ios::binary);
  if (problem || !std::filesystem::is_regular_file(file, problem) || !stream) {
    throw base::user_error("{}: cannot be read: {}", file.string(),
                           problem ? problem.message() : "no such file, or no permission");
  }
  if (size > kLargestFile) {
    throw base::user_error(
        "{}: has {} bytes; at most 16 GiB are read: record with fewer max_entries", file.string(),
        size);
  }
  std::string bytes(size, '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<std::size_t>(stream.gcount()));
  return parse_memory_snapshot(std::move(bytes), file.string(), options);
}

}  // namespace ljtrain::recompute
