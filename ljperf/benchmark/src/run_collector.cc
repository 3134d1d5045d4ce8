#include "benchmark/run_collector.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;

std::string text_or(const Json& object, const char* key, const std::string& fallback) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : fallback;
}

std::optional<std::uint64_t> bytes_of(const Json& object, const char* key) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_number()) {
    return std::nullopt;
  }
  return found->get<std::uint64_t>();
}

double number_of(const Json& object, const char* key) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_number()) {
    throw base::run_error("the worker's {} event lacks the number `{}`",
                          text_or(object, "event", "?"), key);
  }
  return found->get<double>();
}

// The worker sends a loss that is not finite as null.
double loss_of(const Json& event) {
  auto found = event.find("loss");
  return found != event.end() && found->is_number() ? found->get<double>() : cnp::kNotFinite;
}

std::optional<cnp::Breakdown> breakdown_of(const Json& event) {
  auto found = event.find("breakdown");
  if (found == event.end() || !found->is_object()) {
    return std::nullopt;
  }
  cnp::Breakdown breakdown;
  breakdown.data = number_of(*found, "data");
  breakdown.forward = number_of(*found, "forward");
  breakdown.backward = number_of(*found, "backward");
  breakdown.communication_exposed = number_of(*found, "communication");
  breakdown.optimizer = number_of(*found, "optimizer");
  breakdown.other = number_of(*found, "other");
  return breakdown;
}

void read_start(RankSummary& summary, const Json& event) {
  summary.device = text_or(event, "device", "cpu");
  summary.device_name = text_or(event, "device_name", "");
  auto versions = event.find("versions");
  if (versions != event.end() && versions->is_object()) {
    for (const auto& [name, version] : versions->items()) {
      if (version.is_string()) {
        summary.versions[name] = version.get<std::string>();
      }
    }
  }
}

void read_done(RankSummary& summary, const Json& event) {
  summary.startup_peak_bytes = bytes_of(event, "startup_peak_bytes");
  summary.resident_peak_bytes = bytes_of(event, "resident_peak_bytes");
  summary.huge_page_bytes = bytes_of(event, "huge_page_bytes");
  summary.compile = event.value("compile", Json());
  summary.recompute = event.value("recompute", Json());
  auto collectives = event.find("collectives");
  if (collectives == event.end() || !collectives->is_object()) {
    return;
  }
  for (const auto& [name, totals] : collectives->items()) {
    cnp::Collective& collective = summary.collectives[name];
    collective.operation = name;
    collective.calls = static_cast<std::uint64_t>(number_of(totals, "calls"));
    collective.bytes = static_cast<std::uint64_t>(number_of(totals, "bytes"));
    collective.seconds = number_of(totals, "seconds");
  }
}

}  // namespace

std::optional<cnp::Step> RunCollector::add(int rank, const Json& event) {
  auto index = static_cast<std::size_t>(rank);
  RankSummary& summary = ranks_.at(index);
  std::string kind = event.at("event").get<std::string>();
  if (kind == "step") {
    return add_step(index, event);
  }
  if (kind == "start") {
    read_start(summary, event);
    if (summary.device != device_) {
      throw base::run_error(
          "rank {} trains on {}, but the run was planned for {}: PyTorch and the NVIDIA driver "
          "disagree about the GPUs "
          "(hide them with CUDA_VISIBLE_DEVICES= to train on the host)",
          rank, summary.device, device_);
    }
  } else if (kind == "model") {
    summary.parameters = bytes_of(event, "parameters").value_or(0);
    summary.trainable_parameters = bytes_of(event, "trainable_parameters").value_or(0);
    summary.sharding = text_or(event, "sharding", "");
  } else if (kind == "gemm_peak") {
    summary.gemm_flops_per_s = number_of(event, "flops_per_s");
    summary.gemm_dtype = text_or(event, "dtype", "");
  } else if (kind == "done") {
    read_done(summary, event);
  }
  return std::nullopt;
}

std::optional<cnp::Step> RunCollector::add_step(std::size_t rank, const Json& event) {
  int step = static_cast<int>(number_of(event, "step"));
  RankStep mine;
  mine.seconds = number_of(event, "seconds");
  mine.loss = loss_of(event);
  mine.tokens = static_cast<std::int64_t>(number_of(event, "tokens"));
  mine.instrumented = event.value("instrumented", false);
  mine.breakdown = breakdown_of(event);
  mine.peak_bytes = bytes_of(event, "peak_bytes");
  RankSummary& summary = ranks_[rank];
  if (summary.digests.size() < kComparedSteps) {
    summary.digests.push_back(text_or(event, "data_digest", ""));
  }
  if (mine.peak_bytes.has_value()) {
    summary.peak_bytes = std::max(*mine.peak_bytes, summary.peak_bytes.value_or(0));
  }
  std::map<std::size_t, RankStep>& of_step = open_[step];
  of_step[rank] = mine;
  if (of_step.size() < ranks_.size()) {
    return std::nullopt;
  }
  if (static_cast<std::size_t>(step) + 1 == kComparedSteps) {
    check_data_differs();
  }
  std::vector<RankStep> of_ranks;
  for (auto& [number, values] : of_step) {
    of_ranks.push_back(values);
  }
  open_.erase(step);
  steps_.push_back(combine(step, of_ranks));
  return steps_.back();
}

cnp::Step RunCollector::combine(int step, const std::vector<RankStep>& of_ranks) {
  cnp::Step combined;
  combined.step = step;
  combined.loss = 0;
  combined.instrumented = true;
  tokens_per_step_ = 0;
  auto count = static_cast<double>(of_ranks.size());
  for (const RankStep& one : of_ranks) {
    // The mean over ranks: each rank's times add up to the same wall time, so the mean does too.
    combined.seconds += one.seconds / count;
    combined.loss += one.loss / count;
    combined.seconds_per_rank.push_back(one.seconds);
    combined.instrumented = combined.instrumented && one.instrumented;
    tokens_per_step_ += one.tokens;
    if (one.breakdown.has_value()) {
      combined.breakdown_s_per_rank.push_back(*one.breakdown);
    }
    if (one.peak_bytes.has_value()) {
      combined.peak_bytes_per_rank.push_back(*one.peak_bytes);
    }
  }
  return combined;
}

void RunCollector::check_data_differs() const {
  for (std::size_t one = 0; one < ranks_.size(); ++one) {
    for (std::size_t other = one + 1; other < ranks_.size(); ++other) {
      if (!ranks_[one].digests.front().empty() && ranks_[one].digests == ranks_[other].digests) {
        throw base::run_error(
            "ranks {} and {} trained on the same data in each of the first steps, so the ranks do "
            "not train one "
            "model together "
            "(is the process group of all {} ranks really used, and is --data long enough?)",
            one, other, ranks_.size());
      }
    }
  }
}

}  // namespace ljtrain::ljperf
