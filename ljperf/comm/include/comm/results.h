// What a run of `ljperf comm` found: one row for each library, operation and size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cnp/statistics.h"
#include "comm/options.h"

namespace ljtrain::ljperf {

struct CommRow {
  std::string library;
  Interface interface = Interface::kC;
  ljperf_comm::Op op{};
  ljperf_comm::Type dtype{};
  int ranks = 0;
  std::uint64_t bytes = 0;  // as nccl-tests counts them
  bool in_place = false;
  bool registered = false;
  long iterations = 0;         // of a block
  std::vector<double> blocks;  // seconds of one operation, a block each, of the slowest rank; in
                               // the order of the rounds
  std::optional<std::uint64_t> wrong;  // elements; unset: not checked

  // How many times as fast as this row ACCL is (interface and form of call the same), from pairs of
  // blocks of one round. On ACCL's own rows: how many times as fast as memcpy it is. Unset where
  // there is nothing to compare.
  std::optional<cnp::RatioEstimate> ratio;
  std::optional<double> median_ratio;  // of the same pairs
  std::string ratio_of;
  std::string ratio_to;

  double time() const { return cnp::median(blocks); }
  double algbw() const { return static_cast<double>(bytes) / time(); }  // bytes/s
  double busbw() const { return algbw() * ljperf_comm::bus_factor(op, ranks); }
  // Interquartile range / median.
  double spread() const;
  std::string title() const;
};

// "ahead" or "behind" when the interval of the ratio lies wholly above or below 1 and rests on at
// least kVerdictBlocks blocks, "even" when it holds 1; empty when there are too few blocks to say.
std::string verdict(const cnp::RatioEstimate& ratio);

// Fills in `ratio` of the rows of one operation and size, which have as many blocks each.
void compare(std::vector<CommRow>& rows);

// Over the sizes of one operation: ACCL's speed relative to a peer.
struct CommSummary {
  const CommRow* first = nullptr;  // the peer, interface, operation, ...
  std::size_t sizes = 0;
  cnp::RatioEstimate geometric_mean;
  double lowest = 0;
  std::uint64_t lowest_bytes = 0;
  std::size_t behind = 0;  // sizes
};
std::vector<CommSummary> summarise(const std::vector<CommRow>& rows);

base::OrderedJson to_json(const CommRow& row);
base::OrderedJson to_json(const CommSummary& summary);

}  // namespace ljtrain::ljperf
