#include "accl_backend.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "accl_rendezvous.h"
#include "accl_tensors.h"
#include "immortal.h"

namespace ljtrain {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What is still under way when a group ends may be what a peer is about to join; one that never
// comes must not hang us.
constexpr auto kGrace = std::chrono::seconds(5);
// c10d's SHRINK_ABORT.
constexpr int kShrinkAbort = 1;
// Closed groups that status() still lists; the sums of older ones are kept under one name.
constexpr std::size_t kClosedGroups = 64;

constexpr std::array<const char*, kAcclOperations> kNames{
    "all_reduce",   "sparse_all_reduce", "broadcast",  "reduce",  "all_gather", "gather",
    "scatter",      "reduce_scatter",    "all_to_all", "barrier", "send",       "recv",
    "recvAnySource"};
constexpr std::array<const char*, kAcclOperations> kTitles{
    "accl:all_reduce",   "accl:sparse_all_reduce",
    "accl:broadcast",    "accl:reduce",
    "accl:all_gather",   "accl:gather",
    "accl:scatter",      "accl:reduce_scatter",
    "accl:all_to_all",   "accl:barrier",
    "accl:send",         "accl:recv",
    "accl:recvAnySource"};
constexpr std::array<const char*, kAcclOperations> kGlooTitles{
    "gloo:all_reduce",   "gloo:sparse_all_reduce",
    "gloo:broadcast",    "gloo:reduce",
    "gloo:all_gather",   "gloo:gather",
    "gloo:scatter",      "gloo:reduce_scatter",
    "gloo:all_to_all",   "gloo:barrier",
    "gloo:send",         "gloo:recv",
    "gloo:recvAnySource"};

// Joining a thread that runs a Python callback while holding the interpreter's lock would be for
// ever.
template <typename Function>
void without_gil(Function function) {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const pybind11::gil_scoped_release released;
    function();
  } else {
    function();
  }
}

// ---- the groups of this process ----

struct Entry {
  c10::intrusive_ptr<AcclOptions> options;  // its name is set after the group is made
  std::shared_ptr<AcclCounters> counters;
  std::weak_ptr<AcclEngine> engine;
  int rank;
  int ranks;
  bool stands_for_gloo;
};

struct Registry {
  std::mutex mutex;
  std::deque<Entry> entries;
  AcclReport older;  // of groups that have left the list
};

Registry& registry() { return immortal<Registry>(); }

void add_to(AcclReport& report, const AcclCounters& counters) {
  for (int i = 0; i < kAcclOperations; ++i) {
    if (const auto calls = counters.calls[i].load(std::memory_order_relaxed); calls > 0) {
      report.calls[kNames[i]] += calls;
    }
  }
  report.bytes += counters.bytes.load(std::memory_order_relaxed);
}

void enlist(Entry entry) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto is_closed = [](const Entry& one) { return one.engine.expired(); };
  while (std::count_if(all.entries.begin(), all.entries.end(), is_closed) >
         static_cast<std::ptrdiff_t>(kClosedGroups)) {
    const auto oldest = std::find_if(all.entries.begin(), all.entries.end(), is_closed);
    add_to(all.older, *oldest->counters);
    all.older.ranks = std::max(all.older.ranks, oldest->ranks);
    all.entries.erase(oldest);
  }
  all.entries.push_back(std::move(entry));
}

std::vector<std::shared_ptr<AcclEngine>> engines() {
  Registry& all = registry();
  std::vector<std::shared_ptr<AcclEngine>> alive;
  const std::lock_guard lock(all.mutex);
  for (const Entry& entry : all.entries) {
    if (auto engine = entry.engine.lock()) {
      alive.push_back(std::move(engine));
    }
  }
  return alive;
}

}  // namespace

