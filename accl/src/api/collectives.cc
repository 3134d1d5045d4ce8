// The operations that move data.
#include <utility>

#include "api/arguments.h"
#include "api/comm.h"
#include "api/group.h"

namespace ljtrain::accl::api {
namespace {

// One call of a collective, as it came in.
struct Call {
  const char* name;
  OperationKind kind;
  const void* send;
  void* recv;
  std::size_t count;
  ncclDataType_t type;
  int root = 0;
  bool is_rooted = false;
};

// Whether this rank's send and receive buffers are used at all, and how many times `count` each of
// them holds.
struct Shape {
  bool sends = true;
  bool receives = true;
};

Shape shape_of(OperationKind kind, bool is_root) {
  switch (kind) {
    case OperationKind::kBroadcast:
    case OperationKind::kScatter:
      return {.sends = is_root, .receives = true};
    case OperationKind::kReduce:
    case OperationKind::kGather:
      return {.sends = true, .receives = is_root};
    default:
      return {};
  }
}

int shares_of(OperationKind kind, int ranks) {
  switch (kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
    case OperationKind::kBroadcast:
      return 1;
    default:
      return ranks;
  }
}

void log_call(const Comm& comm, const Call& call, const Collective& collective, int ranks,
              cudaStream_t stream) {
  trace::info(trace::kColl, comm.rank_for_log(),
              "{}: sendbuff {} recvbuff {} count {} datatype {} op {} root {} comm {} [nranks={}] "
              "stream {}",
              call.name, call.send, static_cast<const void*>(call.recv), call.count,
              static_cast<int>(call.type), static_cast<int>(collective.op), call.root,
              static_cast<const void*>(&comm), ranks, static_cast<const void*>(stream));
}

// Checks the call and makes it the core's; reductions still lack their operator.
CollectiveWork check(Comm& comm, const Call& call) {
  const int ranks = comm.size();
  const DataType type = require_type(call.type);
  if (call.is_rooted) {
    require_rank(call.root, ranks, "root");
  }
  require_count(call.count, type, shares_of(call.kind, ranks));
  const Shape shape = shape_of(call.kind, call.root == comm.rank());
  if (shape.sends) {
    require_buffer(call.send, call.count, "sendbuff");
  }
  if (shape.receives) {
    require_buffer(call.recv, call.count, "recvbuff");
  }
  CollectiveWork work;
  work.collective.kind = call.kind;
  work.collective.send = shape.sends ? call.send : nullptr;
  work.collective.recv = shape.receives ? call.recv : nullptr;
  work.collective.count = call.count;
  work.collective.type = type;
  work.collective.root = call.root;
  return work;
}

void set_operator(Comm& comm, ncclRedOp_t op, CollectiveWork& work) {
  if (static_cast<unsigned>(op) < ncclNumOps) {
    work.collective.op = static_cast<ReduceOp>(op);
    return;
  }
  const PremulOp premul = comm.reduce_ops().find(op);
  if (premul.type != work.collective.type) {
    throw error(ErrorCode::kInvalidArgument, "op was made for {}, and the data are {}",
                name_of(premul.type), name_of(work.collective.type));
  }
  work.collective.op = ReduceOp::kPremulSum;
  work.collective.scale = premul.scale;
  work.late_scalar = premul.late_scalar;
}

ncclResult_t collective(const Call& call, ncclComm_t handle, cudaStream_t stream) {
  const std::shared_ptr<Comm> comm = Comm::find_ready(handle);
  CollectiveWork work = check(*comm, call);
  log_call(*comm, call, work.collective, comm->size(), stream);
  return issue(comm, work, stream);
}

ncclResult_t reduction(const Call& call, ncclRedOp_t op, ncclComm_t handle, cudaStream_t stream) {
  const std::shared_ptr<Comm> comm = Comm::find_ready(handle);
  CollectiveWork work = check(*comm, call);
  set_operator(*comm, op, work);
  log_call(*comm, call, work.collective, comm->size(), stream);
  return issue(comm, work, stream);
}

ncclResult_t message(Message::Direction direction, void* data, std::size_t count,
                     ncclDataType_t datatype, int peer, ncclComm_t handle, cudaStream_t stream) {
  const std::shared_ptr<Comm> comm = Comm::find_ready(handle);
  const bool sends = direction == Message::Direction::kSend;
  const DataType type = require_type(datatype);
  require_rank(peer, comm->size(), "peer");
  require_count(count, type, 1);
  require_buffer(data, count, sends ? "sendbuff" : "recvbuff");
  trace::info(trace::kColl | trace::kP2p, comm->rank_for_log(),
              "{}: buff {} count {} datatype {} peer {} comm {} [nranks={}] stream {}",
              sends ? "Send" : "Recv", static_cast<const void*>(data), count,
              static_cast<int>(datatype), peer, static_cast<const void*>(comm.get()), comm->size(),
              static_cast<const void*>(stream));
  return issue(
      comm,
      MessageWork{
          {.direction = direction, .data = data, .bytes = count * size_of(type), .peer = peer}},
      stream);
}

// ---- One-sided ----------------------------------------------------------------------------------

void require_signal(int signal, int context, unsigned flags) {
  if (signal < 0) {
    throw error(ErrorCode::kInvalidArgument, "sigIdx is {}: it must be at least 0", signal);
  }
  if (context < 0) {
    throw error(ErrorCode::kInvalidArgument, "ctx is {}: it must be at least 0", context);
  }
  require_flags(flags, 0, "flags");
}

ncclResult_t wait_signal(int count, const ncclWaitSignalDesc_t* signals, ncclComm_t handle,
                         cudaStream_t stream) {
  const std::shared_ptr<Comm> comm = Comm::find_ready(handle);
  if (count < 1) {
    throw error(ErrorCode::kInvalidArgument, "nDesc is {}: it must be at least 1", count);
  }
  require_pointer(signals, "signalDescs");
  WaitSignalWork work{{signals, signals + count}};
  for (const ncclWaitSignalDesc_t& wanted : work.signals) {
    require_rank(wanted.peer, comm->size(), "peer");
    require_signal(wanted.sigIdx, wanted.ctx, 0);
    if (wanted.opCnt < 1) {
      throw error(ErrorCode::kInvalidArgument, "opCnt is {}: it must be at least 1", wanted.opCnt);
    }
  }
  return issue(comm, std::move(work), stream);
}

ncclResult_t put_signal(const void* data, std::size_t count, ncclDataType_t datatype, int peer,
                        ncclWindow_t handle_of_window, std::size_t offset, int signal, int context,
                        unsigned flags, ncclComm_t handle, cudaStream_t stream) {
  const std::shared_ptr<Comm> comm = Comm::find_ready(handle);
  const DataType type = require_type(datatype);
  require_rank(peer, comm->size(), "peer");
  require_count(count, type, 1);
  require_buffer(data, count, "localbuff");
  require_signal(signal, context, flags);
  const std::shared_ptr<Window> window = find_window(handle_of_window, *comm);
  const std::size_t bytes = count * size_of(type);
  const std::uint64_t room = window->peer_bytes[static_cast<std::size_t>(peer)];
  if (offset > room || bytes > room - offset) {
    throw error(ErrorCode::kInvalidArgument,
                "{} bytes at {} do not fit into the window of rank {}, which has {}", bytes, offset,
                peer, room);
  }
  return issue(comm, PutWork{data, bytes, peer, window->id, offset, signal, context}, stream);
}

}  // namespace
}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream) {
  return guarded([&] {
    return reduction({"AllReduce", OperationKind::kAllReduce, sendbuff, recvbuff, count, datatype},
                     op, comm, stream);
  });
}
ACCL_ALIAS(ncclAllReduce);

ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return guarded([&] {
    return reduction(
        {"Reduce", OperationKind::kReduce, sendbuff, recvbuff, count, datatype, root, true}, op,
        comm, stream);
  });
}
ACCL_ALIAS(ncclReduce);

ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream) {
  return guarded([&] {
    return reduction(
        {"ReduceScatter", OperationKind::kReduceScatter, sendbuff, recvbuff, recvcount, datatype},
        op, comm, stream);
  });
}
ACCL_ALIAS(ncclReduceScatter);

ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return guarded([&] {
    return collective(
        {"Broadcast", OperationKind::kBroadcast, sendbuff, recvbuff, count, datatype, root, true},
        comm, stream);
  });
}
ACCL_ALIAS(ncclBroadcast);

ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return collective({"Bcast", OperationKind::kBroadcast, buff, buff, count, datatype, root, true},
                      comm, stream);
  });
}
ACCL_ALIAS(ncclBcast);

ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return collective(
        {"AllGather", OperationKind::kAllGather, sendbuff, recvbuff, sendcount, datatype}, comm,
        stream);
  });
}
ACCL_ALIAS(ncclAllGather);

ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return collective({"AlltoAll", OperationKind::kAllToAll, sendbuff, recvbuff, count, datatype},
                      comm, stream);
  });
}
ACCL_ALIAS(ncclAlltoAll);

ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return collective(
        {"Gather", OperationKind::kGather, sendbuff, recvbuff, count, datatype, root, true}, comm,
        stream);
  });
}
ACCL_ALIAS(ncclGather);

ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return collective(
        {"Scatter", OperationKind::kScatter, sendbuff, recvbuff, count, datatype, root, true}, comm,
        stream);
  });
}
ACCL_ALIAS(ncclScatter);

ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return message(Message::Direction::kSend, const_cast<void*>(sendbuff), count, datatype, peer,
                   comm, stream);
  });
}
ACCL_ALIAS(ncclSend);

ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return message(Message::Direction::kReceive, recvbuff, count, datatype, peer, comm, stream);
  });
}
ACCL_ALIAS(ncclRecv);

ncclResult_t pncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    return put_signal(localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, ctx, flags,
                      comm, stream);
  });
}
ACCL_ALIAS(ncclPutSignal);

ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_ready(comm);
    require_rank(peer, found->size(), "peer");
    require_signal(sigIdx, ctx, flags);
    return issue(found, PutWork{.peer = peer, .signal = sigIdx, .context = ctx}, stream);
  });
}
ACCL_ALIAS(ncclSignal);

ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                             cudaStream_t stream) {
  return guarded([&] { return wait_signal(nDesc, signalDescs, comm, stream); });
}
ACCL_ALIAS(ncclWaitSignal);
