#include "memory_model/profile.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

using base::Json;
using Pointer = Json::json_pointer;

// Above anything that a layer of a transformer does.
constexpr std::size_t kMostTensors = 100'000;
constexpr std::size_t kMostEvents = 400'000;
constexpr std::size_t kMostParameters = 10'000;
constexpr std::size_t kMostVariants = 64;
constexpr std::size_t kMostSegments = 16;
constexpr std::size_t kMostParts = kMostVariants * kMostSegments;
constexpr std::string_view kGradientRole = "weight_gradient:";

constexpr std::array<std::pair<std::string_view, Role>, 9> kRoles{{
    {"input", Role::kInput},
    {"output", Role::kOutput},
    {"output_gradient", Role::kOutputGradient},
    {"input_gradient", Role::kInputGradient},
    {"weight_cast", Role::kWeightCast},
    {"shared", Role::kShared},
    {"activation", Role::kActivation},
    {"temporary", Role::kTemporary},
    {"host_temporary", Role::kHostTemporary},
}};
constexpr std::array kModes{Mode::kEager, Mode::kCheckpointed, Mode::kCompiled,
                            Mode::kCompiledCheckpointed};
constexpr std::array kPrecisions{Precision::kBf16, Precision::kAutocast, Precision::kFp32,
                                 Precision::kBf16Autocast};

class ProfileReader {
 public:
  explicit ProfileReader(const base::JsonDocument& document) : document_(document) {}

  Profile read() {
    const Json& root = document_.root();
    if (!root.is_object()) {
      throw base::user_error("{}: a profile is a JSON object; write it with `ljperf trace`",
                             document_.name());
    }
    check_version();
    Profile profile;
    profile.family = string_at(Pointer("/family"));
    if (root.contains("traced_with") && root["traced_with"].is_object()) {
      for (const auto& [name, version] : root["traced_with"].items()) {
        profile.traced_with[name] = version.is_string() ? version.get<std::string>() : "?";
      }
    }
    Pointer variants("/variants");
    std::size_t count = array_at(variants, kMostVariants).size();
    for (std::size_t i = 0; i < count; ++i) {
      profile.variants.push_back(read_variant(variants / i));
    }
    if (profile.variants.empty()) {
      throw wrong(variants, "a list with at least one variant");
    }
    return profile;
  }

 private:
  void check_version() const {
    Pointer pointer("/schema_version");
    if (!document_.root().contains(pointer)) {
      throw wrong(pointer, "1");
    }
    const Json& version = at(pointer);
    if (!version.is_number_integer() || version != kProfileSchemaVersion) {
      throw base::user_error(
          "{} is {}, this ljperf reads {}: trace the family again with `ljperf trace`",
          document_.where(pointer), shown(version), kProfileSchemaVersion);
    }
  }

  Variant read_variant(const Pointer& pointer) {
    require_object(pointer);
    Variant variant;
    variant.mode = one_of(pointer / "mode", kModes, mode_name);
    variant.precision = one_of(pointer / "precision", kPrecisions, precision_name);
    Pointer lora = pointer / "lora";
    if (document_.root().contains(lora)) {
      if (!at(lora).is_boolean()) {
        throw wrong(lora, "true or false");
      }
      variant.lora = at(lora).get<bool>();
    }
    Pointer segments = pointer / "segments";
    require_object(segments);
    if (at(segments).size() > kMostSegments) {
      throw wrong(segments, "prologue, epilogue and the kinds of layers");
    }
    for (const auto& [name, segment] : at(segments).items()) {
      variant.segments.emplace(name, part_at(segments / name));
    }
    for (const char* needed : {"prologue", "epilogue"}) {
      if (!variant.segments.contains(needed)) {
        throw wrong(segments / needed, "a segment");
      }
    }
    return variant;
  }

  // Variants share segments: a number is that of one of `parts`, which is read once.
  Segment part_at(const Pointer& pointer) {
    if (at(pointer).is_object()) {
      return read_segment(pointer);
    }
    if (!document_.root().contains(Pointer("/parts"))) {
      throw wrong(pointer, "an object");
    }
    const std::size_t parts = array_at(Pointer("/parts"), kMostParts).size();
    std::optional<int> number = optional_index(pointer, parts);
    if (!number.has_value() || std::cmp_greater_equal(*number, parts)) {
      throw wrong(pointer, "the number of one of `parts`, from 0");
    }
    auto known = parts_.find(*number);
    if (known == parts_.end()) {
      known = parts_.emplace(*number, read_segment(Pointer("/parts") / *number)).first;
    }
    return known->second;
  }

  Segment read_segment(const Pointer& pointer) {
    require_object(pointer);
    Segment segment;
    read_parameters(segment, pointer / "parameters");
    read_tensors(segment, pointer / "tensors");
    read_work(segment, pointer / "work");
    segment.forward = read_events(segment, pointer / "forward", true);
    segment.backward = read_events(segment, pointer / "backward", false);
    check_events(segment, pointer);
    segment.recompute_events =
        optional_index(pointer / "recompute_events", segment.backward.size()).value_or(-1);
    read_uses(segment, pointer / "uses");
    if (document_.root().contains(pointer / "assumption")) {
      segment.assumption = string_at(pointer / "assumption");
    }
    return segment;
  }

