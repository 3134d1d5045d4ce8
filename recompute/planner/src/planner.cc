#include "planner/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// In the order of a stack's choices.
constexpr LayerPolicy kPolicies[] = {LayerPolicy::kFull, LayerPolicy::kNone,
                                     LayerPolicy::kSelected};

Policy uniform(std::size_t layers, LayerPolicy policy, const KeptOperators* kept) {
  Policy all;
  all.layers.assign(layers, policy);
  if (kept != nullptr && policy == LayerPolicy::kSelected) {
    all.kept_operators = kept->names;
  }
  return all;
}

// A prediction's timeline by place.
struct Moments {
  std::vector<double> forward_end;  // one a layer
  std::vector<double> forward_high;
  std::vector<double> backward_high;
  double head = 0;
  double elsewhere = 0;

  Moments(const Prediction& prediction, std::size_t layers)
      : forward_end(layers), forward_high(layers), backward_high(layers) {
    for (const TimelinePoint& point : prediction.timeline) {
      double bytes = total_bytes(point.bytes);
      bool computing = point.phase == Phase::kForward || point.phase == Phase::kBackward;
      auto count = static_cast<int>(layers);
      if (!computing || point.layer < 0 || point.layer > count) {
        elsewhere = std::max(elsewhere, bytes);
      } else if (point.layer == count) {
        head = std::max(head, bytes);
      } else {
        auto i = static_cast<std::size_t>(point.layer);
        bool forward = point.phase == Phase::kForward;
        double& high = forward ? forward_high[i] : backward_high[i];
        high = std::max(high, bytes);
        if (forward && !point.highest) {
          forward_end[i] = bytes;
        }
      }
    }
  }
};

// Seconds of recomputing layer `i` but for the operators kept.
double recomputed_seconds(const StepSeconds& seconds, std::size_t i, const KeptOperators* kept) {
  double all = seconds.layer_forward[i];
  if (kept == nullptr) {
    return all;
  }
  for (const OperatorSeconds& one : seconds.layer_operators[i]) {
    all -= kept->names.contains(one.name) ? one.seconds : 0;
  }
  return std::max(0.0, all);
}

double recompute_seconds(const Policy& policy, const StepSeconds& seconds) {
  KeptOperators kept;
  kept.names = policy.kept_operators;
  double sum = 0;
  for (std::size_t i = 0; i < policy.layers.size(); ++i) {
    if (policy.layers[i] != LayerPolicy::kNone) {
      bool full = policy.layers[i] == LayerPolicy::kFull;
      sum += recomputed_seconds(seconds, i, full ? nullptr : &kept);
    }
  }
  return sum;
}

struct Candidate {
  Policy policy;
  double seconds = kInfinity;  // recomputed, a micro-batch
  double least = kInfinity;    // no choice within the same operators takes less
};

class Planner {
 public:
  Planner(const Predictor& predictor, const ModelShape& shape, const StepSeconds& seconds,
          const PlanRequest& request)
      : predictor_(predictor), shape_(shape), seconds_(seconds), request_(request) {}

  Candidate search() {
    if (!request_.kept_operators) {
      consider(nullptr);
    }
    if (request_.kept_operators) {
      KeptOperators kept;
      kept.names = *request_.kept_operators;
      consider(&kept);
    } else if (request_.selected_operators && best_.seconds > 0) {
      search_sets();
    }
    best_.least = std::min(best_.seconds, least_);
    return std::move(best_);
  }

