#include "prepared.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

constexpr double kTokenNumberBytes = 8;
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;
constexpr std::size_t kMostLayers = 10'000;
constexpr std::int64_t kMostRanks = 1'000'000;

// transformers' Trainer gives weight decay to all but norms and biases: two parameter groups.
bool decays(std::string_view name) {
  return name.find("norm") == std::string_view::npos && !name.ends_with("bias") &&
         name.find("ln_") == std::string_view::npos &&
         name.find("LayerNorm") == std::string_view::npos;
}

void require_size(std::string_view name, std::int64_t value, std::int64_t least,
                  std::int64_t most) {
  if (value < least || value > most) {
    throw base::user_error("{} is {}; give a whole number from {} to {}", name, value, least, most);
  }
}

}  // namespace

PreparedModel::PreparedModel(const Profile& profile, ModelShape shape, TrainingSetup setup)
    : profile_(profile), shape_(std::move(shape)), setup_(std::move(setup)), sizes_(shape_.sizes) {
  require_size("the number of layers", std::ssize(shape_.layers), 1, kMostLayers);
  require_size("ranks", setup_.ranks, 1, kMostRanks);
  require_size("the micro-batch", setup_.micro_batch, 1, kLargestSize);
  require_size("the sequence length", setup_.seq, 1, kLargestSize);
  require_size("gradient accumulation", setup_.gradient_accumulation, 1, kLargestSize);
  sizes_.micro_batch = setup_.micro_batch;
  sizes_.seq = setup_.seq;
  if (sizes_.window > 0) {
    sizes_.window = std::min(sizes_.window, setup_.seq);
  }
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    require_size(symbol_names()[symbol], size_of_symbol(sizes_, symbol), 0, kLargestSize);
  }
  choose_variants();
  size_segments();
  count_parameters();
}

void PreparedModel::choose_variants() {
  auto find = [&](bool recomputed, bool compiled) {
    Mode eager = recomputed ? Mode::kCheckpointed : Mode::kEager;
    Mode fused = recomputed ? Mode::kCompiledCheckpointed : Mode::kCompiled;
    return profile_.find(compiled ? fused : eager, setup_.precision, shape_.lora);
  };
  for (bool recomputed : {false, true}) {
    const Variant* variant = find(recomputed, setup_.compiled);
    if (variant == nullptr && setup_.compiled) {
      variant = find(recomputed, false);
      if (variant != nullptr) {
        assumptions_.push_back(fmt::format("{} has no compiled {}profile for {}: eager's is used",
                                           profile_.family, recomputed ? "recomputed " : "",
                                           precision_name(setup_.precision)));
      }
    }
    if (variant == nullptr) {
      throw base::user_error(
          "the memory profile of {} has no {} variant for {}{}: trace it with `ljperf trace "
          "--family {}`",
          profile_.family, recomputed ? "checkpointed" : "eager", precision_name(setup_.precision),
          shape_.lora ? " with LoRA" : "", profile_.family);
    }
    (recomputed ? checkpointed_ : eager_) = variant;
  }
  for (LayerKind kind : shape_.layers) {
    traced_layer(kind, false);
    traced_layer(kind, true);
  }
}

const Segment& PreparedModel::traced_layer(LayerKind kind, bool recomputed) const {
  const Variant& variant = recomputed ? *checkpointed_ : *eager_;
  std::string name = "layer:" + std::string(layer_kind_name(kind));
  // Masked attention repeats keys and values only where query heads share them.
  bool ungrouped = sizes_.heads == sizes_.kv_heads;
  for (const char* suffix :
       {shape_.flash_attention ? "_flash" : "", ungrouped ? "_ungrouped" : ""}) {
    if (*suffix != '\0' && variant.segments.contains(name + suffix)) {
      name += suffix;
      break;
    }
  }
  auto found = variant.segments.find(name);
  if (found == variant.segments.end()) {
    throw base::user_error(
        "the memory profile of {} has no segment {} ({}): trace it with `ljperf trace --family {}`",
        profile_.family, name, mode_name(variant.mode), profile_.family);
  }
  return found->second;
}

const Segment& PreparedModel::traced_prologue() const {
  auto windowed = eager_->segments.find("prologue:window");
  bool masks = windowed != eager_->segments.end() && sizes_.window > 0 &&
               sizes_.window < sizes_.seq &&
               std::ranges::any_of(
                   shape_.layers,
                   [](LayerKind kind) {
                     return kind == LayerKind::kDenseWindow || kind == LayerKind::kMoeWindow;
                   });
  return masks ? windowed->second : eager_->segments.find("prologue")->second;
}

