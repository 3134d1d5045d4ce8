// One rank of DeepSpeed's shared-memory all-reduce for `ljperf comm`: DeepSpeed's own source
// (csrc/cpu/comm/shm.cpp of the installed package), called synchronously from C++, without PyTorch
// around it. What that source takes from PyTorch is little enough to stand here; torch/extension.h
// and ATen/ATen.h are empty files beside this one.
#include <sys/stat.h>

#include <atomic>
#include <cassert>

#include "rank_driver.h"

namespace c10 {
enum class ScalarType { Float, Half, BFloat16 };
}
namespace at {
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16& operator=(float value) {
    std::uint32_t wide = 0;
    std::memcpy(&wide, &value, sizeof wide);
    bits = static_cast<std::uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
    return *this;
  }
  operator float() const {
    std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};
struct Half {
  _Float16 value = 0;
  Half& operator=(float wide) {
    value = static_cast<_Float16>(wide);
    return *this;
  }
  operator float() const { return static_cast<float>(value); }
};
}  // namespace at
namespace torch {
struct Tensor {
  void* data = nullptr;
  c10::ScalarType type = c10::ScalarType::Float;
  void* data_ptr() const { return data; }
  c10::ScalarType scalar_type() const { return type; }
};
}  // namespace torch

#include "shm.cpp"

namespace {

using namespace ljperf_comm;

class DeepSpeed : public Library {
 public:
  explicit DeepSpeed(const Place& place) {
    if (!__builtin_cpu_supports("avx512bw")) {
      throw Unusable("its kernels need AVX-512");
    }
    shm_initialize(place.size, place.rank, environment("LJPERF_COMM_DEEPSPEED_ADDRESS").data(),
                   environment("LJPERF_COMM_DEEPSPEED_PORT").data());
  }

  void run(const Call& call) override {
    if (call.op != Op::kAllReduce || !call.in_place) {
      throw std::runtime_error("DeepSpeed has all_reduce in place only");
    }
    torch::Tensor tensor;
    tensor.data = call.recv;
    tensor.type = call.type == Type::kFloat32   ? c10::ScalarType::Float
                  : call.type == Type::kFloat16 ? c10::ScalarType::Half
                                                : c10::ScalarType::BFloat16;
    all_reduce_outer_loop(tensor, call.count, static_cast<int>(call.count * size_of(call.type)));
  }

  // It has none; a small all-reduce ends on no rank before all have come.
  void barrier() override {
    float nothing[8] = {};
    torch::Tensor tensor;
    tensor.data = nothing;
    all_reduce_outer_loop(tensor, 8, sizeof nothing);
  }
};

}  // namespace

int main() {
  return drive([](const Place& place) { return std::make_unique<DeepSpeed>(place); });
}
