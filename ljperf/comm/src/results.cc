#include "comm/results.h"

#include <algorithm>
#include <cmath>

namespace ljtrain::ljperf {
namespace {

using base::OrderedJson;

// `median`: of the blocks' ratios, where there are any; the estimate that the interval belongs to
// is the geometric mean.
OrderedJson ratio_json(const cnp::RatioEstimate& ratio, std::optional<double> median) {
  OrderedJson interval = nullptr;
  if (ratio.ci95.has_value()) {
    interval = {ratio.ci95->low, ratio.ci95->high};
  }
  std::string judged = verdict(ratio);
  return {{"median", median.value_or(ratio.ratio)},
          {"geometric_mean", ratio.ratio},
          {"ci95", interval},
          {"blocks", ratio.observations},
          {"verdict", judged.empty() ? OrderedJson(nullptr) : OrderedJson(judged)}};
}

bool same_series(const CommRow& a, const CommRow& b) {
  return a.library == b.library && a.interface == b.interface && a.op == b.op &&
         a.dtype == b.dtype && a.ranks == b.ranks && a.in_place == b.in_place &&
         a.registered == b.registered;
}

// Block for block the mean over sizes of the logarithm, as a time again: its paired ratio is the
// geometric mean's.
std::vector<double> mean_times(const std::vector<const CommRow*>& rows) {
  std::vector<double> result(rows.front()->blocks.size());
  for (std::size_t block = 0; block < result.size(); ++block) {
    double sum = 0;
    for (const CommRow* row : rows) {
      sum += std::log(row->blocks[block]);
    }
    result[block] = std::exp(sum / static_cast<double>(rows.size()));
  }
  return result;
}

const CommRow* reference_of(const CommRow& row, const std::vector<CommRow>& rows) {
  auto found = std::find_if(rows.begin(), rows.end(), [&](const CommRow& other) {
    return other.library == "accl" && other.interface == row.interface && other.op == row.op &&
           other.dtype == row.dtype && other.ranks == row.ranks && other.bytes == row.bytes &&
           other.in_place == row.in_place && !other.registered;
  });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

double CommRow::spread() const {
  return (cnp::quantile(blocks, 0.75) - cnp::quantile(blocks, 0.25)) / time();
}

std::string CommRow::title() const {
  std::string name = interface == Interface::kC ? library : library + "/c10d";
  if (registered) {
    return name + " registered";
  }
  // Where a library has another form, too.
  bool telling = in_place && op != ljperf_comm::Op::kBroadcast && library != "deepspeed_shm" &&
                 interface == Interface::kC;
  return telling ? name + " in place" : name;
}

std::string verdict(const cnp::RatioEstimate& ratio) {
  if (!ratio.ci95.has_value() || ratio.observations < kVerdictBlocks) {
    return "";
  }
  return ratio.ci95->low > 1 ? "ahead" : ratio.ci95->high < 1 ? "behind" : "even";
}

namespace {

// The ratio of times, block by block.
void set_ratio(CommRow& row, const CommRow& numerator, const CommRow& denominator) {
  row.ratio = cnp::paired_ratio_interval95(numerator.blocks, denominator.blocks);
  std::vector<double> ratios;
  for (std::size_t block = 0; block < numerator.blocks.size(); ++block) {
    ratios.push_back(numerator.blocks[block] / denominator.blocks[block]);
  }
  row.median_ratio = cnp::median(ratios);
}

}  // namespace

void compare(std::vector<CommRow>& rows) {
  auto limit = std::find_if(rows.begin(), rows.end(),
                            [](const CommRow& row) { return row.library == "memcpy"; });
  for (CommRow& row : rows) {
    if (row.library == "memcpy") {
      continue;
    }
    if (row.library == "accl") {
      if (limit != rows.end()) {
        set_ratio(row, *limit, row);
        row.ratio_of = row.title();
        row.ratio_to = "memcpy";
      }
      continue;
    }
    if (const CommRow* accl = reference_of(row, rows)) {
      set_ratio(row, row, *accl);
      row.ratio_of = accl->title();
      row.ratio_to = row.title();
    }
  }
}

std::vector<CommSummary> summarise(const std::vector<CommRow>& rows) {
  std::vector<CommSummary> summaries;
  std::vector<bool> done(rows.size(), false);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (done[i] || rows[i].library == "accl" || !rows[i].ratio.has_value()) {
      continue;
    }
    CommSummary summary;
    summary.first = &rows[i];
    std::vector<const CommRow*> peers;
    std::vector<const CommRow*> ours;
    for (std::size_t k = i; k < rows.size(); ++k) {
      const CommRow* accl = same_series(rows[i], rows[k]) ? reference_of(rows[k], rows) : nullptr;
      if (accl == nullptr || rows[k].blocks.size() != rows[i].blocks.size() ||
          !rows[k].ratio.has_value()) {
        continue;
      }
      done[k] = true;
      peers.push_back(&rows[k]);
      ours.push_back(accl);
      if (peers.size() == 1 || rows[k].ratio->ratio < summary.lowest) {
        summary.lowest = rows[k].ratio->ratio;
        summary.lowest_bytes = rows[k].bytes;
      }
      summary.behind += verdict(*rows[k].ratio) == "behind" ? 1 : 0;
    }
    summary.sizes = peers.size();
    summary.geometric_mean = cnp::paired_ratio_interval95(mean_times(peers), mean_times(ours));
    summaries.push_back(summary);
  }
  return summaries;
}

OrderedJson to_json(const CommRow& row) {
  constexpr double kMicro = 1e6;
  constexpr double kGiga = 1e9;
  OrderedJson json{{"library", row.library},
                   {"interface", name_of(row.interface)},
                   {"op", ljperf_comm::kOpNames[static_cast<int>(row.op)]},
                   {"dtype", ljperf_comm::kTypeNames[static_cast<int>(row.dtype)]},
                   {"ranks", row.ranks},
                   {"bytes", row.bytes},
                   {"time_us", row.time() * kMicro},
                   {"algbw_gbps", row.algbw() / kGiga},
                   {"busbw_gbps", nullptr},
                   {"wrong", nullptr},
                   {"in_place", row.in_place},
                   {"registered", row.registered},
                   {"spread", row.spread()},
                   {"iterations", row.iterations},
                   {"ratio", nullptr}};
  if (row.library != "memcpy") {  // it has no bus
    json["busbw_gbps"] = row.busbw() / kGiga;
  }
  if (row.wrong.has_value()) {
    json["wrong"] = *row.wrong;
  }
  if (row.ratio.has_value()) {
    json["ratio"] = ratio_json(*row.ratio, row.median_ratio);
    json["ratio"]["of"] = row.ratio_of;
    json["ratio"]["to"] = row.ratio_to;
  }
  std::vector<double> micro;
  for (double seconds : row.blocks) {
    micro.push_back(seconds * kMicro);
  }
  json["blocks_us"] = micro;
  return json;
}

OrderedJson to_json(const CommSummary& summary) {
  const CommRow& row = *summary.first;
  return {{"library", row.library},
          {"interface", name_of(row.interface)},
          {"op", ljperf_comm::kOpNames[static_cast<int>(row.op)]},
          {"dtype", ljperf_comm::kTypeNames[static_cast<int>(row.dtype)]},
          {"ranks", row.ranks},
          {"in_place", row.in_place},
          {"sizes", summary.sizes},
          {"ratio", ratio_json(summary.geometric_mean, std::nullopt)},
          {"lowest", {{"ratio", summary.lowest}, {"bytes", summary.lowest_bytes}}},
          {"behind", summary.behind}};
}

}  // namespace ljtrain::ljperf
