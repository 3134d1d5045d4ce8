#include "evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "schedule.h"

namespace ljtrain::cnp {
namespace {

const Measured* run_in(const std::vector<Measured>& block, const std::string& row) {
  auto found = std::ranges::find(block, row, &Measured::row);
  return found == block.end() ? nullptr : &*found;
}

// Of one row, a place a block.
std::vector<std::optional<double>> speeds(const Ablation& ablation, const std::string& row) {
  std::vector<std::optional<double>> found;
  for (const std::vector<Measured>& block : ablation.blocks) {
    const Measured* run = run_in(block, row);
    found.push_back(run != nullptr && run->completed ? std::optional(run->tokens_per_s)
                                                     : std::nullopt);
  }
  return found;
}

std::optional<RatioEstimate> ratio(const Ablation& ablation, const std::string& a,
                                   const std::string& b) {
  std::vector<std::optional<double>> of_a = speeds(ablation, a);
  std::vector<std::optional<double>> of_b = speeds(ablation, b);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i].has_value() && of_b[i].has_value()) {
      return blocked_ratio_interval95(of_a, of_b);
    }
  }
  return std::nullopt;
}

template <typename T>
void keep_largest(std::optional<T>& kept, const std::optional<T>& value) {
  if (value.has_value() && (!kept.has_value() || *value > *kept)) {
    kept = value;
  }
}

void add_runs(RowResult& result, const Ablation& ablation) {
  std::vector<double> steps;
  std::vector<double> tokens;
  auto note_failure = [&](const Measured& run) {
    if (!run.completed) {
      result.sentence = run.sentence;
    }
  };
  for (const Measured& run : ablation.warmup) {
    if (run.row == result.row.id) {
      note_failure(run);
    }
  }
  for (const std::vector<Measured>& block : ablation.blocks) {
    const Measured* run = run_in(block, result.row.id);
    if (run == nullptr) {
      continue;
    }
    note_failure(*run);
    (run->completed ? result.completed : result.failed) += 1;
    if (!run->record_id.empty()) {
      result.record_ids.push_back(run->record_id);
    }
    if (run->completed) {
      steps.push_back(run->step_s);
      tokens.push_back(run->tokens_per_s);
      keep_largest(result.peak_bytes, run->peak_bytes);
      keep_largest(result.resident_bytes, run->resident_bytes);
    }
  }
  if (!steps.empty()) {
    result.step_s = median(steps);
    result.tokens_per_s = median(tokens);
  }
}

// The record of a row's first run that completed.
std::optional<Record> first_record(const Ablation& ablation, const std::string& row,
                                   const ReadRecord& read) {
  for (const std::vector<Measured>& block : ablation.blocks) {
    const Measured* run = run_in(block, row);
    if (run != nullptr && run->completed) {
      return read(run->record_id);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<RowResult> evaluate(const Ablation& ablation, const std::vector<Row>& rows,
                                const ReadRecord& read) {
  std::vector<RowResult> results;
  const std::string& base = rows.front().id;
  std::optional<Record> base_record = first_record(ablation, base, read);
  for (const Row& row : rows) {
    RowResult result;
    result.row = row;
    result.given_up = is_given_up(ablation, row.id);
    add_runs(result, ablation);
    if (result.completed > 0 && row.id != base) {
      result.speedup = ratio(ablation, row.id, base);
      if (!row.against.empty()) {
        result.contribution = row.inverse ? ratio(ablation, row.against, row.id)
                                          : ratio(ablation, row.id, row.against);
      }
      if (row.same_loss && base_record.has_value()) {
        if (std::optional<Record> record = first_record(ablation, row.id, read)) {
          result.parity = loss_parity(*base_record, *record);
        }
      }
    }
    results.push_back(std::move(result));
  }
  return results;
}

bool is_narrow(const std::vector<RowResult>& results, double until) {
  bool any = false;
  for (const RowResult& result : results) {
    if (!result.speedup.has_value() || result.given_up) {
      continue;
    }
    const std::optional<Interval>& interval = result.speedup->ci95;
    if (!interval.has_value() ||
        (interval->high - interval->low) / 2 > until * result.speedup->ratio) {
      return false;
    }
    any = true;
  }
  return any;
}

std::size_t full_blocks(const Ablation& ablation, const std::vector<Row>& rows) {
  return static_cast<std::size_t>(
      std::ranges::count_if(ablation.blocks, [&](const std::vector<Measured>& block) {
        return std::ranges::all_of(rows, [&](const Row& row) {
          return run_in(block, row.id) != nullptr || is_given_up(ablation, row.id);
        });
      }));
}

}  // namespace ljtrain::cnp
