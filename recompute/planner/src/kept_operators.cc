#include <algorithm>
#include <cstdint>
#include <map>

#include "planner/planner.h"

namespace ljtrain::recompute {
namespace {

// Of a layer's forward: what takes less is not worth a line in a policy.
constexpr double kLeastShare = 0.01;

struct Operator {
  std::string name;
  double kept_bytes = 0;
  double seconds = 0;
};

// Over the whole stack, those that save time first.
std::vector<Operator> operators_of_stack(const Predictor& predictor,
                                         const std::vector<LayerKind>& layers,
                                         const StepSeconds& seconds) {
  std::map<std::string, Operator, std::less<>> by_name;
  std::map<LayerKind, std::vector<OperatorCost>> costs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto [found, is_new] = costs.try_emplace(layers[i]);
    if (is_new) {
      found->second = predictor.operators(layers[i]);
    }
    std::map<std::string_view, double> time;
    for (const OperatorSeconds& one : seconds.layer_operators[i]) {
      time[one.name] = one.seconds;
    }
    for (const OperatorCost& cost : found->second) {
      Operator& sum = by_name[cost.name];
      sum.name = cost.name;
      sum.kept_bytes += cost.kept_bytes;
      sum.seconds += time[cost.name];
    }
  }
  double whole = 0;
  for (double layer : seconds.layer_forward) {
    whole += layer;
  }
  std::vector<Operator> operators;
  for (auto& [name, sum] : by_name) {
    if (sum.seconds > kLeastShare * whole && sum.kept_bytes > 0) {
      operators.push_back(std::move(sum));
    }
  }
  std::ranges::sort(operators, std::greater<>(), &Operator::seconds);
  return operators;
}

// Those that save more time than any that keeps no more.
void keep_best(std::vector<KeptOperators>* sets) {
  std::ranges::sort(*sets, [](const KeptOperators& a, const KeptOperators& b) {
    return a.kept_bytes != b.kept_bytes ? a.kept_bytes < b.kept_bytes
                                        : a.seconds_saved > b.seconds_saved;
  });
  double most = 0;
  std::erase_if(*sets, [&most](const KeptOperators& set) {
    bool beaten = set.seconds_saved <= most;
    most = std::max(most, set.seconds_saved);
    return beaten;
  });
}

std::vector<KeptOperators> spread(std::vector<KeptOperators> sets, std::size_t most) {
  if (sets.size() <= most) {
    return sets;
  }
  std::vector<KeptOperators> chosen;
  for (std::size_t i = 0; i < most; ++i) {
    chosen.push_back(std::move(sets[i * (sets.size() - 1) / (most - 1)]));
  }
  return chosen;
}

}  // namespace

std::vector<KeptOperators> kept_operator_sets(const Predictor& predictor,
                                              const std::vector<LayerKind>& layers,
                                              const StepSeconds& seconds,
                                              std::size_t most_operators, std::size_t most_sets) {
  std::vector<Operator> operators = operators_of_stack(predictor, layers, seconds);
  operators.resize(std::min(operators.size(), most_operators));
  std::vector<KeptOperators> sets;
  for (std::uint32_t bits = 1; bits < (1U << operators.size()); ++bits) {
    KeptOperators& set = sets.emplace_back();
    for (std::size_t i = 0; i < operators.size(); ++i) {
      if ((bits >> i & 1U) != 0) {
        set.kept_bytes += operators[i].kept_bytes;
        set.seconds_saved += operators[i].seconds;
      }
    }
    // Names only for those that stay: most do not.
    set.names.insert(std::to_string(bits));
  }
  keep_best(&sets);
  sets = spread(std::move(sets), std::max<std::size_t>(2, most_sets));
  for (KeptOperators& set : sets) {
    auto bits = static_cast<std::uint32_t>(std::stoul(*set.names.begin()));
    set.names.clear();
    for (std::size_t i = 0; i < operators.size(); ++i) {
      if ((bits >> i & 1U) != 0) {
        set.names.insert(operators[i].name);
      }
    }
  }
  return sets;
}

}  // namespace ljtrain::recompute