  void read_tensors(Segment& segment, const Pointer& pointer) {
    std::size_t count = array_at(pointer, kMostTensors).size();
    for (std::size_t i = 0; i < count; ++i) {
      Pointer entry = pointer / i;
      row_at(entry, 3, "[bytes, operator, role]");
      Tensor tensor;
      tensor.bytes = expression_at(entry / 0);
      tensor.operator_name = text_at(entry / 1);
      read_role(tensor, entry / 2, segment.parameters.size());
      segment.tensors.push_back(std::move(tensor));
    }
  }

  void read_role(Tensor& tensor, const Pointer& pointer, std::size_t parameters) {
    const std::string& role = text_at(pointer);
    for (const auto& [name, value] : kRoles) {
      if (role == name) {
        tensor.role = value;
        return;
      }
    }
    if (role.starts_with(kGradientRole)) {
      std::string digits = role.substr(kGradientRole.size());
      bool number = !digits.empty() && digits.size() < 6 &&
                    std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
      if (number && std::stoul(digits) < parameters) {
        tensor.role = Role::kWeightGradient;
        tensor.parameter = std::stoi(digits);
        return;
      }
      throw wrong(pointer, "weight_gradient: and the number of one of `parameters`, from 0");
    }
    throw wrong(pointer, "a known role");
  }

  void read_work(Segment& segment, const Pointer& pointer) {
    if (!document_.root().contains(pointer)) {
      return;
    }
    std::size_t count = array_at(pointer, kMostTensors).size();
    for (std::size_t i = 0; i < count; ++i) {
      Pointer entry = pointer / i;
      row_at(entry, 3, "[operator, FLOPs, bytes moved]");
      segment.work.push_back({.operator_name = text_at(entry / 0),
                              .flops = expression_at(entry / 1),
                              .bytes_moved = expression_at(entry / 2)});
    }
  }

  void read_parameters(Segment& segment, const Pointer& pointer) {
    if (!document_.root().contains(pointer)) {
      return;
    }
    std::size_t count = array_at(pointer, kMostParameters).size();
    for (std::size_t i = 0; i < count; ++i) {
      Pointer entry = pointer / i;
      row_at(entry, 2, "[name, elements] or [name, elements, trainable]");
      ParameterShape parameter{.name = text_at(entry / 0), .elements = expression_at(entry / 1)};
      if (at(entry).size() > 2) {
        if (!at(entry / 2).is_boolean()) {
          throw wrong(entry / 2, "true or false");
        }
        parameter.trainable = at(entry / 2).get<bool>();
      }
      segment.parameters.push_back(std::move(parameter));
    }
  }

  std::vector<int> read_events(const Segment& segment, const Pointer& pointer,
                               bool may_end_autocast) {
    const Json& list = array_at(pointer, kMostEvents);
    std::vector<int> events;
    events.reserve(list.size());
    auto most = static_cast<std::int64_t>(segment.tensors.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      bool fits = list[i].is_number_integer() &&
                  !(list[i].is_number_unsigned() &&
                    list[i].get<std::uint64_t>() > static_cast<std::uint64_t>(most));
      std::int64_t number = fits ? list[i].get<std::int64_t>() : most + 1;
      if (number > most || number < -most || (number == 0 && !may_end_autocast)) {
        throw wrong(pointer / i, "the number of a tensor, negative when it is freed");
      }
      events.push_back(static_cast<int>(number));
    }
    return events;
  }

  // Each tensor is allocated once and freed at most once, after it was allocated: here, or by the
  // segment before (its input and the gradient of its output).
  void check_events(const Segment& segment, const Pointer& pointer) const {
    enum class State : std::uint8_t { kNotYet, kAlive, kFreed };
    std::vector<State> state;
    for (const Tensor& tensor : segment.tensors) {
      bool from_outside = tensor.role == Role::kInput || tensor.role == Role::kOutputGradient;
      state.push_back(from_outside ? State::kAlive : State::kNotYet);
    }
    for (const auto& [name, events] :
         {std::pair{"forward", &segment.forward}, std::pair{"backward", &segment.backward}}) {
      for (std::size_t i = 0; i < events->size(); ++i) {
        int event = (*events)[i];
        if (event == 0) {
          continue;
        }
        State& tensor = state[static_cast<std::size_t>(std::abs(event)) - 1];
        if (tensor != (event > 0 ? State::kNotYet : State::kAlive)) {
          throw wrong(pointer / name / i, event > 0 ? "a tensor that was not allocated before"
                                                    : "a tensor that is alive");
        }
        tensor = event > 0 ? State::kAlive : State::kFreed;
      }
    }
  }

