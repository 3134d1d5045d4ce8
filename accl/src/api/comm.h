// What an ncclComm_t stands for: one rank's communicator, with what the C interface keeps beside
// the core's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "accl/communicator.h"
#include "accl/nccl.h"
#include "api/config.h"
#include "api/fork_guard.h"
#include "api/one_sided.h"
#include "api/reduce_op.h"
#include "api/registration.h"
#include "api/result.h"
#include "api/turns.h"
#include "api/worker.h"

namespace ljtrain::accl::api {

// Why a communicator cannot run operations.
enum Obstacle : std::uint32_t {
  kCreating = 1U << 0,
  kCreationFailed = 1U << 1,
  kFinalized = 1U << 2,
  kSuspended = 1U << 3,
  kRevoked = 1U << 4,
  kAborted = 1U << 5,
  kDestroyed = 1U << 6,
};

// Of creations and operations: acclSetTimeout, else ACCL_TIMEOUT, else 1800 s.
std::chrono::nanoseconds default_timeout();
void set_default_timeout(std::chrono::nanoseconds timeout);

class Comm : public std::enable_shared_from_this<Comm> {
 public:
  // Makes a handle; the communicator is created later, by complete().
  static std::shared_ptr<Comm> make(const CommSettings& settings);
  // Throws kInvalidArgument for NULL and for what is no communicator (any more), kInvalidUsage in a
  // forked child.
  static std::shared_ptr<Comm> find(ncclComm_t handle);
  // find(), and able to run operations; else throws what is in the way.
  static std::shared_ptr<Comm> find_ready(ncclComm_t handle) {
    std::shared_ptr<Comm> comm = find(handle);
    comm->require_ready();
    return comm;
  }
  // find(), and created: what asks for its rank or makes a new one of it.
  static std::shared_ptr<Comm> find_created(ncclComm_t handle);

  explicit Comm(CommSettings settings) : settings_(std::move(settings)) {}
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
  const CommSettings& settings() const { return settings_; }
  bool is_blocking() const { return settings_.is_blocking; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  // Creates the core; blocks until all ranks are there. Throws.
  void complete(const UniqueId& id, int rank, int size);
  void note_creation_failure(const Failure& failure);
  bool is_created() const { return (obstacles() & (kCreating | kCreationFailed)) == 0; }
  // Of a created one.
  Communicator& core() { return *core_; }
  int rank() const { return core_->rank(); }
  int size() const { return core_->size(); }
  const UniqueId& id() const { return id_; }
  // rank() for log lines, at any time.
  int rank_for_log() const { return is_created() ? core_->rank() : -1; }

  std::uint32_t obstacles() const { return obstacles_.load(std::memory_order_acquire); }
  void add_obstacle(Obstacle obstacle) { obstacles_.fetch_or(obstacle, std::memory_order_acq_rel); }
  void remove_obstacle(Obstacle obstacle) {
    obstacles_.fetch_and(~static_cast<std::uint32_t>(obstacle), std::memory_order_acq_rel);
  }
  void require_ready() const {
    if (obstacles() != 0) [[unlikely]] {
      throw_obstacle();
    }
  }

  Turns& turns() { return turns_; }
  // The communicator's own thread, started at the first use.
  Worker& worker();
  // Until nothing that was issued before is left to run.
  void drain();
  // Until the communicator's own thread, if there is one, has nothing left to do.
  void drain_background();
  // Ends what runs, now and for good. The reason is for the peers.
  void stop(Obstacle why, const std::string& reason);
  // Takes the handle out of use.
  void forget();

  // A task of a non-blocking communicator that its caller did not wait for.
  void begin_background() { background_.fetch_add(1, std::memory_order_relaxed); }
  void end_background() { background_.fetch_sub(1, std::memory_order_release); }
  // The first failure of what no caller waited for; stays.
  void note_failure(const Failure& failure);
  std::optional<Failure> failure() const;
  // What ncclCommGetAsyncError answers.
  ncclResult_t state();

  // How many communicators were derived from this one. Ranks derive in the same order, so they
  // count alike.
  std::uint64_t next_split() { return splits_++; }
  std::uint64_t next_shrink() { return shrinks_++; }
  // The id of ncclCommGetUniqueId that no ncclCommGrow has used yet.
  std::optional<UniqueId> growth_id;

  ReduceOps& reduce_ops() { return reduce_ops_; }
  Registrations& registrations() { return registrations_; }
  OneSided& one_sided() { return one_sided_; }

 private:
  [[noreturn]] void throw_obstacle() const;

  const CommSettings settings_;
  const std::chrono::nanoseconds timeout_ = default_timeout();
  const std::uint32_t fork_generation_ = fork_generation();
  std::atomic<std::uint32_t> obstacles_{kCreating};
  std::atomic<int> background_{0};
  Turns turns_;

  UniqueId id_;
  // Ends a creation under way.
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<Communicator> core_;  // written once, before kCreating is taken away

  mutable std::mutex mutex_;  // of what follows
  std::optional<Failure> failure_;
  std::unique_ptr<Worker> worker_;

  std::atomic<std::uint64_t> splits_{0};
  std::atomic<std::uint64_t> shrinks_{0};
  ReduceOps reduce_ops_;
  Registrations registrations_;
  OneSided one_sided_;
};

}  // namespace ljtrain::accl::api
