// What one layer (and what comes before and after the layers) allocates and frees, as traced from
// PyTorch by `ljperf trace` on fake tensors, symbolic in all sizes. recompute/profiles/*.json hold
// the shipped families and are built into the library.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "memory_model/expression.h"

namespace ljtrain::recompute {

inline constexpr std::int64_t kProfileSchemaVersion = 1;

// How autograd and the compiler treated the layer when it was traced.
enum class Mode : std::uint8_t { kEager, kCheckpointed, kCompiled, kCompiledCheckpointed };
// bf16: parameters and arithmetic bf16 (DeepSpeed; FSDP2's mixed precision, which needs no
// autocast). autocast: fp32 parameters, arithmetic bf16 under autocast (DDP, one rank).
// bf16_autocast: bf16 parameters under autocast, outputs converted to fp32.
enum class Precision : std::uint8_t { kBf16, kAutocast, kFp32, kBf16Autocast };

std::string_view mode_name(Mode mode);                 // as the JSON spells it
std::string_view precision_name(Precision precision);  // as the JSON spells it

// What a tensor of a segment is to its neighbours; see docs/recompute.md.
enum class Role : std::uint8_t {
  kInput,           // hidden states coming in: allocated by the segment before, freed by this one
  kOutput,          // allocated here, freed by the next segment
  kOutputGradient,  // allocated by the next segment's backward, freed here
  kInputGradient,   // allocated here in backward, freed by the segment before
  kWeightGradient,  // a parameter's gradient, allocated here; the engine frees it
  kWeightCast,      // autocast's cached copy of a parameter, freed when autocast ends
  kShared,          // masks, rotary tables: to the step's end unless freed by an event
  kActivation,      // saved for backward
  kTemporary,
  kHostTemporary,  // a buffer inside a kernel of hosts; devices have none
};

struct Tensor {
  Expression bytes;
  std::string operator_name;  // "aten.mm": what made it
  Role role = Role::kTemporary;
  int parameter = -1;  // of kWeightGradient: which of the segment's parameters
};

struct Work {
  std::string operator_name;
  Expression flops;
  Expression bytes_moved;
};

struct ParameterShape {
  std::string name;
  Expression elements;
  bool trainable = true;
};

// Events are tensor numbers: n > 0 allocates tensor n (counted from 1), -n frees it. 0, in an
// epilogue's forward: autocast ends, and with it all casts that no event frees.
struct Segment {
  std::vector<Tensor> tensors;
  std::vector<int> forward;
  std::vector<int> backward;
  std::vector<Work> work;                  // of the forward, in order
  std::vector<ParameterShape> parameters;  // in the order of the modules
  // Of a checkpointed variant: how many of the first events of `backward` belong to the forward
  // that is computed again; -1: not recorded.
  int recompute_events = -1;
  // {number of a parameter, index into `forward` of the event before which it is first read};
  // empty: not recorded.
  std::vector<std::pair<int, int>> uses;
  std::string assumption;  // "" or what data-dependent parts were traced with
};

struct Variant {
  Mode mode = Mode::kEager;
  Precision precision = Precision::kBf16;
  bool lora = false;
  // "prologue", "prologue:window" (with its mask: where a window is shorter than the sequence),
  // "layer:dense", "layer:dense_window", "layer:moe", "layer:moe_window", "epilogue";
  // layers also with "_ungrouped" (as many heads of keys as of queries) and "_flash".
  std::map<std::string, Segment, std::less<>> segments;
};

struct Profile {
  std::string family;  // model_type of transformers
  std::map<std::string, std::string> traced_with;
  std::vector<Variant> variants;

  // Null when there is none.
  const Variant* find(Mode mode, Precision precision, bool lora) const;
};

// Reads and checks. Throws UserError naming file, line and key: another schema_version, missing or
// mistyped keys, unknown symbols, roles, modes; events that free what is not alive, allocate twice,
// or name no tensor.
Profile read_profile(const base::JsonDocument& document);

// The built-in profile of a family; null when none was shipped (`ljperf trace` makes one).
const Profile* find_profile(std::string_view family);
// The built-in families, sorted.
std::vector<std::string> profile_families();

}  // namespace ljtrain::recompute
