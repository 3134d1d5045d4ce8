// Groups: ncclGroupStart to ncclGroupEnd on one thread, and how what is issued gets to run, in a
// group or not.
#pragma once

#include <functional>
#include <memory>

#include "accl/nccl.h"
#include "api/operation.h"
#include "api/result.h"

namespace ljtrain::accl::api {

class Comm;

// Of the calling thread.
bool is_in_group();
// Makes the group that is open, if any, fail as a whole.
void note_group_failure(ncclResult_t result);

// Runs the operation, or enqueues it, or adds it to the open group. Throws Error when it ran and
// failed.
ncclResult_t issue(const std::shared_ptr<Comm>& comm, Operation operation, cudaStream_t stream);

// What is no operation on data: creating, splitting, registering windows, closing.
struct Job {
  // Whose blocking mode decides, and whose thread runs it in the background.
  std::shared_ptr<Comm> subject;
  // Takes its turn among this one's operations; nullptr: needs none.
  std::shared_ptr<Comm> ordered_on;
  // Throws Error.
  std::function<void()> run;
  // Called once when run() threw, or when the group failed before it ran.
  std::function<void(const Failure&)> undo;
  // Runs after the group's operations instead of before them.
  bool is_closing = false;
};
// ncclSuccess; ncclInProgress in the background of a non-blocking communicator; the failure's
// result.
ncclResult_t submit(Job job);

}  // namespace ljtrain::accl::api
