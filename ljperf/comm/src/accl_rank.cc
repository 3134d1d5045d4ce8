#include "accl_rank.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "accl/nccl.h"
#include "rank_driver.h"

namespace ljtrain::ljperf {
namespace {

using ljperf_comm::Call;
using ljperf_comm::kRoot;
using ljperf_comm::Op;
using ljperf_comm::Place;
using ljperf_comm::Type;

void must(ncclResult_t result) {
  if (result != ncclSuccess) {
    throw std::runtime_error(ncclGetLastError(nullptr));
  }
}

ncclDataType_t type_of(Type type) {
  switch (type) {
    case Type::kInt8:
      return ncclInt8;
    case Type::kUint8:
      return ncclUint8;
    case Type::kInt32:
      return ncclInt32;
    case Type::kInt64:
      return ncclInt64;
    case Type::kFloat16:
      return ncclFloat16;
    case Type::kBfloat16:
      return ncclBfloat16;
    case Type::kFloat32:
      return ncclFloat32;
    case Type::kFloat64:
      return ncclFloat64;
  }
  throw std::runtime_error("unknown type");
}

class Accl : public ljperf_comm::Library {
 public:
  explicit Accl(const Place& place) {
    ncclUniqueId id{};
    if (place.rank == 0) {
      must(ncclGetUniqueId(&id));
    }
    std::string text =
        ljperf_comm::from_rank_0(place, std::string(id.internal, sizeof id.internal));
    std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof id.internal));
    must(ncclCommInitRank(&comm_, place.size, id, place.rank));
  }
  ~Accl() override { ncclCommDestroy(comm_); }
  Accl(const Accl&) = delete;
  Accl& operator=(const Accl&) = delete;

  // NCCL has none: nobody leaves an all-reduce before all have come.
  void barrier() override {
    std::int32_t nothing = 0;
    must(ncclAllReduce(&nothing, &nothing, 1, ncclInt32, ncclSum, comm_, nullptr));
  }

  void run(const Call& call) override {
    ncclDataType_t type = type_of(call.type);
    switch (call.op) {
      case Op::kAllReduce:
        return must(ncclAllReduce(call.send, call.recv, call.count, type, ncclSum, comm_, nullptr));
      case Op::kAllGather:
        return must(ncclAllGather(call.send, call.recv, call.count, type, comm_, nullptr));
      case Op::kReduceScatter:
        return must(
            ncclReduceScatter(call.send, call.recv, call.count, type, ncclSum, comm_, nullptr));
      case Op::kBroadcast:
        return must(ncclBroadcast(call.send, call.recv, call.count, type, kRoot, comm_, nullptr));
      case Op::kAllToAll:
        return must(ncclAlltoAll(call.send, call.recv, call.count, type, comm_, nullptr));
      case Op::kReduce:
        return must(
            ncclReduce(call.send, call.recv, call.count, type, ncclSum, kRoot, comm_, nullptr));
      case Op::kGather:
        return must(ncclGather(call.send, call.recv, call.count, type, kRoot, comm_, nullptr));
      case Op::kScatter:
        return must(ncclScatter(call.send, call.recv, call.count, type, kRoot, comm_, nullptr));
    }
  }

  void* allocate_registered(std::size_t bytes) override {
    void* memory = nullptr;
    must(ncclMemAlloc(&memory, bytes));
    return memory;
  }

 private:
  ncclComm_t comm_ = nullptr;
};

}  // namespace

int serve_accl() {
  return ljperf_comm::drive([](const Place& place) { return std::make_unique<Accl>(place); });
}

}  // namespace ljtrain::ljperf
