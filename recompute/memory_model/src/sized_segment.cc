#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <string_view>
#include <utility>

#include "prepared.h"

namespace ljtrain::recompute {
namespace {

constexpr std::size_t kSymbolMicroBatch = 0;
constexpr std::size_t kSymbolSeq = 1;
constexpr double kCudaBlock = 512;
std::string_view module_of(std::string_view parameter) {
  std::size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : parameter.substr(0, dot);
}

// Operators that read a matrix of parameters.
bool reads_matrix(std::string_view name) {
  return name.find("mm") != std::string_view::npos ||
         name.find("linear") != std::string_view::npos ||
         name.find("embedding") != std::string_view::npos;
}

Component component_of(Role role, Component saved, Component transient) {
  switch (role) {
    case Role::kInput:
    case Role::kOutput:
      return Component::kLayerInputs;
    case Role::kOutputGradient:
    case Role::kInputGradient:
      return Component::kWorkingSet;
    case Role::kWeightGradient:
      return Component::kGradients;
    case Role::kWeightCast:
      return Component::kWeights;
    case Role::kShared:
      return Component::kActivations;
    case Role::kActivation:
      return saved;
    case Role::kTemporary:
    case Role::kHostTemporary:
      return transient;
  }
  return transient;
}

// Where in `events` (its first `end` entries) each module is first read: as recorded, else by
// matching matrices to the operators that read one, else in equal steps.
std::vector<std::size_t> first_uses(const Segment& segment, const std::vector<int>& events,
                                    std::size_t end, const std::vector<std::vector<int>>& modules) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < end; ++i) {
    if (events[i] > 0 &&
        reads_matrix(segment.tensors[static_cast<std::size_t>(events[i]) - 1].operator_name)) {
      places.push_back(i);
    }
  }
  std::vector<std::size_t> matrices;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    bool matrix = std::ranges::any_of(modules[m], [&](int parameter) {
      return segment.parameters[static_cast<std::size_t>(parameter)].elements.degree() > 1;
    });
    if (matrix) {
      matrices.push_back(m);
    }
  }
  std::vector<std::size_t> uses(modules.size(), 0);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    uses[matrices[i]] = places.size() == matrices.size() ? places[i] : end * i / matrices.size();
  }
  return uses;
}

// The same for the forward, where the trace may have recorded it.
std::vector<std::size_t> forward_uses(const Segment& segment,
                                      const std::vector<std::vector<int>>& modules) {
  std::vector<std::size_t> uses =
      first_uses(segment, segment.forward, segment.forward.size(), modules);
  if (segment.uses.empty()) {
    return uses;
  }
  for (std::size_t m = 0; m < modules.size(); ++m) {
    std::size_t first = segment.forward.size();
    bool found = false;
    for (const auto& [parameter, event] : segment.uses) {
      if (std::ranges::find(modules[m], parameter) != modules[m].end()) {
        first = std::min(first, static_cast<std::size_t>(event));
        found = true;
      }
    }
    if (found) {
      uses[m] = first;
    }
  }
  return uses;
}

// Where a module is read and where it has been.
struct Span {
  std::size_t begin;
  std::size_t end;
  int module;
};

// By place; spans that begin together stay in order.
void sort_spans(std::vector<Span>& spans) {
  std::multimap<std::size_t, Span> sorted;
  for (const Span& span : spans) {
    sorted.emplace(span.begin, span);
  }
  std::ranges::copy(sorted | std::views::values, spans.begin());
}

// Modules in the order of their first use, each until the next one's.
std::vector<Span> spans_in_order(const std::vector<std::size_t>& uses, std::size_t end) {
  std::vector<Span> spans;
  for (std::size_t m = 0; m < uses.size(); ++m) {
    spans.push_back({.begin = uses[m], .end = end, .module = static_cast<int>(m)});
  }
  sort_spans(spans);
  for (std::size_t i = 0; i + 1 < spans.size(); ++i) {
    spans[i].end = spans[i + 1].begin;
  }
  return spans;
}

