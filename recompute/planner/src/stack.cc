#include "planner/stack.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace ljtrain::recompute {
namespace {

// Sums are kept in whole bytes and picoseconds: sums of the same parts in another order are then
// equal.
constexpr double kPicoseconds = 1e12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Choice {
  std::int64_t time = 0;
  std::int64_t saved = 0;
  std::int64_t highest = 0;  // of forward and backward
};

struct Problem {
  std::vector<std::vector<Choice>> layers;
  std::int64_t limit = 0;      // of prefix + highest
  std::int64_t saved_cap = 0;  // of the sum over all layers

  explicit Problem(const Stack& stack, double limit_bytes) {
    limit = static_cast<std::int64_t>(std::floor(limit_bytes));
    saved_cap = static_cast<std::int64_t>(std::floor(limit_bytes - stack.head_bytes));
    for (const std::vector<LayerChoice>& from : stack.layers) {
      std::vector<Choice>& to = layers.emplace_back();
      for (const LayerChoice& choice : from) {
        double highest = std::max(choice.forward_bytes, choice.backward_bytes);
        to.push_back({.time = std::llround(choice.seconds * kPicoseconds),
                      .saved = static_cast<std::int64_t>(std::ceil(choice.saved_bytes)),
                      .highest = static_cast<std::int64_t>(std::ceil(highest))});
      }
    }
  }
};

// min over choices of time + price * saved, summed over the layers from `i` on: with a price per
// saved byte, a lower bound on what the rest of the stack costs.
class Relaxation {
 public:
  Relaxation(const Problem& problem, double price) : price_(price) {
    rest_.assign(problem.layers.size() + 1, 0);
    for (std::size_t i = problem.layers.size(); i-- > 0;) {
      double least = kInfinity;
      for (const Choice& choice : problem.layers[i]) {
        least = std::min(
            least, static_cast<double>(choice.time) + price * static_cast<double>(choice.saved));
      }
      rest_[i] = rest_[i + 1] + least;
    }
  }
  // Of the layers from `i` on, when they may save `room` bytes together.
  double bound(std::size_t i, std::int64_t room) const {
    return rest_[i] - price_ * static_cast<double>(room);
  }

 private:
  double price_;
  std::vector<double> rest_;
};

// The prices at which two choices of a layer cost the same, and 0; ascending.
std::vector<double> corner_prices(const Problem& problem) {
  std::set<std::vector<std::pair<std::int64_t, std::int64_t>>> seen;
  std::vector<double> prices{0};
  for (const std::vector<Choice>& layer : problem.layers) {
    std::vector<std::pair<std::int64_t, std::int64_t>> key;
    for (const Choice& choice : layer) {
      key.emplace_back(choice.time, choice.saved);
    }
    if (!seen.insert(std::move(key)).second) {
      continue;
    }
    for (const Choice& a : layer) {
      for (const Choice& b : layer) {
        if (a.saved > b.saved && a.time < b.time) {
          prices.push_back(static_cast<double>(b.time - a.time) /
                           static_cast<double>(a.saved - b.saved));
        }
      }
    }
  }
  std::ranges::sort(prices);
  prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
  return prices;
}

// The price at which the relaxation's bound on the whole stack is greatest. The bound is concave in
// the price and its corners are corner_prices(), so one of them is best.
double best_price(const Problem& problem) {
  double best = 0;
  double greatest = -kInfinity;
  for (double price : corner_prices(problem)) {
    double bound = Relaxation(problem, price).bound(0, problem.saved_cap);
    if (bound > greatest) {
      greatest = bound;
      best = price;
    }
  }
  return best;
}

bool surely_impossible(const Problem& problem) {
  std::int64_t least = 0;
  for (const std::vector<Choice>& layer : problem.layers) {
    bool fits = false;
    std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
    for (const Choice& choice : layer) {
      fits = fits || least + choice.highest <= problem.limit;
      smallest = std::min(smallest, choice.saved);
    }
    if (!fits) {
      return true;
    }
    least += smallest;
  }
  return least > problem.saved_cap;
}

// One way through the layers so far.
struct Pair {
  std::int64_t saved = 0;
  std::int64_t time = 0;
  std::uint32_t parent = 0;
  std::uint8_t choice = 0;
};

// Keeps the pairs that no other beats in both; equals are one.
void keep_best(std::vector<Pair>* pairs) {
  std::ranges::sort(*pairs, [](const Pair& a, const Pair& b) {
    return std::tie(a.saved, a.time) < std::tie(b.saved, b.time);
  });
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::erase_if(*pairs, [&least](const Pair& pair) {
    bool beaten = pair.time >= least;
    least = std::min(least, pair.time);
    return beaten;
  });
}

// Leaves at most `most` pairs: of those whose sums are nearly equal, the one that saves least.
void thin_out(std::vector<Pair>* pairs, std::size_t most) {
  std::int64_t origin = pairs->front().saved;
  std::int64_t step = (pairs->back().saved - origin) / static_cast<std::int64_t>(most) + 1;
  std::int64_t last = -1;
  std::erase_if(*pairs, [&](const Pair& pair) {
    std::int64_t at = (pair.saved - origin) / step;
    bool near = at == last;
    last = at;
    return near;
  });
}

bool fits(const Problem& problem, const std::vector<std::size_t>& choices) {
  std::int64_t saved = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = problem.layers[i][choices[i]];
    if (saved + choice.highest > problem.limit) {
      return false;
    }
    saved += choice.saved;
  }
  return saved <= problem.saved_cap;
}