std::vector<AcclReport> accl_reports() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<AcclReport> reports;
  for (const Entry& entry : all.entries) {
    const auto engine = entry.engine.lock();
    AcclReport report{.name = entry.options->group_name,
                      .rank = entry.rank,
                      .ranks = entry.ranks,
                      .stands_for_gloo = entry.stands_for_gloo,
                      .open = engine != nullptr && engine->communicator() != nullptr};
    add_to(report, *entry.counters);
    if (report.open || !report.calls.empty()) {
      reports.push_back(std::move(report));
    }
  }
  if (!all.older.calls.empty()) {
    AcclReport report = all.older;
    report.name = "(older groups)";
    reports.push_back(std::move(report));
  }
  return reports;
}

void accl_at_exit() {
  const auto deadline = Clock::now() + kGrace;
  for (const auto& engine : engines()) {
    engine->retire_threads(deadline);
  }
}

// ---- life ----

c10::intrusive_ptr<AcclBackend> AcclBackend::create(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size, Milliseconds timeout,
                                                    const std::string& name, bool stands_for_gloo) {
  TORCH_CHECK_VALUE(size > 0 && rank >= 0 && rank < size, "accl: rank ", rank, " of ", size,
                    " ranks");
  const auto deadline = Clock::now() + timeout;
  const accl::UniqueId id = meet(*store, rank, size, timeout);
  const auto left = std::max<Clock::duration>(deadline - Clock::now(), Milliseconds(1));
  std::shared_ptr<accl::Communicator> communicator;
  try {
    communicator = accl::Communicator::create(id, rank, size, {.timeout = left, .name = name});
  } catch (const accl::Error& error) {
    std::rethrow_exception(as_c10d_exception(error, timeout));
  }
  auto options = c10::make_intrusive<AcclOptions>(timeout);
  options->group_name = name;
  return c10::make_intrusive<AcclBackend>(store, rank, size, std::move(options),
                                          std::move(communicator), stands_for_gloo);
}

AcclBackend::AcclBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                         c10::intrusive_ptr<AcclOptions> options,
                         std::shared_ptr<accl::Communicator> communicator, bool stands_for_gloo)
    : Backend(rank, size),
      options_(std::move(options)),
      store_(std::move(store)),
      stands_for_gloo_(stands_for_gloo),
      counters_(std::make_shared<AcclCounters>()),
      engine_(std::make_shared<AcclEngine>(std::move(communicator))) {
  enlist({.options = options_,
          .counters = counters_,
          .engine = engine_,
          .rank = rank,
          .ranks = size,
          .stands_for_gloo = stands_for_gloo});
  init();
}

AcclBackend::~AcclBackend() {
  if (!engine_->is_mine()) {
    // Locks, threads and memory are the parent's: leave them be.
    std::make_unique<std::shared_ptr<AcclEngine>>(std::move(engine_)).release();
    return;
  }
  without_gil([this] { engine_->shut_down(Clock::now() + kGrace); });
}

void AcclBackend::shutdown() {
  without_gil([this] { engine_->shut_down(Clock::now() + kGrace); });
}

void AcclBackend::abort() {
  without_gil([this] { engine_->abort(fmt::format("rank {} has aborted the group", rank_)); });
}

c10d::ErrorType AcclBackend::getError() {
  const auto communicator = engine_->communicator();
  const auto error = communicator ? communicator->async_error() : std::nullopt;
  if (!error) {
    return c10d::ErrorType::SUCCESS;
  }
  switch (error->code()) {
    case accl::ErrorCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case accl::ErrorCode::kRemote:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

// ---- groups made from this one ----

AcclBackend::Ranks AcclBackend::global_ranks_of(const std::vector<int>& ranks) const {
  const Ranks& mine = options_->global_ranks_in_group;  // empty: the default group
  Ranks global;
  for (const int rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "accl: there is no rank ", rank, " in a group of ",
                      size_);
    global.push_back(mine.empty() ? static_cast<std::uint64_t>(rank) : mine.at(rank));
  }
  return global;
}

c10::intrusive_ptr<AcclBackend> AcclBackend::derive(const std::string& prefix,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    const c10::intrusive_ptr<Options>& opts,
                                                    Ranks global_ranks) {
  auto own_store = c10::make_intrusive<c10d::PrefixStore>(prefix, store->clone());
  auto derived = create(own_store, rank, size, opts ? opts->timeout : options_->timeout,
                        opts ? opts->group_name : "", stands_for_gloo_);
  derived->options_->global_ranks_in_group = std::move(global_ranks);
  return derived;
}

c10::intrusive_ptr<c10d::Backend> AcclBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& opts) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  // Parts that share a store must not take each other's keys.
  return derive(fmt::format("accl_split_{}", fmt::join(ranks, "_")), store,
                static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), opts,
                global_ranks_of(ranks));
}

