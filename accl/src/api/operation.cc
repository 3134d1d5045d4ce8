#include "api/operation.h"

#include "api/comm.h"

namespace ljtrain::accl::api {
namespace {

void run_collective(Comm& comm, const CollectiveWork& work) {
  if (work.late_scalar == nullptr) {
    comm.core().run(work.collective);
    return;
  }
  Collective collective = work.collective;
  collective.scale = read_scale(work.late_scalar, collective.type);
  comm.core().run(collective);
}

// How many elements the larger of the two buffers has, in units of `count`.
std::size_t shares(OperationKind kind, int ranks) {
  switch (kind) {
    case OperationKind::kBarrier:
    case OperationKind::kAllReduce:
    case OperationKind::kBroadcast:
    case OperationKind::kReduce:
      return 1;
    default:
      return static_cast<std::size_t>(ranks);
  }
}

}  // namespace

std::size_t bytes_of(const Operation& operation, int ranks) {
  if (const auto* work = std::get_if<CollectiveWork>(&operation)) {
    const Collective& collective = work->collective;
    return collective.count * size_of(collective.type) * shares(collective.kind, ranks);
  }
  if (const auto* work = std::get_if<MessageWork>(&operation)) {
    return work->message.bytes;
  }
  const auto* put = std::get_if<PutWork>(&operation);
  return put == nullptr ? 0 : put->bytes;
}

void run(Comm& comm, std::span<const Operation> operations) {
  if (operations.size() == 1) {
    if (const auto* work = std::get_if<CollectiveWork>(&operations.front())) {
      run_collective(comm, *work);
      return;
    }
  }
  std::vector<MessageHandle> messages;
  for (const Operation& operation : operations) {
    if (const auto* work = std::get_if<MessageWork>(&operation)) {
      messages.push_back(comm.core().post(work->message));
    }
  }
  for (const Operation& operation : operations) {
    if (const auto* work = std::get_if<PutWork>(&operation)) {
      comm.one_sided().put(comm, *work);
    }
  }
  for (const Operation& operation : operations) {
    if (const auto* work = std::get_if<CollectiveWork>(&operation)) {
      run_collective(comm, *work);
    }
  }
  comm.core().wait(messages);
  for (const Operation& operation : operations) {
    if (const auto* work = std::get_if<WaitSignalWork>(&operation)) {
      comm.one_sided().wait(comm, *work);
    }
  }
}

}  // namespace ljtrain::accl::api
