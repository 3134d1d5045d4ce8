#include "plan/run_plan.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <set>
#include <string>

#include "answer.h"
#include "base/errors.h"
#include "base/units.h"

namespace ljtrain::ljperf {
namespace {

// A limit that not even an idle process fits in is a slip of the pen, not a model too large.
void check_limit(const Subject& subject, const recompute::Prediction& prediction) {
  double baseline =
      prediction.static_components[static_cast<std::size_t>(recompute::Component::kFramework)];
  if (subject.limit.bytes <= baseline) {
    throw base::user_error(
        "the limit of {} ({}) is below what PyTorch itself takes on a rank, about {}; raise "
        "--limit or --device-memory",
        base::format_bytes(subject.limit.bytes), subject.limit.source,
        base::format_bytes(baseline));
  }
}

// Operators to keep must be some that the layers have: a name that is not would change nothing.
void check_kept(const PlanOptions& options, const Subject& subject,
                const recompute::Predictor& predictor) {
  std::set<std::string> names;
  std::set<recompute::LayerKind> kinds;
  for (recompute::LayerKind kind :
       shape_of(subject.config, subject.setup.seq, subject.lora).layers) {
    if (kinds.insert(kind).second) {
      for (const recompute::OperatorCost& cost : predictor.operators(kind)) {
        names.insert(cost.name);
      }
    }
  }
  for (const std::string& name : options.keep) {
    if (!names.contains(name)) {
      throw base::user_error("--keep {}: the layers have no such operator; they have {}", name,
                             fmt::join(names, ", "));
    }
  }
}

}  // namespace

int run_plan(const PlanOptions& options) {
  Subject subject = make_subject(options);
  Answer answer;
  recompute::Predictor predictor = predictor_of(subject, subject.setup);
  answer.parameters = predictor.parameters();
  answer.trainable_parameters = predictor.trainable_parameters();
  check_kept(options, subject, predictor);
  answer.plan = plan_of(subject, subject.setup, request_of(subject, options));
  check_limit(subject, answer.plan.prediction);
  answer.alternatives = find_alternatives(subject, options, answer.plan);
  answer.max_micro_batch = largest_micro_batch(subject, options);
  answer.max_seq = largest_sequence(subject, options);
  answer.warnings = find_warnings(subject, answer);
  answer.shortfall = describe_shortfall(subject, answer);
  if (!options.plot.empty()) {
    base::write_file_atomically(options.plot, to_page(subject, answer));
    fmt::print(stderr, "plot: {}\n", options.plot.string());
  }
  if (options.json) {
    fmt::print("{}\n", to_json(subject, answer).dump(2));
  } else {
    fmt::print("{}", to_text(subject, answer));
  }
  if (!answer.plan.fits) {
    fmt::print(stderr, "ljperf: {}\n", answer.shortfall);
  }
  return answer.plan.fits ? base::kDone : base::kFailed;
}

}  // namespace ljtrain::ljperf
