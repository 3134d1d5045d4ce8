// Turns the events of one run's ranks into steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cnp/record.h"

namespace ljtrain::ljperf {

// What a rank says once, besides its steps.
struct RankSummary {
  std::map<std::string, std::string> versions;
  std::string device = "cpu";
  std::string device_name;
  std::uint64_t parameters = 0;
  std::uint64_t trainable_parameters = 0;
  std::string sharding;
  std::optional<double> gemm_flops_per_s;
  std::string gemm_dtype;
  std::optional<std::uint64_t> peak_bytes;
  std::optional<std::uint64_t> startup_peak_bytes;
  std::optional<std::uint64_t> resident_peak_bytes;
  base::Json compile;    // counters of stock torch.compile, or null
  base::Json recompute;  // what the plan came to, or null
  std::optional<std::uint64_t> huge_page_bytes;
  std::map<std::string, cnp::Collective> collectives;
  std::vector<std::string> digests;  // of the data of its first steps, at most kComparedSteps
};

// Steps whose data is compared between ranks: one alike step may be chance (mock documents repeat),
// several are not.
inline constexpr std::size_t kComparedSteps = 4;

class RunCollector {
 public:
  // `device`: where the plan has the ranks train, cpu or cuda.
  RunCollector(int ranks, std::string device)
      : ranks_(static_cast<std::size_t>(ranks)), device_(std::move(device)) {}

  // Takes an event. Throws RunError when two ranks train on the same data, when a rank trains on
  // another device than planned, and for events that lack what they promise. Returns the step that
  // this event completed on all ranks, if it did.
  std::optional<cnp::Step> add(int rank, const base::Json& event);

  // Steps that every rank has made, in order.
  const std::vector<cnp::Step>& steps() const { return steps_; }
  const std::vector<RankSummary>& ranks() const { return ranks_; }
  // Tokens of one step, all ranks together; 0 before the first.
  std::int64_t tokens_per_step() const { return tokens_per_step_; }

 private:
  struct RankStep {
    double seconds = 0;
    double loss = 0;
    std::int64_t tokens = 0;
    bool instrumented = false;
    std::optional<cnp::Breakdown> breakdown;
    std::optional<std::uint64_t> peak_bytes;
  };

  std::optional<cnp::Step> add_step(std::size_t rank, const base::Json& event);
  cnp::Step combine(int step, const std::vector<RankStep>& of_ranks);
  void check_data_differs() const;

  std::vector<RankSummary> ranks_;
  std::string device_;
  std::map<int, std::map<std::size_t, RankStep>> open_;  // steps that some ranks have not made yet
  std::vector<cnp::Step> steps_;
  std::int64_t tokens_per_step_ = 0;
};

}  // namespace ljtrain::ljperf
