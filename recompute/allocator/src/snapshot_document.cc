#include "snapshot_document.h"

#include <algorithm>
#include <array>

namespace ljtrain::recompute {
namespace {

using Kind = PickleValue::Kind;

constexpr std::size_t kMostKeys = 64;
constexpr std::size_t kMostFrames = 1024;

// Where PyTorch calls the code that asked for memory: the caller's frame says more.
constexpr std::array<std::string_view, 6> kCallingFolders{
    "/torch/nn/", "/torch/_", "/torch/utils/", "/torch/autograd/", "/torch/fx/", "/torch/library"};

bool is_calling_frame(std::string_view file) {
  return std::ranges::any_of(kCallingFolders, [&](std::string_view folder) {
    return file.find(folder) != std::string_view::npos;
  });
}

// "a/b/c/d.py" -> "c/d.py".
std::string_view last_two(std::string_view file) {
  std::size_t slash = file.rfind('/');
  if (slash == std::string_view::npos || slash == 0) {
    return file;
  }
  slash = file.rfind('/', slash - 1);
  return slash == std::string_view::npos ? file : file.substr(slash + 1);
}

// Text for people: whatever is not printable ASCII or a byte of UTF-8 becomes a question mark.
std::string printable(std::string_view text) {
  std::string clean(text.substr(0, 300));
  for (char& c : clean) {
    auto byte = static_cast<unsigned char>(c);
    c = byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return clean;
}

}  // namespace

base::UserError SnapshotDocument::error(const std::string& path, std::string_view what) const {
  return base::user_error("{}: {}: {}", name(), path, what);
}

const PickleValue* SnapshotDocument::find(PickleValue dictionary, std::string_view key,
                                          const std::string& path) const {
  if (dictionary.kind != Kind::kDictionary) {
    throw error(path,
                fmt::format("is {} where a dictionary should stand", kind_name(dictionary.kind)));
  }
  const auto& entries = pickle_.dictionary(dictionary);
  if (entries.size() > kMostKeys) {
    throw error(path, fmt::format("has {} keys, which no snapshot has", entries.size()));
  }
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->first.kind == Kind::kText && pickle_.text(entry->first) == key) {
      return &entry->second;
    }
  }
  return nullptr;
}

const std::vector<PickleValue>& SnapshotDocument::list(const PickleValue* value,
                                                       const std::string& path) const {
  if (value == nullptr) {
    throw error(path, "is missing; this is no memory snapshot of PyTorch");
  }
  if (value->kind != Kind::kList) {
    throw error(path, fmt::format("is {} where a list should stand", kind_name(value->kind)));
  }
  return pickle_.list(*value);
}

std::optional<std::int64_t> SnapshotDocument::optional_integer(PickleValue dictionary,
                                                               std::string_view key,
                                                               const std::string& path) const {
  const PickleValue* value = find(dictionary, key, path);
  if (value == nullptr || value->kind == Kind::kNone) {
    return std::nullopt;
  }
  if (value->kind != Kind::kInteger) {
    throw error(fmt::format("{}.{}", path, key),
                fmt::format("is {} where a whole number should stand", kind_name(value->kind)));
  }
  return value->integer;
}

std::int64_t SnapshotDocument::integer(PickleValue dictionary, std::string_view key,
                                       const std::string& path) const {
  std::optional<std::int64_t> value = optional_integer(dictionary, key, path);
  if (!value) {
    throw error(fmt::format("{}.{}", path, key), "is missing");
  }
  return *value;
}

std::optional<std::string_view> SnapshotDocument::optional_text(PickleValue dictionary,
                                                                std::string_view key,
                                                                const std::string& path) const {
  const PickleValue* value = find(dictionary, key, path);
  if (value == nullptr || value->kind == Kind::kNone) {
    return std::nullopt;
  }
  if (value->kind != Kind::kText) {
    throw error(fmt::format("{}.{}", path, key),
                fmt::format("is {} where a text should stand", kind_name(value->kind)));
  }
  return pickle_.text(*value);
}

