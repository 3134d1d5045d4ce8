#include "comm/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/errors.h"
#include "benchmark/python_environment.h"
#include "catalogue/lookup.h"
#include "comm/sizes.h"

namespace ljtrain::ljperf {
namespace {

using ljperf_comm::Op;
using ljperf_comm::Type;

constexpr std::array kPeers{"gloo", "oneccl", "mpi", "deepspeed_shm", "nccl"};
constexpr int kMostRanks = 64;  // sums of small whole numbers stay exact in every type up to here
constexpr int kMostBlocks = 10'000;

template <typename Names>
std::size_t find(const char* option, const std::string& word, const Names& names) {
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (word == names[i]) {
      return i;
    }
  }
  std::vector<std::string_view> known(std::begin(names), std::end(names));
  std::vector<std::string_view> near = nearest_names(word, known);
  throw base::user_error("{} {}: there is none of that name{}; there are {}", option, word,
                         near.empty() ? "" : fmt::format(" (near: {})", fmt::join(near, ", ")),
                         fmt::join(known, ", "));
}

template <typename Value, typename Names>
std::vector<Value> find_all(const char* option, const std::vector<std::string>& words,
                            const Names& names) {
  std::vector<Value> found;
  for (const std::string& word : words) {
    if (word == "all") {
      found.clear();
      for (std::size_t i = 0; i < std::size(names); ++i) {
        found.push_back(static_cast<Value>(i));
      }
      return found;
    }
    auto value = static_cast<Value>(find(option, word, names));
    if (std::find(found.begin(), found.end(), value) == found.end()) {
      found.push_back(value);
    }
  }
  return found;
}

void check_numbers(const CommOptions& options) {
  if (options.blocks < 1 || options.blocks > kMostBlocks) {
    throw base::user_error("--blocks {}: must be between 1 and {}", options.blocks, kMostBlocks);
  }
  if (!(options.min_time >= 0.1 && options.min_time <= 60'000)) {
    throw base::user_error("--min-time {}: must be between 0.1 and 60000 milliseconds",
                           options.min_time);
  }
  if (!(options.timeout >= 1 && options.timeout <= 86'400)) {
    throw base::user_error("--timeout {}: must be between 1 and 86400 seconds", options.timeout);
  }
}

// Names and paths of what is measured beside ACCL.
void check_environment(const CommPlan& plan) {
  for (const std::string& peer : plan.options.peers) {
    if (peer == "accl" || peer == "memcpy") {
      throw base::user_error("--peers {}: it is always measured; leave it out (there are {})", peer,
                             fmt::join(kPeers, ", "));
    }
    find("--peers", peer, kPeers);
  }
  for (const std::string& interface : plan.options.interfaces) {
    find("--interface", interface, std::array{"c", "c10d", "both"});
  }
  find_python(plan.options.python);  // throws when a path was named where nothing is
  std::error_code error;
  const std::filesystem::path& root = plan.options.oneccl_root;
  if (!root.empty() && !std::filesystem::is_directory(root, error)) {
    throw base::user_error("--oneccl-root {}: no such folder", root.string());
  }
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

CommPlan understand(const CommOptions& options, int cores) {
  CommPlan plan;
  plan.options = options;
  plan.ops = find_all<Op>("--op", options.ops, ljperf_comm::kOpNames);
  plan.dtypes = find_all<Type>("--dtype", options.dtypes, ljperf_comm::kTypeNames);
  plan.sizes = parse_sizes(fmt::format("{}", fmt::join(options.sizes, ",")));
  check_numbers(options);
  plan.ranks =
      options.ranks.empty() ? std::vector<int>{std::clamp(cores, 2, kMostRanks)} : options.ranks;
  for (auto at = plan.ranks.begin(); at != plan.ranks.end();) {
    at = std::find(plan.ranks.begin(), at, *at) == at ? std::next(at) : plan.ranks.erase(at);
  }
  for (int ranks : plan.ranks) {
    if (ranks < 2 || ranks > kMostRanks) {
      throw base::user_error("--ranks {}: must be between 2 and {}", ranks, kMostRanks);
    }
  }
  check_environment(plan);
  const bool both = has(options.interfaces, "both");
  plan.c = options.interfaces.empty() || both || has(options.interfaces, "c");
  plan.c10d =
      both || has(options.interfaces, "c10d") ||
      (options.interfaces.empty() && (has(options.peers, "gloo") || has(options.peers, "nccl")));
  return plan;
}

}  // namespace ljtrain::ljperf