  void read_uses(Segment& segment, const Pointer& pointer) {
    if (!document_.root().contains(pointer)) {
      return;
    }
    std::size_t count = array_at(pointer, kMostParameters).size();
    for (std::size_t i = 0; i < count; ++i) {
      Pointer entry = pointer / i;
      row_at(entry, 2, "[parameter, index into forward]");
      std::optional<int> parameter = optional_index(entry / 0, segment.parameters.size());
      std::optional<int> event = optional_index(entry / 1, segment.forward.size() + 1);
      if (!parameter.has_value() || *parameter >= std::ssize(segment.parameters)) {
        throw wrong(entry / 0, "the number of one of `parameters`, from 0");
      }
      segment.uses.emplace_back(*parameter, *event);
    }
  }

  // A whole number from 0 to `most`; nullopt when there is none.
  std::optional<int> optional_index(const Pointer& pointer, std::size_t most) const {
    if (!document_.root().contains(pointer)) {
      return std::nullopt;
    }
    const Json& value = at(pointer);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
      throw wrong(pointer, fmt::format("a whole number from 0 to {}", most));
    }
    return value.get<int>();
  }

  template <typename Value, std::size_t kCount>
  Value one_of(const Pointer& pointer, const std::array<Value, kCount>& values,
               std::string_view (*name)(Value)) const {
    std::string text = string_at(pointer);
    for (Value value : values) {
      if (name(value) == text) {
        return value;
      }
    }
    std::string known;
    for (Value value : values) {
      known += (known.empty() ? "" : ", ") + std::string(name(value));
    }
    throw wrong(pointer, "one of " + known);
  }

  // Each expression is parsed once, however often it stands there.
  const Expression& expression_at(const Pointer& pointer) {
    const std::string& text = text_at(pointer);
    auto known = expressions_.find(text);
    if (known == expressions_.end()) {
      try {
        known = expressions_.emplace(text, Expression::parse(text)).first;
      } catch (const base::UserError& error) {
        throw base::user_error("{}: {}", document_.where(pointer), error.what());
      }
    }
    return known->second;
  }

  // A text, or its number among `texts`.
  const std::string& text_at(const Pointer& pointer) const {
    if (at(pointer).is_string()) {
      return at(pointer).get_ref<const std::string&>();
    }
    if (!document_.root().contains(Pointer("/texts"))) {
      throw wrong(pointer, "a string");
    }
    const Json& texts = array_at(Pointer("/texts"), kMostTensors);
    std::optional<int> number = optional_index(pointer, texts.size());
    if (!number.has_value() || std::cmp_greater_equal(*number, texts.size()) ||
        !texts[static_cast<std::size_t>(*number)].is_string()) {
      throw wrong(pointer, "the number of one of `texts`, from 0");
    }
    return texts[static_cast<std::size_t>(*number)].get_ref<const std::string&>();
  }

  const Json& at(const Pointer& pointer) const { return document_.root()[pointer]; }

  void require_object(const Pointer& pointer) const {
    if (!document_.root().contains(pointer) || !at(pointer).is_object()) {
      throw wrong(pointer, "an object");
    }
  }

  const Json& array_at(const Pointer& pointer, std::size_t most) const {
    if (!document_.root().contains(pointer) || !at(pointer).is_array() ||
        at(pointer).size() > most) {
      throw wrong(pointer, fmt::format("a list of at most {} entries", most));
    }
    return at(pointer);
  }

  void row_at(const Pointer& pointer, std::size_t least, std::string_view form) const {
    if (!at(pointer).is_array() || at(pointer).size() < least || at(pointer).size() > 3) {
      throw wrong(pointer, form);
    }
  }

  std::string string_at(const Pointer& pointer) const {
    if (!document_.root().contains(pointer) || !at(pointer).is_string()) {
      throw wrong(pointer, "a string");
    }
    return at(pointer).get<std::string>();
  }

  static std::string shown(const Json& value) {
    constexpr std::size_t kMost = 40;
    if (value.is_structured()) {
      return value.is_array() ? "a list" : "an object";
    }
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
  }

  base::UserError wrong(const Pointer& pointer, std::string_view wanted) const {
    bool present = document_.root().contains(pointer);
    return base::user_error("{} is {}; a profile has {} there: trace it again with `ljperf trace`",
                            document_.where(pointer), present ? shown(at(pointer)) : "absent",
                            wanted);
  }

  const base::JsonDocument& document_;
  std::map<int, Segment> parts_;
  std::map<std::string, Expression> expressions_;
};

}  // namespace

const Variant* Profile::find(Mode mode, Precision precision, bool lora) const {
  auto found = std::ranges::find_if(variants, [&](const Variant& variant) {
    return variant.mode == mode && variant.precision == precision && variant.lora == lora;
  });
  return found == variants.end() ? nullptr : &*found;
}

Profile read_profile(const base::JsonDocument& document) { return ProfileReader(document).read(); }

}  // namespace ljtrain::recompute