// In backward a module is read where its first gradient is made; one without gradients (frozen)
// where its successor in forward order was.
std::vector<Span> backward_spans(const Segment& segment, std::size_t start,
                                 const std::vector<std::vector<int>>& modules,
                                 const std::vector<std::size_t>& forward) {
  std::vector<Span> order = spans_in_order(forward, segment.forward.size());
  std::ranges::reverse(order);
  std::vector<Span> spans;
  std::size_t place = start;
  for (const Span& span : order) {
    std::size_t first = segment.backward.size();
    std::size_t last = 0;
    for (std::size_t i = start; i < segment.backward.size(); ++i) {
      int event = segment.backward[i];
      if (event <= 0) {
        continue;
      }
      int parameter = segment.tensors[static_cast<std::size_t>(event) - 1].parameter;
      const std::vector<int>& own = modules[static_cast<std::size_t>(span.module)];
      if (parameter >= 0 && std::ranges::find(own, parameter) != own.end()) {
        first = std::min(first, i);
        last = std::max(last, i + 1);
      }
    }
    bool has_gradient = last > 0;
    place = has_gradient ? first : place;
    spans.push_back({.begin = place, .end = has_gradient ? last : place, .module = span.module});
  }
  sort_spans(spans);
  return spans;
}

// Events and the uses of modules as one list.
std::vector<PassItem> merge(const Segment& segment, const std::vector<int>& events,
                            const std::vector<Span>& spans) {
  std::vector<PassItem> items;
  items.reserve(events.size() + 2 * spans.size());
  std::size_t next = 0;
  std::vector<const Span*> open;
  for (std::size_t i = 0; i <= events.size(); ++i) {
    std::erase_if(open, [&](const Span* span) {
      bool ends = span->end <= i;
      if (ends) {
        items.push_back({PassItem::Kind::kDone, span->module});
      }
      return ends;
    });
    for (; next < spans.size() && spans[next].begin <= i; ++next) {
      items.push_back({PassItem::Kind::kUse, spans[next].module});
      if (spans[next].end <= i) {
        items.push_back({PassItem::Kind::kDone, spans[next].module});
      } else {
        open.push_back(&spans[next]);
      }
    }
    if (i < events.size() && events[i] == 0) {
      items.push_back({PassItem::Kind::kAutocastEnds, 0});
    } else if (i < events.size()) {
      int tensor = std::abs(events[i]) - 1;
      bool gradient =
          segment.tensors[static_cast<std::size_t>(tensor)].role == Role::kWeightGradient;
      PassItem::Kind allocation = gradient ? PassItem::Kind::kGradient : PassItem::Kind::kAllocate;
      items.push_back({events[i] > 0 ? allocation : PassItem::Kind::kFree, tensor});
    }
  }
  return items;
}

}  // namespace

double rounded_bytes(double bytes, Platform platform) {
  return platform == Platform::kCuda ? std::ceil(bytes / kCudaBlock) * kCudaBlock : bytes;
}

std::vector<std::vector<int>> local_modules(const Segment& segment) {
  std::vector<std::vector<int>> modules;
  std::map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < segment.parameters.size(); ++i) {
    auto [found, fresh] = numbers.emplace(module_of(segment.parameters[i].name), modules.size());
    if (fresh) {
      modules.emplace_back();
    }
    modules[found->second].push_back(static_cast<int>(i));
  }
  return modules;
}