void PreparedModel::size_segments() {
  const Segment& before = traced_prologue();
  const Segment& after = eager_->segments.find("epilogue")->second;
  prologue_ = size_segment(before, sizes_, setup_, Component::kActivations, Component::kWorkingSet);
  epilogue_ = size_segment(after, sizes_, setup_, Component::kLogits, Component::kLogits);
  for (SizedTensor& tensor : epilogue_.tensors) {
    if (tensor.role == Role::kOutput) {
      tensor.component = Component::kLogits;
    }
  }
  for (const Tensor& tensor : before.tensors) {
    if (tensor.role == Role::kOutput) {
      holds_first_input_ = tensor.operator_name.find("embedding") != std::string::npos;
    }
  }
  input_bytes_ = 2 * kTokenNumberBytes * static_cast<double>(sizes_.micro_batch) *
                 static_cast<double>(sizes_.seq);
  std::set<std::string> assumed;
  for (LayerKind kind : shape_.layers) {
    auto number = static_cast<std::size_t>(kind);
    if (kept_[number].tensors.empty()) {
      kept_[number] = size_segment(traced_layer(kind, false), sizes_, setup_,
                                   Component::kActivations, Component::kWorkingSet);
      recomputed_[number] = size_segment(traced_layer(kind, true), sizes_, setup_,
                                         Component::kLayerInputs, Component::kWorkingSet);
      const std::string& assumption = traced_layer(kind, false).assumption;
      if (!assumption.empty() && assumed.insert(assumption).second) {
        assumptions_.push_back(assumption);
      }
    }
  }
  if (setup_.fused_loss) {
    assumptions_.push_back(
        fmt::format("head and loss are fused, {} tokens at a time", kFusedLossChunk));
  }
}

const SizedSegment& PreparedModel::layer(LayerKind kind, bool recomputed) const {
  return (recomputed ? recomputed_ : kept_)[static_cast<std::size_t>(kind)];
}

SizedSegment PreparedModel::selected_layer(LayerKind kind,
                                           const std::set<std::string, std::less<>>& kept) const {
  return size_segment(keep_operators(traced_layer(kind, true), kept), sizes_, setup_,
                      Component::kActivations, Component::kWorkingSet);
}

namespace {

// A parameter that is neither read nor given a gradient is a second name of another (BERT's bias of
// the head).
bool is_second_name(const Segment& segment, int number) {
  bool read = segment.uses.empty() || std::ranges::any_of(segment.uses, [number](const auto& use) {
                return use.first == number;
              });
  return !read && std::ranges::none_of(segment.tensors, [number](const Tensor& tensor) {
    return tensor.parameter == number;
  });
}

}  // namespace

void PreparedModel::add_parameters(const Segment& segment, int number) {
  std::vector<int> owned;
  bool epilogue = number == static_cast<int>(segments()) - 1;
  for (std::size_t i = 0; i < segment.parameters.size(); ++i) {
    const ParameterShape& parameter = segment.parameters[i];
    double elements = parameter.elements.evaluate(sizes_);
    if (is_second_name(segment, static_cast<int>(i))) {
      elements = 0;
    }
    // The head is the embedding: the first parameter of all.
    bool tied = epilogue && shape_.tied_embeddings && parameter.elements.degree() > 1 &&
                parameter.elements.depends_on(kSymbolVocab) && !parameters_.all.empty() &&
                elements == parameters_.all.front().elements;
    if (tied) {
      owned.push_back(0);
      continue;
    }
    owned.push_back(static_cast<int>(parameters_.all.size()));
    parameters_.all.push_back(
        {.elements = elements,
         .trainable = parameter.trainable,
         .decays = decays(parameter.name),
         .saved_as_view = parameter.name.find("experts.") != std::string::npos,
         .segment = number});
    parameters_.elements += elements;
    parameters_.trainable += parameter.trainable ? elements : 0;
  }
  std::vector<int> modules;
  for (const std::vector<int>& local : local_modules(segment)) {
    Module module;
    for (int parameter : local) {
      int global = owned[static_cast<std::size_t>(parameter)];
      module.parameters.push_back(global);
      module.elements += parameters_.all[static_cast<std::size_t>(global)].elements;
    }
    modules.push_back(static_cast<int>(parameters_.modules.size()));
    parameters_.modules.push_back(std::move(module));
  }
  parameters_.of_segment.push_back(std::move(owned));
  parameters_.modules_of_segment.push_back(std::move(modules));
}

void PreparedModel::count_parameters() {
  add_parameters(traced_prologue(), 0);
  for (std::size_t i = 0; i < layers(); ++i) {
    add_parameters(traced_layer(shape_.layers[i], false), static_cast<int>(i) + 1);
  }
  add_parameters(eager_->segments.find("epilogue")->second, static_cast<int>(layers()) + 1);
  auto stated = static_cast<double>(shape_.parameters);
  if (stated > 0 && std::abs(stated - parameters_.elements) > 0.001 * stated) {
    assumptions_.push_back(
        fmt::format("the profile counts {:.0f} parameters, the model's description {:.0f}",
                    parameters_.elements, stated));
  }
}

}  // namespace ljtrain::recompute
