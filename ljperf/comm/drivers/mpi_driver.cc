// One rank of MPI for `ljperf comm`; compiled with mpicxx where MPI is found.
#include <mpi.h>

#include "rank_driver.h"

namespace {

using namespace ljperf_comm;

class Mpi : public Library {
 public:
  Mpi() { MPI_Init(nullptr, nullptr); }
  ~Mpi() override { MPI_Finalize(); }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  // Errors need no care here: MPI's own handler says what happened and ends the job.
  void run(const Call& call) override {
    MPI_Comm world = MPI_COMM_WORLD;
    MPI_Datatype type = type_of(call);
    auto count = static_cast<int>(call.count * (bytes_stand_in(call) ? size_of(call.type) : 1));
    void* send = call.in_place ? MPI_IN_PLACE : call.send;
    switch (call.op) {
      case Op::kAllReduce:
        MPI_Allreduce(send, call.recv, count, type, MPI_SUM, world);
        break;
      case Op::kAllGather:
        MPI_Allgather(send, count, type, receive_base(call), count, type, world);
        break;
      case Op::kReduceScatter:
        reduce_scatter(call, count, type);
        break;
      case Op::kBroadcast:
        broadcast(call, count, type);
        break;
      case Op::kAllToAll:
        MPI_Alltoall(send, count, type, call.recv, count, type, world);
        break;
      case Op::kReduce:
        MPI_Reduce(call.in_place && rank() != kRoot ? call.recv : send, call.recv, count, type,
                   MPI_SUM, kRoot, world);
        break;
      case Op::kGather:
        MPI_Gather(call.in_place && rank() != kRoot ? call.send : send, count, type, call.recv,
                   count, type, kRoot, world);
        break;
      case Op::kScatter:
        MPI_Scatter(call.send, count, type,
                    call.in_place && rank() == kRoot ? MPI_IN_PLACE : call.recv, count, type, kRoot,
                    world);
        break;
    }
  }

 private:
  static int rank() {
    static const int kRank = [] {
      int number = 0;
      MPI_Comm_rank(MPI_COMM_WORLD, &number);
      return number;
    }();
    return kRank;
  }

  // MPI 3 knows no 16-bit floating point; what only moves data moves bytes.
  static bool bytes_stand_in(const Call& call) {
    return call.type == Type::kFloat16 || call.type == Type::kBfloat16;
  }
  static MPI_Datatype type_of(const Call& call) {
    switch (call.type) {
      case Type::kInt8:
        return MPI_INT8_T;
      case Type::kUint8:
        return MPI_UINT8_T;
      case Type::kInt32:
        return MPI_INT32_T;
      case Type::kInt64:
        return MPI_INT64_T;
      case Type::kFloat32:
        return MPI_FLOAT;
      case Type::kFloat64:
        return MPI_DOUBLE;
      case Type::kFloat16:
      case Type::kBfloat16:
        break;
    }
    if (reduces(call.op)) {
      throw std::runtime_error("MPI has no 16-bit floating point");
    }
    return MPI_BYTE;
  }

  // In place, call.recv is this rank's share as in NCCL, or the whole: MPI wants the whole.
  static void* receive_base(const Call& call) { return call.recv; }

  // MPI broadcasts in place; out of place the root also fills its result.
  static void broadcast(const Call& call, int count, MPI_Datatype type) {
    bool root = rank() == kRoot;
    MPI_Bcast(root ? call.send : call.recv, count, type, kRoot, MPI_COMM_WORLD);
    if (root && !call.in_place) {
      std::memcpy(call.recv, call.send, call.count * size_of(call.type));
    }
  }

  // In place MPI leaves the result at the start, NCCL in the rank's own share; so it is not
  // compared in place.
  static void reduce_scatter(const Call& call, int count, MPI_Datatype type) {
    if (call.in_place) {
      throw std::runtime_error("MPI's reduce_scatter in place is another operation than NCCL's");
    }
    MPI_Reduce_scatter_block(call.send, call.recv, count, type, MPI_SUM, MPI_COMM_WORLD);
  }
};

}  // namespace

int main() {
  return drive([](const Place&) { return std::make_unique<Mpi>(); }, "OMPI_COMM_WORLD_RANK");
}