SizedSegment size_segment(const Segment& segment, const Sizes& sizes, const TrainingSetup& setup,
                          Component saved, Component transient) {
  SizedSegment sized;
  Sizes chunk = sizes;
  chunk.micro_batch = 1;
  chunk.seq = std::min(kFusedLossChunk, sizes.micro_batch * sizes.seq);
  std::vector<bool> freed(segment.tensors.size());
  for (const std::vector<int>* events : {&segment.forward, &segment.backward}) {
    for (int event : *events) {
      if (event < 0) {
        freed[static_cast<std::size_t>(-event) - 1] = true;
      }
    }
  }
  for (std::size_t i = 0; i < segment.tensors.size(); ++i) {
    const Tensor& tensor = segment.tensors[i];
    bool per_token_logits =
        tensor.bytes.depends_on(kSymbolVocab) &&
        (tensor.bytes.depends_on(kSymbolSeq) || tensor.bytes.depends_on(kSymbolMicroBatch));
    const Sizes& used = setup.fused_loss && per_token_logits ? chunk : sizes;
    double bytes = rounded_bytes(tensor.bytes.evaluate(used), setup.platform);
    if (tensor.role == Role::kHostTemporary && setup.platform != Platform::kHost) {
      bytes = 0;
    }
    sized.tensors.push_back({.bytes = bytes,
                             .component = component_of(tensor.role, saved, transient),
                             .role = tensor.role,
                             .parameter = tensor.parameter});
    if (tensor.role == Role::kWeightCast && !freed[i]) {
      sized.casts += bytes;
    }
  }
  std::vector<std::vector<int>> modules = local_modules(segment);
  std::vector<std::size_t> uses = forward_uses(segment, modules);
  sized.forward = merge(segment, segment.forward, spans_in_order(uses, segment.forward.size()));
  std::size_t recompute = static_cast<std::size_t>(std::max(0, segment.recompute_events));
  std::vector<Span> spans = backward_spans(segment, recompute, modules, uses);
  if (recompute > 0) {
    std::vector<Span> again =
        spans_in_order(first_uses(segment, segment.backward, recompute, modules), recompute);
    spans.insert(spans.begin(), again.begin(), again.end());
  }
  sized.backward = merge(segment, segment.backward, spans);
  return sized;
}

Segment keep_operators(const Segment& checkpointed,
                       const std::set<std::string, std::less<>>& kept) {
  Segment result = checkpointed;
  // Outputs of kept operators in forward, by operator, in order.
  std::map<std::string, std::vector<int>> outputs;
  std::set<int> saved;
  for (int event : checkpointed.forward) {
    const Tensor& tensor = checkpointed.tensors[static_cast<std::size_t>(std::abs(event)) - 1];
    if (event > 0 && kept.contains(tensor.operator_name) && tensor.role != Role::kOutput) {
      outputs[tensor.operator_name].push_back(event);
      saved.insert(event);
      result.tensors[static_cast<std::size_t>(event) - 1].role = Role::kActivation;
    }
  }
  std::erase_if(result.forward, [&](int event) { return event < 0 && saved.contains(-event); });
  // The same outputs where backward computes them again are taken from what was kept.
  std::map<int, int> taken;
  std::map<std::string, std::size_t> next;
  std::size_t end = checkpointed.recompute_events >= 0
                        ? static_cast<std::size_t>(checkpointed.recompute_events)
                        : checkpointed.backward.size();
  for (std::size_t i = 0; i < end; ++i) {
    int event = checkpointed.backward[i];
    if (event <= 0) {
      continue;
    }
    const Tensor& tensor = checkpointed.tensors[static_cast<std::size_t>(event) - 1];
    auto found = outputs.find(tensor.operator_name);
    std::size_t& number = next[tensor.operator_name];
    if (found != outputs.end() && number < found->second.size() &&
        checkpointed.tensors[static_cast<std::size_t>(found->second[number]) - 1].bytes ==
            tensor.bytes) {
      taken[event] = found->second[number++];
    }
  }
  result.backward.clear();
  int recompute = 0;
  for (std::size_t i = 0; i < checkpointed.backward.size(); ++i) {
    int event = checkpointed.backward[i];
    auto found = taken.find(std::abs(event));
    bool dropped = found != taken.end() && event > 0;
    if (!dropped) {
      result.backward.push_back(found == taken.end() ? event : -found->second);
      recompute += std::cmp_less(i, checkpointed.recompute_events) ? 1 : 0;
    }
  }
  // What was kept and is not computed again (the trace stops recomputing early) ends with the
  // layer.
  std::set<int> released;
  for (const auto& [again, first] : taken) {
    released.insert(first);
  }
  for (int tensor : saved) {
    if (!released.contains(tensor)) {
      result.backward.push_back(-tensor);
    }
  }
  result.recompute_events = checkpointed.recompute_events < 0 ? -1 : recompute;
  return result;
}

}  // namespace ljtrain::recompute
