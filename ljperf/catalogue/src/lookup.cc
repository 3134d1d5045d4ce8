#include "catalogue/lookup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::array<std::string_view, 3> kEngines{"deepspeed", "fsdp", "ddp"};
// Longer names are not worth comparing letter by letter.
constexpr std::size_t kLongestName = 64;

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  for (const CatalogueModel& model : catalogue_models()) {
    names.push_back(model.id);
  }
  return names;
}

std::string suggestion(std::string_view name, std::span<const std::string_view> names) {
  std::vector<std::string_view> nearest = nearest_names(name, names);
  if (nearest.empty()) {
    return fmt::format("there are: {}", fmt::join(names, ", "));
  }
  return fmt::format("did you mean {}?", fmt::join(nearest, ", "));
}

const CatalogueModel* find_by_id(std::string_view id) {
  for (const CatalogueModel& model : catalogue_models()) {
    if (model.id == id) {
      return &model;
    }
  }
  return nullptr;
}

}  // namespace

std::span<const std::string_view> engines() { return kEngines; }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: two letters back (for swaps), one letter back, and this letter's.
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::vector<std::string_view> nearest_names(std::string_view name,
                                            std::span<const std::string_view> names,
                                            std::size_t most) {
  // Those that contain the name, or lie in it, come first.
  std::vector<std::tuple<bool, std::size_t, std::string_view>> found;
  if (name.empty() || name.size() > kLongestName) {
    return {};
  }
  for (std::string_view known : names) {
    std::size_t distance = edit_distance(name, known);
    bool contains =
        known.find(name) != std::string_view::npos || name.find(known) != std::string_view::npos;
    if (contains || distance <= std::max(name.size(), known.size()) / 2) {
      found.emplace_back(!contains, distance, known);
    }
  }
  std::ranges::sort(found);
  std::vector<std::string_view> nearest;
  for (const auto& [apart, distance, known] : found) {
    if (nearest.size() < most) {
      nearest.push_back(known);
    }
  }
  return nearest;
}

std::string_view find_engine(std::string_view name) {
  if (name == "megatron") {
    throw base::user_error(
        "megatron/ is not there yet: Megatron-LM trains only with its CUDA kernels; use "
        "deepspeed/, "
        "fsdp/ or ddp/ (docs/decisions/megatron-engine.md)");
  }
  for (std::string_view engine : kEngines) {
    if (engine == name) {
      return engine;
    }
  }
  throw base::user_error("no engine `{}`: {}", name, suggestion(name, kEngines));
}

ModelReference find_model(std::string_view reference) {
  std::size_t slash = reference.find('/');
  if (slash == std::string_view::npos) {
    bool known = find_by_id(reference) != nullptr;
    std::vector<std::string_view> names = model_names();
    throw base::user_error(
        "model `{}` names no engine: write ENGINE/MODEL, as in deepspeed/{}{}", reference,
        known ? reference : "llama3-8b",
        known ? "" : fmt::format("; for the model, {}", suggestion(reference, names)));
  }
  std::string_view engine = find_engine(reference.substr(0, slash));
  std::string_view id = reference.substr(slash + 1);
  const CatalogueModel* model = find_by_id(id);
  if (model == nullptr) {
    std::vector<std::string_view> names = model_names();
    throw base::user_error("no model `{}`: {} (ljperf models lists all; --config FILE takes any)",
                           id, suggestion(id, names));
  }
  return {.engine = std::string(engine), .model = model};
}

}  // namespace ljtrain::ljperf
