// The parts of a snapshot as typed values, with the place in the file for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/snapshot.h"
#include "base/errors.h"
#include "pickle.h"

namespace ljtrain::recompute {

// A value and where it stands: "device_traces[0][12].size".
struct Place {
  PickleValue value;
  std::string path;
};

// Typed access to a pickle. Everything throws UserError with the file and the place.
class SnapshotDocument {
 public:
  explicit SnapshotDocument(PickleDocument pickle) : pickle_(std::move(pickle)) {}

  PickleValue root() const { return pickle_.root(); }
  const std::string& name() const { return pickle_.name(); }
  std::size_t size() const { return pickle_.size(); }

  // The value of a key, nullptr when there is none. Dictionaries of a snapshot are small; a large
  // one is refused before it is searched again and again.
  const PickleValue* find(PickleValue dictionary, std::string_view key,
                          const std::string& path) const;
  const std::vector<PickleValue>& list(const PickleValue* value, const std::string& path) const;
  std::int64_t integer(PickleValue dictionary, std::string_view key, const std::string& path) const;
  std::optional<std::int64_t> optional_integer(PickleValue dictionary, std::string_view key,
                                               const std::string& path) const;
  std::string_view text(PickleValue dictionary, std::string_view key,
                        const std::string& path) const;
  std::optional<std::string_view> optional_text(PickleValue dictionary, std::string_view key,
                                                const std::string& path) const;
  // A size of memory: 0 to kLargestRequest.
  std::int64_t bytes(PickleValue dictionary, std::string_view key, const std::string& path) const;
  PoolId pool(PickleValue dictionary, std::string_view key, const std::string& path) const;
  base::UserError error(const std::string& path, std::string_view what) const;

 private:
  PickleDocument pickle_;
};

// Gives each allocation an owner's number.
class OwnerNames {
 public:
  OwnerNames(const SnapshotDocument& document, OwnerKind kind, std::vector<std::string>& names);
  // `entry`: a trace entry or block.
  std::int32_t of(PickleValue entry, const std::string& path);

 private:
  std::int32_t number(const std::string& name);
  std::string frame_label(const std::vector<PickleValue>& frames, const std::string& path) const;

  const SnapshotDocument& document_;
  OwnerKind kind_;
  std::vector<std::string>& names_;
  std::unordered_map<std::string, std::int32_t> numbers_;
  // Stacks are shared between entries: each list is read once.
  std::unordered_map<std::uint32_t, std::int32_t> by_frames_;
};

}  // namespace ljtrain::recompute