c10::intrusive_ptr<c10d::Backend> AcclBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const c10::intrusive_ptr<Options>& opts,
                                                     const int& rank, const int& size) {
  return derive("accl_merge", store, rank, size, opts,
                opts ? opts->global_ranks_in_group : Ranks());
}

c10::intrusive_ptr<c10d::Backend> AcclBackend::shrink(
    const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
    const c10::intrusive_ptr<Options>& opts_override) {
  std::vector<int> remaining;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) ==
        ranks_to_exclude.end()) {
      remaining.push_back(rank);
    }
  }
  const auto mine = std::find(remaining.begin(), remaining.end(), rank_);
  TORCH_CHECK_VALUE(mine != remaining.end(), "accl: rank ", rank_,
                    " is among the ranks to exclude and must not call shrink");
  if ((shrink_flags & kShrinkAbort) != 0) {
    abort();
  }
  return derive(fmt::format("accl_shrink_{}_{}", shrinks_++, fmt::join(remaining, "_")), store_,
                static_cast<int>(mine - remaining.begin()), static_cast<int>(remaining.size()),
                opts_override, global_ranks_of(remaining));
}

// ---- memory that peers can map ----

namespace {

void free_shared(void* memory) { accl::Communicator::deallocate(memory); }

class SharedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : accl::Communicator::allocate(bytes);
    return {memory, memory, &free_shared, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_shared; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

std::shared_ptr<c10::Allocator> AcclBackend::getMemAllocator() {
  static const auto allocator = std::make_shared<SharedAllocator>();
  return allocator;
}

at::Tensor AcclBackend::allocateTensor(long size, at::TensorOptions options) {
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  if (bytes == 0) {
    return at::empty({size}, options.device(at::kCPU));
  }
  return at::from_blob(accl::Communicator::allocate(bytes), {size}, free_shared,
                       options.device(at::kCPU));
}

// ---- starting operations ----

const char* AcclBackend::title(AcclOperation operation) const {
  return (stands_for_gloo_ ? kGlooTitles : kTitles)[static_cast<std::size_t>(operation)];
}

void AcclBackend::count(AcclOperation operation, std::size_t bytes) {
  counters_->calls[static_cast<std::size_t>(operation)].fetch_add(1, std::memory_order_relaxed);
  counters_->bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

Milliseconds AcclBackend::limit(Milliseconds asked) const {
  return asked == c10d::kUnsetTimeout ? options_->timeout : asked;
}

c10::intrusive_ptr<c10d::Work> AcclBackend::submit(Call call, CollectiveWork::Body body) {
  std::size_t out_bytes = 0;
  bool on_host = true;
  for (const auto& list : call.outputs) {
    out_bytes += bytes_of(list);
    on_host = on_host && std::all_of(list.begin(), list.end(),
                                     [](const at::Tensor& tensor) { return tensor.is_cpu(); });
  }
  count(call.operation, std::max(bytes_of(call.inputs), out_bytes));
  auto work = c10::make_intrusive<CollectiveWork>(rank_,
                                                  OperationInfo{.kind = call.kind,
                                                                .title = title(call.operation),
                                                                .inputs = std::move(call.inputs),
                                                                .outputs = std::move(call.outputs),
                                                                .timeout = limit(call.timeout),
                                                                .sequence = ++sequence_},
                                                  engine_, std::move(body));
  if (!on_host) {
    engine_->run_here(work);  // copies belong to this thread's stream
  } else {
    engine_->submit(work, call.asynchronous || coalescing_);
  }
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

void AcclBackend::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

c10::intrusive_ptr<c10d::Work> AcclBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "accl: endCoalescing() without startCoalescing()");
  coalescing_ = false;
  OperationInfo info{.kind = c10d::OpType::COALESCED, .sequence = sequence_};
  info.outputs.emplace_back();
  for (const auto& work : coalesced_) {
    for (const auto& list : work->info().outputs) {
      info.outputs.front().insert(info.outputs.front().end(), list.begin(), list.end());
    }
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(info), std::exchange(coalesced_, {}));
}

// ---- messages ----

namespace {

at::Tensor& only_one(std::vector<at::Tensor>& tensors, const char* method) {
  TORCH_CHECK(tensors.size() == 1, "accl: ", method, " takes a single tensor");
  TORCH_CHECK(tensors[0].layout() == at::kStrided, "accl: ", method,
              ": the tensor has to be dense");
  return tensors[0];
}

int checked_tag(int tag) {
  TORCH_CHECK(tag >= 0, "Tag must be nonnegative");
  return tag;
}

}  // namespace

c10::intrusive_ptr<AcclWork> AcclBackend::start(AcclOperation operation, accl::Message message,
                                                const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(message.peer == accl::kAnySource || (message.peer >= 0 && message.peer < size_),
                    "accl: there is no rank ", message.peer, " in a group of ", size_);
  const bool is_send = message.direction == accl::Message::Direction::kSend;
  auto staged =
      std::make_shared<Staged>(tensor, is_send ? Staged::Use::kRead : Staged::Use::kWrite);
  message.data = staged->data();
  message.bytes = tensor.nbytes();
  message.timeout = options_->timeout;
  count(operation, message.bytes);
  auto work = c10::make_intrusive<MessageWork>(
      rank_,
      OperationInfo{.kind = is_send                            ? c10d::OpType::SEND
                            : message.peer == accl::kAnySource ? c10d::OpType::RECVANYSOURCE
                                                               : c10d::OpType::RECV,
                    .title = title(operation),
                    .inputs = {tensor},
                    .outputs = {{tensor}},
                    .timeout = options_->timeout,
                    .sequence = sequence_},
      engine_, [staged, is_send] {
        if (!is_send) {
          staged->write_back();
        }
      });
  engine_->post(work, message);
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> AcclBackend::send(std::vector<at::Tensor>& tensors, int destination,
                                                 int tag) {
  const at::Tensor& tensor = only_one(tensors, "send");
  return start(AcclOperation::kSend, {.peer = destination, .tag = checked_tag(tag)}, tensor);
}

c10::intrusive_ptr<c10d::Work> AcclBackend::recv(std::vector<at::Tensor>& tensors, int source,
                                                 int tag) {
  const at::Tensor& tensor = only_one(tensors, "recv");
  return start(
      AcclOperation::kReceive,
      {.direction = accl::Message::Direction::kReceive, .peer = source, .tag = checked_tag(tag)},
      tensor);
}

c10::intrusive_ptr<c10d::Work> AcclBackend::recvAnysource(std::vector<at::Tensor>& tensors,
                                                          int tag) {
  const at::Tensor& tensor = only_one(tensors, "recvAnysource");
  return start(AcclOperation::kReceiveAny,
               {.direction = accl::Message::Direction::kReceive,
                .peer = accl::kAnySource,
                .tag = checked_tag(tag)},
               tensor);
}

// ---- the monitored barrier ----

void AcclBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  // Users' tags are not negative. Two for each barrier, so that a late rank does not pass the next
  // one by mistake.
  const int barrier = monitored_barriers_++;
  const int hello_tag = -1 - 2 * barrier;
  const int verdict_tag = -2 - 2 * barrier;
  count(AcclOperation::kBarrier, 0);
  if (size_ == 1) {
    return;
  }
  if (rank_ == 0) {
    monitor_ranks(limit(opts.timeout), wait_all_ranks, hello_tag, verdict_tag);
  } else {
    report_to_monitor(hello_tag, verdict_tag);
  }
}

namespace {

// One byte for each rank in the verdict of rank 0.
constexpr std::uint8_t kPresent = 0;
constexpr std::uint8_t kMissing = 1;

std::vector<int> missing_in(const at::Tensor& verdict) {
  std::vector<int> missing;
  for (std::int64_t rank = 0; rank < verdict.numel(); ++rank) {
    if (verdict.const_data_ptr<std::uint8_t>()[rank] == kMissing) {
      missing.push_back(static_cast<int>(rank));
    }
  }
  return missing;
}

std::string sentence_about(const std::vector<int>& missing, Milliseconds timeout,
                           bool wait_all_ranks) {
  const std::string all = fmt::format("{}", fmt::join(missing, ", "));
  if (wait_all_ranks) {
    return fmt::format("[Rank 0]: Ranks {} failed to pass monitoredBarrier in {} ms", all,
                       timeout.count());
  }
  return fmt::format("[Rank 0]: Rank {} failed to pass monitoredBarrier in {} ms (missing: {})",
                     missing.front(), timeout.count(), all);
}

}  // namespace

void AcclBackend::monitor_ranks(Milliseconds timeout, bool wait_all_ranks, int hello_tag,
                                int verdict_tag) {
  TORCH_CHECK(timeout > Milliseconds::zero(),
              "[Rank 0]: Rank 0 timed out in monitoredBarrier after ", timeout.count(),
              " ms. No ranks successfully processed in monitoredBarrier.");
  const auto deadline = Clock::now() + timeout;
  const at::Tensor verdict = at::full({size_}, kPresent, at::kByte);
  std::vector<c10::intrusive_ptr<AcclWork>> hellos;
  for (int peer = 1; peer < size_; ++peer) {
    hellos.push_back(
        start(AcclOperation::kReceive,
              {.direction = accl::Message::Direction::kReceive, .peer = peer, .tag = hello_tag},
              at::empty({1}, at::kByte)));
  }
  for (int peer = 1; peer < size_; ++peer) {
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    try {
      hellos[peer - 1]->wait(std::max(left, Milliseconds(1)));
    } catch (const std::exception&) {
      verdict.mutable_data_ptr<std::uint8_t>()[peer] = kMissing;
    }
  }
  const std::vector<int> missing = missing_in(verdict);
  std::vector<c10::intrusive_ptr<AcclWork>> verdicts;
  for (int peer = 1; peer < size_; ++peer) {
    if (verdict.const_data_ptr<std::uint8_t>()[peer] == kPresent) {
      verdicts.push_back(start(AcclOperation::kSend, {.peer = peer, .tag = verdict_tag}, verdict));
    }
  }
  TORCH_CHECK(missing.empty(), sentence_about(missing, timeout, wait_all_ranks));
  for (const auto& work : verdicts) {
    work->wait();
  }
}

void AcclBackend::report_to_monitor(int hello_tag, int verdict_tag) {
  const at::Tensor verdict = at::empty({size_}, at::kByte);
  std::string cause;
  try {
    const auto hello =
        start(AcclOperation::kSend, {.peer = 0, .tag = hello_tag}, at::zeros({1}, at::kByte));
    const auto answer = start(
        AcclOperation::kReceive,
        {.direction = accl::Message::Direction::kReceive, .peer = 0, .tag = verdict_tag}, verdict);
    hello->wait();
    answer->wait();
    if (const auto missing = missing_in(verdict); !missing.empty()) {
      cause = fmt::format("rank 0 misses rank{} {}", missing.size() == 1 ? "" : "s",
                          fmt::join(missing, ", "));
    }
  } catch (const c10::Error& error) {
    cause = error.what_without_backtrace();
  }
  TORCH_CHECK(cause.empty(), "Rank ", rank_,
              " successfully reached monitoredBarrier, but received errors while waiting for "
              "send/recv from rank 0. Please check rank 0 logs for faulty rank.\n ",
              cause);
}

}  // namespace ljtrain
