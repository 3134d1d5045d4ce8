// One rank of oneCCL for `ljperf comm`; compiled where oneCCL's headers and its library for hosts
// are found (PyPI: oneccl-devel and impi-rt).
#include <oneapi/ccl.hpp>

#include "rank_driver.h"

// The library refers to Intel's tracing interface, which is not in its packages; null means: not
// traced.
extern "C" {
void* __itt_domain_create_ptr__3_0 = nullptr;
void* __itt_event_create_ptr__3_0 = nullptr;
void* __itt_event_end_ptr__3_0 = nullptr;
void* __itt_event_start_ptr__3_0 = nullptr;
void* __itt_metadata_add_ptr__3_0 = nullptr;
void* __itt_string_handle_create_ptr__3_0 = nullptr;
void* __itt_task_begin_ptr__3_0 = nullptr;
void* __itt_task_end_ptr__3_0 = nullptr;
void* __itt_thread_set_name_ptr__3_0 = nullptr;
}

namespace {

using namespace ljperf_comm;

ccl::communicator make_communicator(const Place& place) {
  ccl::init();
  ccl::shared_ptr_class<ccl::kvs> store;
  ccl::kvs::address_type address{};
  if (place.rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  std::string text = from_rank_0(place, std::string(address.begin(), address.end()));
  if (place.rank != 0) {
    std::copy(text.begin(), text.end(), address.begin());
    store = ccl::create_kvs(address);
  }
  return ccl::create_communicator(place.size, place.rank, store);
}

ccl::datatype type_of(Type type) {
  switch (type) {
    case Type::kInt8:
      return ccl::datatype::int8;
    case Type::kUint8:
      return ccl::datatype::uint8;
    case Type::kInt32:
      return ccl::datatype::int32;
    case Type::kInt64:
      return ccl::datatype::int64;
    case Type::kFloat16:
      return ccl::datatype::float16;
    case Type::kBfloat16:
      return ccl::datatype::bfloat16;
    case Type::kFloat32:
      return ccl::datatype::float32;
    case Type::kFloat64:
      return ccl::datatype::float64;
  }
  throw std::runtime_error("unknown type");
}

class OneCcl : public Library {
 public:
  explicit OneCcl(const Place& place) : communicator_(make_communicator(place)) {}

  void barrier() override { ccl::barrier(communicator_).wait(); }

  void run(const Call& call) override {
    ccl::datatype type = type_of(call.type);
    std::size_t count = call.count;
    auto sum = ccl::reduction::sum;
    switch (call.op) {
      case Op::kAllReduce:
        ccl::allreduce(call.send, call.recv, count, type, sum, communicator_).wait();
        return;
      case Op::kAllGather:
        ccl::allgather(call.send, call.recv, count, type, communicator_).wait();
        return;
      case Op::kReduceScatter:
        ccl::reduce_scatter(call.send, call.recv, count, type, sum, communicator_).wait();
        return;
      case Op::kBroadcast:
        ccl::broadcast(call.recv, count, type, kRoot, communicator_).wait();
        return;
      case Op::kAllToAll:
        ccl::alltoall(call.send, call.recv, count, type, communicator_).wait();
        return;
      case Op::kReduce:
        ccl::reduce(call.send, call.recv, count, type, sum, kRoot, communicator_).wait();
        return;
      case Op::kGather:
      case Op::kScatter:
        break;
    }
    throw std::runtime_error("oneCCL has no such operation");
  }

 private:
  ccl::communicator communicator_;
};

}  // namespace

int main() {
  // Over MPI, MPI's launcher says which rank this is.
  bool launched = environment("CCL_ATL_TRANSPORT") == "mpi";
  return drive([](const Place& place) { return std::make_unique<OneCcl>(place); },
               launched ? "PMI_RANK" : "LJPERF_COMM_RANK");
}