 private:
  void search_sets() {
    std::vector<KeptOperators> sets = kept_operator_sets(predictor_, shape_.layers, seconds_);
    std::vector<std::pair<double, std::size_t>> order;
    std::vector<Stack> stacks;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      stacks.push_back(make_stack(predictor_, shape_, seconds_, &sets[i]));
      order.emplace_back(least_seconds(stacks[i], request_.limit_bytes), i);
    }
    std::ranges::sort(order);
    for (const auto& [bound, i] : order) {
      if (bound >= best_.seconds) {
        break;  // neither this set nor those after it can be better
      }
      consider(&sets[i], &stacks[i]);
    }
  }

  void consider(const KeptOperators* kept) {
    Stack stack = make_stack(predictor_, shape_, seconds_, kept);
    consider(kept, &stack);
  }

  // The stack's problem takes layers as independent but for what they save. Engines come close to
  // that, not all the way: so the prediction of a policy decides whether it fits, and the problem
  // is solved for limits that differ by as much as its peaks were seen to be above or below it.
  void consider(const KeptOperators* kept, const Stack* stack) {
    constexpr int kMostRounds = 6;
    double too_high = overestimate(*stack, kept);
    double fits = request_.limit_bytes;
    std::optional<StackSolution> solution = solve(*stack, fits);
    for (int round = 0; solution && round < kMostRounds; ++round) {
      double excess = take(*solution, *stack, kept, &too_high);
      if (excess <= 0) {
        break;
      }
      fits -= std::max(1.0, excess);
      solution = solve(*stack, fits);
    }
    double least = too_high > 0 ? least_with(*stack, kept, &too_high)
                   : solution   ? solution->least_seconds
                                : kInfinity;
    least_ = std::min(least_, least);
  }

  // Tries limits above the real one, by what the problem's peaks are too high; returns the least
  // time that any policy within them takes.
  double least_with(const Stack& stack, const KeptOperators* kept, double* too_high) {
    constexpr int kMostRounds = 6;
    double least = kInfinity;
    double low = request_.limit_bytes;
    double high = low + *too_high;
    for (int round = 0; round < kMostRounds; ++round) {
      std::optional<StackSolution> solution = solve(stack, high);
      if (!solution) {
        break;
      }
      least = round == 0 ? solution->least_seconds : least;
      if (take(*solution, stack, kept, too_high) <= 0) {
        break;
      }
      high = (low + high) / 2;
    }
    return least;
  }

  // Keeps the solution if it is the best that fits. Returns by how much its prediction is above the
  // limit.
  double take(const StackSolution& solution, const Stack& stack, const KeptOperators* kept,
              double* too_high) {
    Policy policy = policy_of(solution, kept);
    double peak = predictor_.peak_bytes(policy);
    *too_high = std::max(*too_high, peak_of(stack, solution.choices) - peak);
    if (peak <= request_.limit_bytes && solution.seconds < best_.seconds) {
      best_.policy = std::move(policy);
      best_.seconds = solution.seconds;
    }
    return peak - request_.limit_bytes;
  }

  // By how much the problem's peaks of uniform policies are above the predicted ones.
  double overestimate(const Stack& stack, const KeptOperators* kept) const {
    double most = 0;
    std::size_t layers = stack.layers.size();
    for (std::size_t c = 0; c < stack.layers.front().size(); ++c) {
      double peak = peak_of(stack, std::vector<std::size_t>(layers, c));
      most = std::max(most, peak - predictor_.peak_bytes(uniform(layers, kPolicies[c], kept)));
    }
    // Rounding is no overestimate.
    return most > 1 ? most : 0;
  }

  Policy policy_of(const StackSolution& solution, const KeptOperators* kept) const {
    Policy policy;
    bool any_selected = false;
    for (std::size_t choice : solution.choices) {
      policy.layers.push_back(kPolicies[choice]);
      any_selected = any_selected || policy.layers.back() == LayerPolicy::kSelected;
    }
    if (any_selected) {
      policy.kept_operators = kept->names;
    }
    return policy;
  }

  const Predictor& predictor_;
  const ModelShape& shape_;
  const StepSeconds& seconds_;
  const PlanRequest& request_;
  Candidate best_;
  double least_ = kInfinity;
};

