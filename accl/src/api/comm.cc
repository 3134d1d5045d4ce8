#include "api/comm.h"

#include <cmath>
#include <cstdlib>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "api/leaked.h"
#include "communicator/environment.h"

namespace ljtrain::accl::api {
namespace {

using Table = std::unordered_map<const void*, std::shared_ptr<Comm>>;
Table& table() { return leaked<Table>(); }

// The communicator that this thread used last, which is nearly always the one it uses next. The
// weak pointer keeps its address from being used again, so an equal handle is the same
// communicator.
struct LastUsed {
  ncclComm_t handle = nullptr;
  std::weak_ptr<Comm> comm;
};
thread_local LastUsed last_used;

// An abort ends operations within a second.
constexpr std::chrono::seconds kAbortPatience{1};

// 0: not set.
std::atomic<std::int64_t> timeout_ns{0};

std::shared_ptr<Comm> find_in_table(ncclComm_t handle) {
  if (handle == nullptr) {
    throw error(ErrorCode::kInvalidArgument, "comm is NULL");
  }
  const std::scoped_lock lock(global_mutex(GlobalMutex::kCommunicators));
  const auto found = table().find(handle);
  if (found == table().end()) {
    throw error(ErrorCode::kInvalidArgument,
                "comm {} is no communicator, or has been destroyed or aborted",
                static_cast<const void*>(handle));
  }
  return found->second;
}

}  // namespace

void set_default_timeout(std::chrono::nanoseconds timeout) {
  timeout_ns.store(timeout.count(), std::memory_order_relaxed);
}

std::chrono::nanoseconds default_timeout() {
  const std::int64_t set = timeout_ns.load(std::memory_order_relaxed);
  return set > 0 ? std::chrono::nanoseconds(set) : environment::timeout();
}

std::shared_ptr<Comm> Comm::make(const CommSettings& settings) {
  auto comm = std::make_shared<Comm>(settings);
  const std::scoped_lock lock(global_mutex(GlobalMutex::kCommunicators));
  table().emplace(comm.get(), comm);
  return comm;
}

std::shared_ptr<Comm> Comm::find(ncclComm_t handle) {
  std::shared_ptr<Comm> comm;
  if (handle == last_used.handle && handle != nullptr) {
    comm = last_used.comm.lock();
  }
  if (comm == nullptr || (comm->obstacles() & kDestroyed) != 0) {
    comm = find_in_table(handle);
    last_used = {handle, comm};
  }
  if (comm->fork_generation_ != fork_generation()) [[unlikely]] {
    throw error(ErrorCode::kInvalidUsage,
                "comm {} belongs to the process that this one was forked from: create a new "
                "communicator in the child",
                static_cast<const void*>(handle));
  }
  return comm;
}

std::shared_ptr<Comm> Comm::find_created(ncclComm_t handle) {
  std::shared_ptr<Comm> comm = find(handle);
  if (!comm->is_created()) {
    comm->throw_obstacle();
  }
  return comm;
}

Comm::~Comm() {
  worker_.reset();  // its tasks use the rest
  if (core_ != nullptr) {
    one_sided_.stop(*core_);
    core_.reset();  // its messages use the buffers of what is left
  }
}

void Comm::throw_obstacle() const {
  const std::uint32_t now = obstacles();
  const auto refuse = [](ErrorCode code, std::string_view why) {
    return error(code, "the communicator {}", why);
  };
  if ((now & (kAborted | kDestroyed)) != 0) {
    throw refuse(ErrorCode::kInvalidUsage, "has been aborted or destroyed");
  }
  if ((now & kCreating) != 0) {
    throw refuse(ErrorCode::kInvalidArgument,
                 "is still being created: call ncclCommGetAsyncError until it no longer answers "
                 "ncclInProgress, or end the group that creates it");
  }
  if ((now & kCreationFailed) != 0) {
    throw refuse(ErrorCode::kInvalidUsage, "could not be created: abort it");
  }
  if ((now & kRevoked) != 0) {
    throw refuse(ErrorCode::kInvalidUsage, "has been revoked: shrink, split or destroy it");
  }
  if ((now & kFinalized) != 0) {
    throw refuse(ErrorCode::kInvalidArgument, "has been finalized: destroy it");
  }
  throw refuse(ErrorCode::kInvalidUsage, "is suspended: call ncclCommResume first");
}

void Comm::complete(const UniqueId& id, int rank, int size) {
  CommunicatorOptions options;
  options.timeout = timeout_;
  options.name = settings_.name;
  options.cancelled = cancelled_;
  core_ = Communicator::create(id, rank, size, options);
  id_ = id;
  remove_obstacle(kCreating);
}

void Comm::note_creation_failure(const Failure& failure) {
  note_failure(failure);
  add_obstacle(kCreationFailed);
  remove_obstacle(kCreating);
}

Worker& Comm::worker() {
  const std::scoped_lock lock(mutex_);
  if (worker_ == nullptr) {
    worker_ = std::make_unique<Worker>("accl-comm");
  }
  return *worker_;
}

void Comm::drain() {
  if (turns_.enter(turns_.take())) {
    turns_.finish();
  }
}

void Comm::drain_background() {
  Worker* worker = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    worker = worker_.get();
  }
  if (worker != nullptr && !worker->is_own_thread()) {
    worker->drain();
  }
}

void Comm::stop(Obstacle why, const std::string& reason) {
  add_obstacle(why);
  cancelled_->store(true);
  turns_.stop();
  // A creation looks for its end every 100 ms.
  const auto deadline = std::chrono::steady_clock::now() + kAbortPatience;
  while ((obstacles() & kCreating) != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if ((obstacles() & kCreating) == 0 && core_ == nullptr) {
    drain_background();
  }
  if (is_created()) {
    core_->abort(reason);
    if (!turns_.wait_until_left(kAbortPatience)) {
      trace::warn(rank_for_log(), "an aborted operation has not ended within a second");
    }
  }
}

void Comm::forget() {
  add_obstacle(kDestroyed);
  const std::scoped_lock lock(global_mutex(GlobalMutex::kCommunicators));
  table().erase(this);
}

void Comm::note_failure(const Failure& failure) {
  const std::scoped_lock lock(mutex_);
  if (!failure_) {
    failure_ = failure;
  }
}

std::optional<Failure> Comm::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

ncclResult_t Comm::state() {
  const std::uint32_t now = obstacles();
  if ((now & kCreating) != 0 || background_.load(std::memory_order_acquire) > 0) {
    return ncclInProgress;
  }
  if ((now & kRevoked) != 0) {
    return ncclSuccess;  // what it ended is no error any more
  }
  if (const std::optional<Failure> failed = failure()) {
    return failed->result;
  }
  const std::optional<Error> broken = core_->async_error();
  if (!broken) {
    return ncclSuccess;
  }
  note_failure(make_failure(*broken));
  return to_result(broken->code());
}

}  // namespace ljtrain::accl::api