class Search {
 public:
  Search(const Problem& problem, std::size_t most_pairs)
      : problem_(problem), relaxation_(problem, best_price(problem)), most_pairs_(most_pairs) {
    find_incumbent();
  }

  bool exact() const { return exact_; }
  double bound() const { return relaxation_.bound(0, problem_.saved_cap); }

  // Empty when nothing fits.
  std::vector<std::size_t> run() {
    std::vector<std::vector<Pair>> levels{{Pair{}}};
    for (std::size_t i = 0; i < problem_.layers.size(); ++i) {
      levels.push_back(extend(levels.back(), i));
      if (levels.back().empty()) {  // nothing fits, or all that was better was thinned out
        return incumbent_choices_;
      }
    }
    const std::vector<Pair>& last = levels.back();
    auto best = std::ranges::min_element(last, {}, &Pair::time);
    if (static_cast<double>(best->time) > incumbent_) {
      return incumbent_choices_;
    }
    std::vector<std::size_t> choices(problem_.layers.size());
    auto at = static_cast<std::size_t>(best - last.begin());
    for (std::size_t i = problem_.layers.size(); i-- > 0;) {
      const Pair& pair = levels[i + 1][at];
      choices[i] = pair.choice;
      at = pair.parent;
    }
    return choices;
  }

 private:
  std::vector<Pair> extend(const std::vector<Pair>& from, std::size_t i) {
    std::vector<Pair> pairs;
    for (std::size_t parent = 0; parent < from.size(); ++parent) {
      for (std::size_t c = 0; c < problem_.layers[i].size(); ++c) {
        const Choice& choice = problem_.layers[i][c];
        std::int64_t saved = from[parent].saved + choice.saved;
        if (from[parent].saved + choice.highest > problem_.limit || saved > problem_.saved_cap) {
          continue;
        }
        std::int64_t time = from[parent].time + choice.time;
        double least =
            static_cast<double>(time) + relaxation_.bound(i + 1, problem_.saved_cap - saved);
        // One picosecond a layer covers the rounding of the bound.
        if (least > incumbent_ + static_cast<double>(problem_.layers.size())) {
          continue;
        }
        pairs.push_back({.saved = saved,
                         .time = time,
                         .parent = static_cast<std::uint32_t>(parent),
                         .choice = static_cast<std::uint8_t>(c)});
      }
    }
    keep_best(&pairs);
    if (pairs.size() > most_pairs_) {
      thin_out(&pairs, most_pairs_);
      exact_ = false;
    }
    return pairs;
  }

  // A way that fits, to cut off what cannot be better: every layer takes what it likes at a price a
  // saved byte, the first ones at a little more, at the lowest price and the fewest layers at which
  // that fits.
  void find_incumbent() {
    for (double price : corner_prices(problem_)) {
      std::size_t low = 0;
      std::size_t high = problem_.layers.size() + 1;
      while (low < high) {
        std::size_t n = (low + high) / 2;
        bool enough = n > problem_.layers.size() || fits(problem_, at_price(price, n));
        (enough ? high : low) = enough ? n : n + 1;
      }
      if (low > problem_.layers.size()) {
        continue;
      }
      std::vector<std::size_t> choices = at_price(price, low);
      if (auto time = static_cast<double>(time_of(choices)); time < incumbent_) {
        incumbent_ = time;
        incumbent_choices_ = std::move(choices);
      }
    }
  }