std::string_view SnapshotDocument::text(PickleValue dictionary, std::string_view key,
                                        const std::string& path) const {
  std::optional<std::string_view> value = optional_text(dictionary, key, path);
  if (!value) {
    throw error(fmt::format("{}.{}", path, key), "is missing");
  }
  return *value;
}

std::int64_t SnapshotDocument::bytes(PickleValue dictionary, std::string_view key,
                                     const std::string& path) const {
  std::int64_t value = integer(dictionary, key, path);
  if (value < 0 || value > kLargestRequest) {
    throw error(fmt::format("{}.{}", path, key), fmt::format("{} is no size in bytes", value));
  }
  return value;
}

PoolId SnapshotDocument::pool(PickleValue dictionary, std::string_view key,
                              const std::string& path) const {
  const PickleValue* value = find(dictionary, key, path);
  if (value == nullptr || value->kind == Kind::kNone) {
    return {0, 0};
  }
  const std::vector<PickleValue>& pair = list(value, fmt::format("{}.{}", path, key));
  if (pair.size() != 2 || pair[0].kind != Kind::kInteger || pair[1].kind != Kind::kInteger) {
    throw error(fmt::format("{}.{}", path, key), "is no pair of whole numbers");
  }
  return {pair[0].integer, pair[1].integer};
}

OwnerNames::OwnerNames(const SnapshotDocument& document, OwnerKind kind,
                       std::vector<std::string>& names)
    : document_(document), kind_(kind), names_(names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    numbers_.emplace(names[i], static_cast<std::int32_t>(i));
  }
}

std::int32_t OwnerNames::number(const std::string& name) {
  auto [entry, fresh] = numbers_.emplace(name, static_cast<std::int32_t>(names_.size()));
  if (fresh) {
    names_.push_back(name);
  }
  return entry->second;
}

std::int32_t OwnerNames::of(PickleValue entry, const std::string& path) {
  if (kind_ != OwnerKind::kFrame) {
    std::string_view key = kind_ == OwnerKind::kCategory ? "category" : "user_metadata";
    std::string_view text = document_.optional_text(entry, key, path).value_or("");
    return text.empty() ? 0 : number(printable(text));
  }
  const PickleValue* frames = document_.find(entry, "frames", path);
  if (frames == nullptr || frames->kind == Kind::kNone) {
    return number("(no stack recorded)");
  }
  const std::vector<PickleValue>& list = document_.list(frames, path + ".frames");
  auto known = by_frames_.find(frames->index);
  if (known == by_frames_.end()) {
    known = by_frames_.emplace(frames->index, number(frame_label(list, path + ".frames"))).first;
  }
  return known->second;
}

// The innermost Python frame that is not PyTorch calling into the program's code.
std::string OwnerNames::frame_label(const std::vector<PickleValue>& frames,
                                    const std::string& path) const {
  std::string best;
  int best_rank = 0;
  for (std::size_t i = 0; i < std::min(frames.size(), kMostFrames) && best_rank < 3; ++i) {
    std::string_view file = document_.optional_text(frames[i], "filename", path).value_or("");
    bool python = file.ends_with(".py");
    int rank = !python ? 1 : is_calling_frame(file) ? 2 : 3;
    if (rank > best_rank) {
      best_rank = rank;
      std::string_view function = document_.optional_text(frames[i], "name", path).value_or("");
      std::int64_t line = document_.optional_integer(frames[i], "line", path).value_or(0);
      best = python ? fmt::format("{}:{} {}", printable(last_two(file)), line, printable(function))
                    : printable(function.empty() ? file : function);
    }
  }
  // Autograd runs the backward pass on a thread of its own, without Python frames.
  return best.empty() ? "(no Python stack, as in the backward pass)" : best;
}

}  // namespace ljtrain::recompute
