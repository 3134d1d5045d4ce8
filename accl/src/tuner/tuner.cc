#include "tuner/tuner.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "algorithm/session.h"
#include "communicator/environment.h"
#include "trace/log.h"
#include "tuner/machine.h"

namespace ljtrain::accl::tuner {
namespace {

using shared_memory::Tuning;

constexpr std::array<std::string_view, kAlgorithms> kNames = {
    "one_step", "staged", "ring", "tree", "recursive_doubling", "halving_doubling"};

constexpr std::uint32_t bit(Algorithm algorithm) { return 1U << static_cast<unsigned>(algorithm); }
constexpr std::uint32_t kDirect = bit(Algorithm::kOneStep) | bit(Algorithm::kStaged);
// Of ACCL_CHUNK_BYTES: smaller ones are all hand-over, larger ones leave every cache.
constexpr std::uint64_t kLeastChunk = 4 << 10;
constexpr std::uint64_t kMostChunk = 64 << 20;
constexpr std::uint32_t kAll = (1U << kAlgorithms) - 1;

// "All_Reduce" -> "allreduce".
std::string letters_of(std::string_view name) {
  std::string lower;
  for (const char letter : name) {
    if (letter != '_' && letter != ' ') {
      lower += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
  }
  return lower;
}

std::uint32_t bits_of(std::string_view name) {
  const std::string lower = letters_of(name);
  if (lower.empty()) {
    return 0;
  }
  if (lower == "ring") {
    return bit(Algorithm::kRing);
  }
  if (lower == "tree") {
    return bit(Algorithm::kTree);
  }
  if (lower == "recursive" || lower == "pat") {
    return bit(Algorithm::kRecursiveDoubling) | bit(Algorithm::kHalvingDoubling);
  }
  if (lower == "direct") {
    return kDirect;
  }
  // NCCL's own, for hardware that hosts do not have.
  for (const std::string_view known :
       {"collnetdirect", "collnetchain", "collnet", "nvls", "nvlstree"}) {
    if (lower == known) {
      trace::warn(trace::kNoRank,
                  fmt::format("NCCL_ALGO: ACCL has no {}, the name is passed over", name));
      return 0;
    }
  }
  throw error(ErrorCode::kInvalidArgument,
              "NCCL_ALGO: there is no algorithm `{}`; the names are Ring, Tree, Recursive and "
              "Direct, as in NCCL_ALGO=Ring,Tree, ^Ring, or Ring;allreduce:Tree",
              name);
}

// "ring,tree" or "^ring".
std::uint32_t bits_of_list(std::string_view list) {
  const bool excludes = list.starts_with('^');
  list.remove_prefix(excludes ? 1 : 0);
  std::uint32_t named = 0;
  while (!list.empty()) {
    const auto comma = list.find(',');
    named |= bits_of(list.substr(0, comma));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  if (named == 0) {
    return kAll;
  }
  const std::uint32_t left = excludes ? kAll & ~named : named;
  if (left == 0) {
    throw error(ErrorCode::kInvalidArgument, "NCCL_ALGO: ^ leaves no algorithm");
  }
  return left;
}

double log2_ceil(int ranks) { return std::ceil(std::log2(static_cast<double>(ranks))); }

// Predicted seconds. A hand-over `h` is what it costs until one rank sees what another has done;
// looking at a further rank that has done its part costs a cache line `l`. `c` copies a byte within
// the caches (into the stages or channels), `m` copies it to where the result belongs, beyond the
// caches if that is large; `r` reads and adds one.
double predict(const Tuning& tuning, Algorithm algorithm, OperationKind kind, double bytes,
               int ranks, double widening) {
  const double n = ranks;
  const double h = tuning.hand_over_s;
  const double l = tuning.line_s;
  const double all = h + (n - 1) * l;
  const bool reduces = kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
                       kind == OperationKind::kReduceScatter;
  const bool spreads = kind == OperationKind::kAllGather || kind == OperationKind::kGather ||
                       kind == OperationKind::kAllToAll || kind == OperationKind::kReduceScatter ||
                       kind == OperationKind::kScatter;
  // What one rank gives and gets.
  const double volume = spreads ? n * bytes : bytes;
  const double c = tuning.copy_s_per_byte;
  const double m = volume >= static_cast<double>(tuning.streaming_bytes)
                       ? std::max(c, tuning.memory_copy_s_per_byte)
                       : c;
  const double r = tuning.reduce_s_per_byte;
  const double log_n = log2_ceil(ranks);
  const auto chunks = [&](double whole) {
    return std::ceil(std::max(1.0, whole / static_cast<double>(tuning.chunk_bytes)));
  };
  switch (algorithm) {
    case Algorithm::kOneStep:
      return all + bytes * c + (reduces ? n * bytes * r : volume * c);
    case Algorithm::kStaged:
      if (kind == OperationKind::kAllReduce || kind == OperationKind::kReduce) {
        return all * (1 + 2 * chunks(bytes)) + bytes * ((c + m) * (n - 1) / n + r);
      }
      if (kind == OperationKind::kReduceScatter) {
        return all * (1 + chunks(bytes)) + volume * (m + r);
      }
      return all * (1 + chunks(bytes)) + bytes * c + volume * m;
    case Algorithm::kRing: {
      const double steps = kind == OperationKind::kAllReduce ? 2 * (n - 1) : n - 1;
      const double share = spreads ? bytes : bytes / n;
      // Its own share, which no step brings; then each step's, in chunks that follow each other.
      return all + share * m +
             steps * (h + l * chunks(share) + share * widening * (c + m + (reduces ? r : 0)));
    }
    case Algorithm::kTree:
      return all + (kind == OperationKind::kAllReduce ? 2 : 1) *
                       (log_n * (h + l) + l * chunks(bytes) +
                        bytes * widening * (c + m + (reduces ? r : 0)) * std::min(log_n, 2.0));
    case Algorithm::kRecursiveDoubling:
      return all + log_n * (h + l * chunks(bytes) + bytes * widening * (c + m + r));
    case Algorithm::kHalvingDoubling:
      return all + 2 * log_n * (h + l) + 2 * l * chunks(bytes) +
             2 * bytes * widening * (n - 1) / n * (c + m + r / 2);
  }
  return 0;
}

bool can_serve(Algorithm algorithm, OperationKind kind, std::size_t bytes, int ranks,
               const Tuning& tuning) {
  const auto n = static_cast<std::size_t>(ranks);
  const bool blocks = kind == OperationKind::kReduceScatter || kind == OperationKind::kScatter;
  switch (algorithm) {
    case Algorithm::kOneStep:
      return (blocks ? bytes * n : bytes) <= tuning.one_shot_bytes;
    case Algorithm::kStaged:
      return kind != OperationKind::kBarrier;
    case Algorithm::kRing:
      return kind == OperationKind::kAllReduce || kind == OperationKind::kAllGather ||
             kind == OperationKind::kReduceScatter || kind == OperationKind::kBroadcast ||
             kind == OperationKind::kReduce;
    case Algorithm::kTree:
      return kind == OperationKind::kAllReduce || kind == OperationKind::kBroadcast ||
             kind == OperationKind::kReduce;
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kHalvingDoubling:
      return kind == OperationKind::kAllReduce;
  }
  return false;
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  return kNames.at(static_cast<std::size_t>(algorithm));
}

AllowedAlgorithms allowed_algorithms(const char* nccl_algo) {
  AllowedAlgorithms allowed;
  allowed.fill(kAll);
  std::string_view text = nccl_algo == nullptr ? "" : nccl_algo;
  while (!text.empty()) {
    const auto end = text.find(';');
    std::string_view entry = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const auto colon = entry.find(':');
    const std::string function =
        colon == std::string_view::npos ? "" : letters_of(entry.substr(0, colon));
    entry.remove_prefix(colon == std::string_view::npos ? 0 : colon + 1);
    const std::uint32_t bits = bits_of_list(entry);
    bool is_known = false;
    for (int kind = 0; kind < kOperationKinds; ++kind) {
      if (function.empty() ||
          function == letters_of(accl::name_of(static_cast<OperationKind>(kind)))) {
        allowed[static_cast<std::size_t>(kind)] = bits;
        is_known = true;
      }
    }
    if (!is_known) {
      throw error(ErrorCode::kInvalidArgument,
                  "NCCL_ALGO: there is no function `{}`; write it as in allreduce:Ring", function);
    }
  }
  return allowed;
}

Tuning choose(const std::vector<bootstrap::Hello>& hellos) {
  Tuning tuning{};
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (std::uint32_t& allowed : tuning.allowed_algorithms) {
    allowed = kAll;
  }
  tuning.light_publish = 1;
  for (const auto& hello : hellos) {
    CPU_OR(&cores, &cores, &hello.cores);
    tuning.deterministic |= hello.deterministic;
    for (int kind = 0; kind < kOperationKinds; ++kind) {
      tuning.allowed_algorithms[kind] &= hello.allowed_algorithms[kind];
    }
    tuning.light_publish &= hello.heavy_barrier;
  }
  tuning.cores = static_cast<std::uint32_t>(CPU_COUNT(&cores));
  tuning.oversubscribed = hellos.size() > tuning.cores ? 1 : 0;
  const Machine& measured = machine();
  tuning.line_s = measured.hand_over_s;
  // With more ranks than cores everybody has to have had a turn.
  const double turns = std::ceil(static_cast<double>(hellos.size()) / std::max(1U, tuning.cores));
  tuning.hand_over_s =
      tuning.oversubscribed != 0 ? turns * measured.switch_s : measured.hand_over_s;
  tuning.copy_s_per_byte = measured.copy_s_per_byte;
  tuning.memory_copy_s_per_byte = measured.memory_copy_s_per_byte;
  tuning.reduce_s_per_byte = measured.reduce_s_per_byte;
  tuning.process_read_s_per_byte = measured.process_read_s_per_byte;
  // Every rank's share of a chunk is some cache lines long.
  const std::uint64_t line = shared_memory::kCacheLine;
  const std::uint64_t wanted =
      environment::bytes("ACCL_CHUNK_BYTES", 256 << 10, kLeastChunk, kMostChunk);
  tuning.chunk_bytes =
      std::max<std::uint64_t>((wanted + line - 1) / line * line, 4 * line * hellos.size());
  tuning.one_shot_bytes = environment::bytes("ACCL_ONE_STEP_BYTES", 16 << 10, 0, kOneShotArea);
  const long last_level = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  tuning.streaming_bytes = environment::bytes(
      "ACCL_STREAMING_BYTES",
      last_level > 0 ? static_cast<std::uint64_t>(last_level) / 4 : std::uint64_t{8} << 20, 0,
      std::uint64_t{1} << 62);
  return tuning;
}

std::vector<Candidate> candidates(const Tuning& tuning, OperationKind kind, std::size_t bytes,
                                  int ranks, double widening) {
  // The direct algorithms combine in rank order wherever ranks run; the others in an order of their
  // own.
  const std::uint32_t allowed =
      tuning.deterministic != 0 ? kDirect : tuning.allowed_algorithms[static_cast<int>(kind)];
  std::vector<Candidate> found;
  for (const bool everything : {false, true}) {
    for (int i = 0; i < kAlgorithms && (found.empty() || !everything); ++i) {
      const auto algorithm = static_cast<Algorithm>(i);
      if ((everything || (allowed & bit(algorithm)) != 0) &&
          can_serve(algorithm, kind, bytes, ranks, tuning)) {
        found.push_back({algorithm, predict(tuning, algorithm, kind, static_cast<double>(bytes),
                                            ranks, widening)});
      }
    }
  }
  // Of equals, the first.
  std::ranges::sort(found, {}, [](const Candidate& candidate) {
    return std::pair(candidate.seconds, candidate.algorithm);
  });
  return found;
}

Algorithm Choices::choose(OperationKind kind, std::size_t bytes, double widening) {
  Choice& known = choices_[(bytes / 8 * 31 + static_cast<std::size_t>(kind)) % choices_.size()];
  if (known.kind != kind || known.bytes != bytes || known.widening != widening) {
    known = {kind, bytes, widening,
             candidates(tuning_, kind, bytes, ranks_, widening).front().algorithm};
  }
  return known.algorithm;
}

bool is_process_read_faster(const Tuning& tuning, std::size_t bytes) {
  // The stages copy twice, the second time beyond the caches when it is large.
  const double staged = bytes >= tuning.streaming_bytes
                            ? tuning.copy_s_per_byte + tuning.memory_copy_s_per_byte
                            : 2 * tuning.copy_s_per_byte;
  return tuning.process_read_s_per_byte > 0 && tuning.process_read_s_per_byte < staged;
}

}  // namespace ljtrain::accl::tuner