  std::vector<std::size_t> at_price(double price, std::size_t saving_layers) const {
    constexpr double kALittle = 1e-9;
    std::vector<std::size_t> choices;
    for (std::size_t i = 0; i < problem_.layers.size(); ++i) {
      double paid = price * (i < saving_layers ? 1 + kALittle : 1 - kALittle);
      auto cost = [paid](const Choice& choice) {
        return static_cast<double>(choice.time) + paid * static_cast<double>(choice.saved);
      };
      const std::vector<Choice>& layer = problem_.layers[i];
      choices.push_back(
          static_cast<std::size_t>(std::ranges::min_element(layer, {}, cost) - layer.begin()));
    }
    return choices;
  }

  std::int64_t time_of(const std::vector<std::size_t>& choices) const {
    std::int64_t time = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      time += problem_.layers[i][choices[i]].time;
    }
    return time;
  }

  const Problem& problem_;
  Relaxation relaxation_;
  std::size_t most_pairs_;
  double incumbent_ = kInfinity;
  std::vector<std::size_t> incumbent_choices_;
  bool exact_ = true;
};

// Among layers of a kind, those that save least first.
std::vector<std::size_t> least_saving_first(const Problem& problem, const std::vector<int>& kinds,
                                            const std::vector<std::size_t>& choices) {
  auto alike = [&kinds](std::size_t i, std::size_t j) {
    return kinds.empty() || kinds[i] == kinds[j];
  };
  std::vector<std::size_t> ordered = choices;
  std::vector<bool> done(choices.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (done[i]) {
      continue;
    }
    std::vector<std::size_t> places;
    std::vector<std::size_t> chosen;
    for (std::size_t j = i; j < choices.size(); ++j) {
      if (!done[j] && alike(i, j)) {
        done[j] = true;
        places.push_back(j);
        chosen.push_back(choices[j]);
      }
    }
    std::ranges::sort(chosen, {}, [&](std::size_t c) {
      return std::pair(problem.layers[i][c].saved, -problem.layers[i][c].time);
    });
    for (std::size_t k = 0; k < places.size(); ++k) {
      ordered[places[k]] = chosen[k];
    }
  }
  return ordered;
}

}  // namespace

double peak_of(const Stack& stack, const std::vector<std::size_t>& choices) {
  double saved = 0;
  double peak = stack.elsewhere_bytes;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const LayerChoice& choice = stack.layers[i][choices[i]];
    peak = std::max({peak, saved + choice.forward_bytes, saved + choice.backward_bytes});
    saved += choice.saved_bytes;
  }
  return std::max(peak, saved + stack.head_bytes);
}

double least_seconds(const Stack& stack, double limit_bytes) {
  Problem problem(stack, limit_bytes);
  if (stack.elsewhere_bytes > limit_bytes || surely_impossible(problem)) {
    return kInfinity;
  }
  double bound = Relaxation(problem, best_price(problem)).bound(0, problem.saved_cap);
  return std::max(0.0, bound / kPicoseconds);
}

std::optional<StackSolution> solve(const Stack& stack, double limit_bytes, std::size_t most_pairs) {
  Problem problem(stack, limit_bytes);
  if (stack.elsewhere_bytes > limit_bytes || surely_impossible(problem)) {
    return std::nullopt;
  }
  Search search(problem, most_pairs);
  std::vector<std::size_t> choices = search.run();
  if (choices.empty() && !stack.layers.empty()) {
    return std::nullopt;
  }
  std::vector<std::size_t> ordered = least_saving_first(problem, stack.kinds, choices);
  StackSolution solution;
  solution.choices = fits(problem, ordered) ? ordered : choices;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    solution.seconds += stack.layers[i][solution.choices[i]].seconds;
  }
  solution.peak_bytes = peak_of(stack, solution.choices);
  solution.least_seconds = search.exact()
                               ? solution.seconds
                               : std::clamp(search.bound() / kPicoseconds, 0.0, solution.seconds);
  return solution;
}

}  // namespace ljtrain::recompute
