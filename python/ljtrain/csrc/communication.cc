#include "communication.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "immortal.h"
#include "phase_clock.h"

namespace ljtrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kNamespace = "c10d::";
constexpr c10::DispatchKey kKey = c10::DispatchKey::BackendSelect;

struct Counters {
  explicit Counters(std::string operator_name) : name(std::move(operator_name)) {}

  const std::string name;
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::int64_t> nanoseconds{0};
};

// Books a block to communication and to the operator's counters.
class CommunicationScope {
 public:
  explicit CommunicationScope(Counters& counters) : counters_(counters), began_(Clock::now()) {}
  ~CommunicationScope() {
    const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_);
    counters_.nanoseconds.fetch_add(spent.count(), std::memory_order_relaxed);
  }
  CommunicationScope(const CommunicationScope&) = delete;
  CommunicationScope& operator=(const CommunicationScope&) = delete;

 private:
  Counters& counters_;
  const Clock::time_point began_;
  const PhaseScope phase_{Phase::kCommunication};
};

// A Work that does what `inner` does, and times what blocks.
class TimedWork final : public c10d::Work {
 public:
  TimedWork(c10::intrusive_ptr<c10d::Work> inner, Counters& counters)
      : c10d::Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), counters_(counters) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override {
    const CommunicationScope scope(counters_);
    inner_->synchronize();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const CommunicationScope scope(counters_);
    return inner_->wait(timeout);
  }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
  float getDuration() const override { return inner_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  Counters& counters_;
};

std::int64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    // Sparse tensors have no byte size, traced ones may not have a number for it.
    return tensor.defined() && tensor.layout() == at::kStrided
               ? tensor.sym_nbytes().maybe_as_int().value_or(0)
               : 0;
  }
  std::int64_t bytes = 0;
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      bytes += bytes_of(item);
    }
  }
  return bytes;
}

std::int64_t largest_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::size_t arguments = op.schema().arguments().size();
  std::int64_t largest = 0;
  for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor() || value.isTensorList() || (value.isList() && !value.isIntList())) {
      largest = std::max(largest, bytes_of(value));
    }
  }
  return largest;
}

bool is_work(const c10::Type& type) {
  const auto* of_class = type.castRaw<c10::ClassType>();
  return of_class != nullptr && of_class->name() &&
         of_class->name()->qualifiedName() == "__torch__.torch.classes.c10d.Work";
}

class TimedCollective final : public c10::OperatorKernel {
 public:
  TimedCollective(Counters& counters, const std::atomic<bool>& enabled)
      : counters_(counters), enabled_(enabled) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
    if (!enabled_.load(std::memory_order_relaxed)) {
      op.redispatchBoxed(below, stack);
      return;
    }
    counters_.calls.fetch_add(1, std::memory_order_relaxed);
    counters_.bytes.fetch_add(largest_argument(op, *stack), std::memory_order_relaxed);
    const CommunicationScope scope(counters_);
    op.redispatchBoxed(below, stack);
    wrap_work(op, stack);
  }

 private:
  void wrap_work(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& returns = op.schema().returns();
    const std::size_t first = stack->size() - returns.size();
    for (std::size_t i = 0; i < returns.size(); ++i) {
      c10::IValue& value = (*stack)[first + i];
      if (!is_work(*returns[i].type()) || value.isNone()) {
        continue;
      }
      auto inner = value.toCustomClass<c10d::Work>();
      if (inner) {
        value = c10::IValue(c10::intrusive_ptr<c10d::Work>(
            c10::make_intrusive<TimedWork>(std::move(inner), counters_)));
      }
    }
  }

  Counters& counters_;
  const std::atomic<bool>& enabled_;
};

struct State {
  std::atomic<bool> enabled{true};
  std::vector<std::unique_ptr<Counters>> counters;
  std::vector<std::unique_ptr<torch::Library>> libraries;
};

State& state() { return immortal<State>(); }

// Operators that communicate: those that return a Work, and the one that blocks without.
bool communicates(const c10::FunctionSchema& schema) {
  return schema.name() == "c10d::monitored_barrier_" ||
         std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& returned) { return is_work(*returned.type()); });
}

void time_operator(torch::Library& library, const std::string& name) {
  State& s = state();
  s.counters.push_back(std::make_unique<Counters>(name));
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                 std::make_unique<TimedCollective>(*s.counters.back(), s.enabled)));
}

torch::Library& new_library(const char* name_space) {
  state().libraries.push_back(
      std::make_unique<torch::Library>(torch::Library::IMPL, name_space, kKey, __FILE__, __LINE__));
  return *state().libraries.back();
}

}  // namespace

void install_communication_timing() {
  if (!state().libraries.empty()) {
    return;
  }
  torch::Library& c10d = new_library("c10d");
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(kNamespace)) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (op && communicates(op->schema())) {
      time_operator(c10d, name.name.substr(kNamespace.size()));
    }
  }
  // DeepSpeed's all-reduce over shared memory goes past c10d. It may be defined later, when
  // DeepSpeed builds it.
  torch::Library& deepspeed = new_library("deepspeed");
  time_operator(deepspeed, "inference_all_reduce_");
  time_operator(deepspeed, "inference_all_reduce");
}

void set_communication_timing_enabled(bool enabled) {
  state().enabled.store(enabled, std::memory_order_relaxed);
}

std::vector<CollectiveStatistics> communication_statistics() {
  std::vector<CollectiveStatistics> used;
  for (const auto& counters : state().counters) {
    if (counters->calls.load() > 0) {
      used.push_back({.name = counters->name,
                      .calls = counters->calls.load(),
                      .bytes = counters->bytes.load(),
                      .seconds = static_cast<double>(counters->nanoseconds.load()) * 1e-9});
    }
  }
  return used;
}

void reset_communication_statistics() {
  for (const auto& counters : state().counters) {
    counters->calls = 0;
    counters->bytes = 0;
    counters->nanoseconds = 0;
  }
}

}  // namespace ljtrain