Policy fixed_policy(const PlanRequest& request, std::size_t layers) {
  std::int64_t wanted = *request.recompute_layers;
  if (wanted < 0 || wanted > static_cast<std::int64_t>(layers)) {
    throw base::user_error("{} layers to recompute: the model has {}; choose from 0 to {}", wanted,
                           layers, layers);
  }
  Policy policy = Policy::first_recomputed(layers, static_cast<std::size_t>(wanted));
  if (request.kept_operators && wanted > 0) {
    std::ranges::replace(policy.layers, LayerPolicy::kFull, LayerPolicy::kSelected);
    policy.kept_operators = *request.kept_operators;
  }
  return policy;
}

// What to show when nothing fits: the lowest peak of the uniform ones.
Policy lowest(const Predictor& predictor, std::size_t layers) {
  Policy full = uniform(layers, LayerPolicy::kFull, nullptr);
  Policy none = uniform(layers, LayerPolicy::kNone, nullptr);
  return predictor.peak_bytes(none) < predictor.peak_bytes(full) ? none : full;
}

}  // namespace

double Plan::gap() const {
  return step_seconds > 0 ? (step_seconds - least_step_seconds) / step_seconds : 0;
}

Stack make_stack(const Predictor& predictor, const ModelShape& shape, const StepSeconds& seconds,
                 const KeptOperators* kept) {
  std::size_t layers = shape.layers.size();
  std::size_t choices = kept == nullptr ? 2 : 3;
  std::vector<Moments> moments;
  for (std::size_t c = 0; c < choices; ++c) {
    moments.emplace_back(predictor.predict(uniform(layers, kPolicies[c], kept)), layers);
  }
  // What a choice saves is told by how far its forward rises above that of the first choice, kFull:
  // all else that grows during the forward is the same in both.
  Stack stack;
  stack.layers.assign(layers, std::vector<LayerChoice>(choices));
  for (LayerKind kind : shape.layers) {
    stack.kinds.push_back(static_cast<int>(kind));
  }
  for (std::size_t c = 0; c < choices; ++c) {
    double before = 0;
    for (std::size_t i = 0; i < layers; ++i) {
      double above = moments[c].forward_end[i] - moments[0].forward_end[i];
      LayerChoice& choice = stack.layers[i][c];
      choice.saved_bytes = above - before;
      choice.forward_bytes = moments[c].forward_high[i] - before;
      choice.backward_bytes = moments[c].backward_high[i] - before;
      if (kPolicies[c] != LayerPolicy::kNone) {
        choice.seconds = recomputed_seconds(seconds, i, c == 0 ? nullptr : kept);
      }
      before = above;
    }
    stack.head_bytes = std::max(stack.head_bytes, moments[c].head - before);
    stack.elsewhere_bytes = std::max(stack.elsewhere_bytes, moments[c].elsewhere);
  }
  return stack;
}

Plan make_plan(const Predictor& predictor, const ModelShape& shape, const StepSeconds& seconds,
               const PlanRequest& request) {
  std::size_t layers = shape.layers.size();
  Plan plan;
  double least = kInfinity;
  if (request.recompute_layers) {
    plan.policy = fixed_policy(request, layers);
  } else {
    Candidate found = Planner(predictor, shape, seconds, request).search();
    plan.policy = found.policy.layers.empty() ? lowest(predictor, layers) : found.policy;
    least = found.least;
  }
  plan.prediction = predictor.predict(plan.policy);
  plan.fits = plan.prediction.peak_bytes <= request.limit_bytes;
  plan.recomputed_layers = static_cast<std::size_t>(std::ranges::count_if(
      plan.policy.layers, [](LayerPolicy policy) { return policy != LayerPolicy::kNone; }));
  double recomputed = recompute_seconds(plan.policy, seconds);
  double without = seconds.without_recompute(request.micro_batches);
  plan.recompute_seconds = request.micro_batches * recomputed;
  plan.step_seconds = without + plan.recompute_seconds;
  plan.least_step_seconds = without + request.micro_batches * std::min(least, recomputed);
  return plan;
}

}  // namespace ljtrain::recompute
