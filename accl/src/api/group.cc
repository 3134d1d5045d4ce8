#include "api/group.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "api/comm.h"
#include "api/estimate.h"
#include "api/stream.h"

namespace ljtrain::accl::api {
namespace {

constexpr std::chrono::milliseconds kLookAround{50};

class Event {
 public:
  void set() {
    {
      const std::scoped_lock lock(mutex_);
      is_set_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_set_; });
  }
  bool wait_for(std::chrono::nanoseconds at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, [this] { return is_set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

// What one communicator does in one group.
struct Batch {
  std::shared_ptr<Comm> comm;
  std::vector<Operation> operations;
  std::vector<std::shared_ptr<Stream>> streams;
  bool uses_null_stream = false;

  Event done;
  std::optional<Failure> failure;  // valid after `done`

  // Whether the caller gets the result: nobody else needs to keep it then.
  bool is_awaited() const { return uses_null_stream && comm->is_blocking(); }
};

struct GroupState {
  int depth = 0;
  ncclResult_t result = ncclSuccess;
  std::optional<bool> is_blocking;
  std::vector<std::shared_ptr<Batch>> batches;
  std::vector<Job> jobs;
};
thread_local GroupState group;

// Waits for the communicator's turn, and ends it.
template <typename Body>
void run_in_turn(Comm& comm, std::uint64_t ticket, const Body& body) {
  if (!comm.turns().enter(ticket)) {
    throw error(ErrorCode::kAborted, "the communicator was {} before the operation ran",
                (comm.obstacles() & kAborted) != 0 ? "aborted" : "stopped");
  }
  struct Finish {
    Turns& turns;
    ~Finish() { turns.finish(); }
  } const finish{comm.turns()};
  body();
}

void note(Comm& comm, const Failure& failure) {
  comm.note_failure(failure);
  trace::warn(comm.rank_for_log(), failure.text);
}

// An operation that nobody waits for.
void run_unattended(Comm& comm, Stream* stream, std::uint64_t ticket,
                    std::span<const Operation> operations) {
  try {
    run_in_turn(comm, ticket, [&] { run(comm, operations); });
  } catch (const std::exception& cause) {
    const Failure failure = make_failure(cause);
    note(comm, failure);
    if (stream != nullptr) {
      stream->note_failure(failure);
    }
  }
}

// Operations of one communicator on one stream, or on none.
ncclResult_t issue_alone(const std::shared_ptr<Comm>& comm, std::vector<Operation> operations,
                         const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr && comm->is_blocking()) {
    run_in_turn(*comm, comm->turns().take(), [&] { run(*comm, operations); });
    return ncclSuccess;
  }
  // Ticket and place in the queue together: else two threads could cross, and each wait for the
  // other.
  const std::scoped_lock lock(global_mutex(GlobalMutex::kIssue));
  if (stream != nullptr) {
    stream->worker().push(
        [comm, at = stream.get(), ticket = comm->turns().take(), moved = std::move(operations)] {
          run_unattended(*comm, at, ticket, moved);
        });
    return ncclSuccess;
  }
  Worker& worker = comm->worker();
  comm->begin_background();
  worker.push([comm, ticket = comm->turns().take(), moved = std::move(operations)] {
    run_unattended(*comm, nullptr, ticket, moved);
    comm->end_background();
  });
  return ncclInProgress;
}

// A stream's place in a group: the communicators' threads wait until it has got here, and it waits
// for them.
struct Junction {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Event> reached = std::make_shared<Event>();
  std::vector<std::shared_ptr<Batch>> batches;
};

std::vector<Junction> junctions_of(std::span<const std::shared_ptr<Batch>> batches) {
  std::vector<Junction> junctions;
  for (const auto& batch : batches) {
    for (const auto& stream : batch->streams) {
      auto found = std::ranges::find(junctions, stream, &Junction::stream);
      if (found == junctions.end()) {
        junctions.push_back({.stream = stream, .batches = {}});
        found = std::prev(junctions.end());
      }
      found->batches.push_back(batch);
    }
  }
  return junctions;
}

void run_batch(Batch& batch, std::uint64_t ticket,
               std::span<const std::shared_ptr<Event>> junctions) {
  Comm& comm = *batch.comm;
  for (const auto& reached : junctions) {
    while (!reached->wait_for(kLookAround) && !comm.turns().is_stopped()) {
    }
  }
  try {
    run_in_turn(comm, ticket, [&] { run(comm, batch.operations); });
  } catch (const std::exception& cause) {
    batch.failure = make_failure(cause);
    if (!batch.is_awaited()) {
      note(comm, *batch.failure);
    }
  }
  batch.done.set();
}

// Several communicators, or several streams: each communicator's operations run on its own thread,
// so that ranks that live in one thread can meet.
ncclResult_t issue_together(std::span<const std::shared_ptr<Batch>> batches) {
  bool is_in_progress = false;
  {
    const std::scoped_lock lock(global_mutex(GlobalMutex::kIssue));
    const std::vector<Junction> junctions = junctions_of(batches);
    for (const Junction& junction : junctions) {
      junction.stream->worker().push(
          [at = junction.stream.get(), reached = junction.reached, waited = junction.batches] {
            reached->set();
            for (const auto& batch : waited) {
              batch->done.wait();
              if (batch->failure) {
                at->note_failure(*batch->failure);
              }
            }
          });
    }
    for (const auto& batch : batches) {
      std::vector<std::shared_ptr<Event>> awaited;
      for (const Junction& junction : junctions) {
        if (std::ranges::find(junction.batches, batch) != junction.batches.end()) {
          awaited.push_back(junction.reached);
        }
      }
      const bool in_background = batch->uses_null_stream && !batch->comm->is_blocking();
      is_in_progress |= in_background;
      Worker& worker = batch->comm->worker();
      if (in_background) {
        batch->comm->begin_background();
      }
      worker.push([batch, awaited, in_background, ticket = batch->comm->turns().take()] {
        run_batch(*batch, ticket, awaited);
        if (in_background) {
          batch->comm->end_background();
        }
      });
    }
  }
  std::optional<Failure> first;
  for (const auto& batch : batches) {
    if (batch->is_awaited()) {
      batch->done.wait();
      if (batch->failure && !first) {
        first = batch->failure;
      }
    }
  }
  if (first) {
    return fail(*first, std::source_location::current());
  }
  return is_in_progress ? ncclInProgress : ncclSuccess;
}

ncclResult_t issue_batches(std::span<const std::shared_ptr<Batch>> batches) {
  if (batches.empty()) {
    return ncclSuccess;
  }
  Batch& first = *batches.front();
  const std::size_t streams = first.streams.size() + (first.uses_null_stream ? 1 : 0);
  if (batches.size() == 1 && streams == 1) {
    return issue_alone(first.comm, std::move(first.operations),
                       first.streams.empty() ? nullptr : first.streams.front());
  }
  return issue_together(batches);
}

// ---- Jobs ---------------------------------------------------------------------------------------

struct LaunchedJob {
  Job job;
  std::uint64_t ticket = 0;
};

std::optional<Failure> run_job(const LaunchedJob& launched) {
  try {
    if (launched.job.ordered_on != nullptr) {
      run_in_turn(*launched.job.ordered_on, launched.ticket, launched.job.run);
    } else {
      launched.job.run();
    }
    return std::nullopt;
  } catch (const std::exception& cause) {
    Failure failure = make_failure(cause);
    launched.job.undo(failure);
    return failure;
  }
}

void run_in_background(LaunchedJob launched) {
  const std::shared_ptr<Comm> subject = launched.job.subject;
  const std::shared_ptr<Comm> parent =
      launched.job.ordered_on == subject ? nullptr : launched.job.ordered_on;
  Worker& worker = subject->worker();
  subject->begin_background();
  if (parent != nullptr) {
    parent->begin_background();
  }
  worker.push([subject, parent, launched = std::move(launched)] {
    if (const std::optional<Failure> failure = run_job(launched)) {
      note(*subject, *failure);
    }
    if (parent != nullptr) {
      parent->end_background();
    }
    subject->end_background();
  });
}

ncclResult_t launch(std::vector<Job> jobs) {
  std::vector<LaunchedJob> attended;
  bool is_in_progress = false;
  {
    const std::scoped_lock lock(global_mutex(GlobalMutex::kIssue));
    for (Job& job : jobs) {
      LaunchedJob launched{.job = std::move(job)};
      if (launched.job.ordered_on != nullptr) {
        launched.ticket = launched.job.ordered_on->turns().take();
      }
      if (launched.job.subject->is_blocking()) {
        attended.push_back(std::move(launched));
      } else {
        is_in_progress = true;
        run_in_background(std::move(launched));
      }
    }
  }
  std::vector<std::optional<Failure>> failures(attended.size());
  {
    // The last one on this thread, the others beside it: they may be ranks that wait for each
    // other.
    std::vector<std::unique_ptr<Worker>> threads;
    for (std::size_t i = 0; i + 1 < attended.size(); ++i) {
      threads.push_back(std::make_unique<Worker>("accl-job"));
      threads.back()->push([&, i] { failures[i] = run_job(attended[i]); });
    }
    if (!attended.empty()) {
      failures.back() = run_job(attended.back());
    }
  }
  for (const std::optional<Failure>& failure : failures) {
    if (failure) {
      return fail(*failure, std::source_location::current());
    }
  }
  return is_in_progress ? ncclInProgress : ncclSuccess;
}

// ---- Groups -------------------------------------------------------------------------------------

void require_same_mode(const Comm& comm) {
  if (group.is_blocking.value_or(comm.is_blocking()) != comm.is_blocking()) {
    throw error(ErrorCode::kInvalidArgument,
                "blocking and non-blocking communicators in one group");
  }
  group.is_blocking = comm.is_blocking();
}

void add_to_group(const std::shared_ptr<Comm>& comm, Operation operation, cudaStream_t handle) {
  require_same_mode(*comm);
  const std::shared_ptr<Stream> stream = Stream::find(handle);
  auto found = std::ranges::find(group.batches, comm, &Batch::comm);
  if (found == group.batches.end()) {
    group.batches.push_back(std::make_shared<Batch>());
    found = std::prev(group.batches.end());
    (*found)->comm = comm;
  }
  Batch& batch = **found;
  batch.operations.push_back(std::move(operation));
  if (stream == nullptr) {
    batch.uses_null_stream = true;
  } else if (std::ranges::find(batch.streams, stream) == batch.streams.end()) {
    batch.streams.push_back(stream);
  }
}

// The first failure, else whether anything is under way.
ncclResult_t merge(ncclResult_t first, ncclResult_t second) {
  return first == ncclSuccess || (first == ncclInProgress && second != ncclSuccess) ? second
                                                                                    : first;
}

bool is_failure(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

ncclResult_t execute(GroupState ended) {
  if (ended.result != ncclSuccess) {
    const Failure failure =
        make_failure(ended.result, "the group failed: " + thread_failure().text);
    for (const Job& job : ended.jobs) {
      job.undo(failure);
    }
    return ended.result;
  }
  std::vector<Job> opening;
  std::vector<Job> closing;
  for (Job& job : ended.jobs) {
    (job.is_closing ? closing : opening).push_back(std::move(job));
  }
  ncclResult_t result = launch(std::move(opening));
  if (!is_failure(result)) {
    result = merge(result, issue_batches(ended.batches));
  }
  return merge(result, launch(std::move(closing)));
}

// Leaves the innermost group; the state of the outermost when that was it.
std::optional<GroupState> leave_group(const char* function) {
  if (group.depth == 0) {
    throw error(ErrorCode::kInvalidUsage, "{} without ncclGroupStart on this thread", function);
  }
  if (--group.depth > 0) {
    return std::nullopt;
  }
  return std::exchange(group, GroupState{});
}

}  // namespace

bool is_in_group() { return group.depth > 0; }

void note_group_failure(ncclResult_t result) {
  if (group.depth > 0 && group.result == ncclSuccess) {
    group.result = result;
  }
}

ncclResult_t issue(const std::shared_ptr<Comm>& comm, Operation operation, cudaStream_t stream) {
  if (is_in_group()) {
    add_to_group(comm, std::move(operation), stream);
    return ncclSuccess;
  }
  const std::shared_ptr<Stream> found = Stream::find(stream);
  if (found == nullptr && comm->is_blocking()) {
    // The short way, without an allocation.
    run_in_turn(*comm, comm->turns().take(), [&] { run(*comm, {&operation, 1}); });
    return ncclSuccess;
  }
  std::vector<Operation> operations;
  operations.push_back(std::move(operation));
  return issue_alone(comm, std::move(operations), found);
}

ncclResult_t submit(Job job) {
  if (is_in_group()) {
    require_same_mode(*job.subject);
    group.jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  std::vector<Job> jobs;
  jobs.push_back(std::move(job));
  return launch(std::move(jobs));
}

}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclGroupStart(void) {
  ++group.depth;
  return ncclSuccess;
}
ACCL_ALIAS(ncclGroupStart);

ncclResult_t pncclGroupEnd(void) {
  return guarded([] {
    std::optional<GroupState> ended = leave_group("ncclGroupEnd");
    return ended ? execute(std::move(*ended)) : ncclSuccess;
  });
}
ACCL_ALIAS(ncclGroupEnd);

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  return guarded([&] {
    std::optional<GroupState> ended = leave_group("ncclGroupSimulateEnd");
    if (!ended) {
      return ncclSuccess;
    }
    const Failure simulated = make_failure(ncclInvalidUsage, "the group was simulated, not run");
    for (const Job& job : ended->jobs) {
      job.undo(simulated);
    }
    if (ended->result != ncclSuccess) {
      return ended->result;
    }
    require_sim_info(simInfo);
    double seconds = 0;
    for (const auto& batch : ended->batches) {
      seconds = std::max(seconds, estimate_s(*batch->comm, batch->operations));
    }
    simInfo->estimatedTime = static_cast<float>(seconds * 1e6);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclGroupSimulateEnd);
