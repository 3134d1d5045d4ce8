#include "reduction/reduction.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "reduction/kernels.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ljtrain::accl::reduction {
namespace {

constexpr std::size_t index_of(DataType type) { return static_cast<std::size_t>(type); }
constexpr std::size_t index_of(ReduceOp op) { return static_cast<std::size_t>(op); }

// Rounding to nearest and denormals as they are, whatever the calling thread has set
// (torch.set_flush_denormal, a library compiled with -ffast-math): ranks must not differ by who
// called.
class StandardArithmetic {
 public:
  StandardArithmetic() : before_(get()) {
    if ((before_ & kMode) != kStandard) {
      set((before_ & ~kMode) | kStandard);
    }
  }
  ~StandardArithmetic() {
    if ((before_ & kMode) != kStandard) {
      set(before_);
    }
  }
  StandardArithmetic(const StandardArithmetic&) = delete;
  StandardArithmetic& operator=(const StandardArithmetic&) = delete;

 private:
#if defined(__SSE__)
  using Register = unsigned int;
  // Flush to zero, rounding, the exceptions' masks, denormals are zero.
  static constexpr Register kMode = 0xffc0;
  static constexpr Register kStandard = 0x1f80;
  static Register get() { return _mm_getcsr(); }
  static void set(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  // Alternative half precision, default NaN, flush to zero, rounding, traps, flush to zero of 16
  // bits.
  static constexpr Register kMode = 0x07ff9f00;
  static constexpr Register kStandard = 0;
  static Register get() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Register = unsigned int;
  static constexpr Register kMode = 0;
  static constexpr Register kStandard = 0;
  static Register get() { return 0; }
  static void set(Register /*value*/) {}
#endif

  Register before_;
};

Overflow overflow_of(ReduceOp op) {
  return op == ReduceOp::kMax || op == ReduceOp::kMin ? Overflow::kKeepInfinity
                                                      : Overflow::kSaturate;
}
int divisor_of(ReduceOp op, int average_over) { return op == ReduceOp::kAvg ? average_over : 1; }

constexpr std::size_t kBlockBytes = 4096;  // of accumulator: stays in the first-level cache

// One block of the result at a time, in loops over pairs of sources.
class BlockReducer {
 public:
  explicit BlockReducer(const Request& request)
      : request_(request),
        table_(kernels()),
        size_(size_of(request.type)),
        combine_(table_.combine[index_of(accumulator_type(request.type))][index_of(request.op)]),
        narrow_(table_.narrow[index_of(request.type)]),
        as_is_(accumulator_type(request.type) == request.type && request.type != DataType::kBool &&
               request.op != ReduceOp::kPremulSum),
        staged_(request.streaming || request.second_destination != nullptr) {}

  void run() {
    const std::size_t block = kBlockBytes / size_of(accumulator_type(request_.type));
    std::size_t at = 0;
    // Later blocks start on a cache line of the destination, if elements can.
    std::size_t count = std::min(first_block(block), request_.count);
    while (at < request_.count) {
      reduce_block(at, count);
      at += count;
      count = std::min(block, request_.count - at);
    }
  }

 private:
  std::size_t first_block(std::size_t block) const {
    constexpr std::size_t kLine = 64;
    const std::size_t past = reinterpret_cast<std::uintptr_t>(request_.destination) % kLine;
    return staged_ && past % size_ == 0 ? block - past / size_ : block;
  }
  const std::byte* source(std::size_t rank, std::size_t at) const {
    return static_cast<const std::byte*>(request_.sources[rank]) + at * size_;
  }

  void reduce_block(std::size_t at, std::size_t count) {
    std::byte* const destination = static_cast<std::byte*>(request_.destination) + at * size_;
    std::byte* const out = staged_ ? result_.data() : destination;
    if (as_is_) {
      combine_as_is(out, at, count);
    } else {
      combine_widened(out, at, count);
    }
    if (!staged_) {
      return;
    }
    auto* second = static_cast<std::byte*>(request_.second_destination);
    second = second == nullptr ? nullptr : second + at * size_;
    if (request_.streaming) {
      table_.stream(destination, second, out, count * size_);
    } else {
      table_.copy_to_two(destination, second, out, count * size_);
    }
  }

  void combine_as_is(std::byte* out, std::size_t at, std::size_t count) {
    const std::size_t sources = request_.sources.size();
    const std::byte* left = source(0, at);
    for (std::size_t rank = 1; rank < sources; ++rank) {
      // Only the last step may write `out`, which can be one of the sources.
      std::byte* const target = rank + 1 == sources ? out : accumulator_.data();
      combine_(target, left, source(rank, at), count);
      left = target;
    }
    narrow_(out, left, count, divisor_of(request_.op, request_.average_over),
            overflow_of(request_.op));
  }

  void combine_widened(std::byte* out, std::size_t at, std::size_t count) {
    widen_source(accumulator_.data(), 0, at, count);
    for (std::size_t rank = 1; rank < request_.sources.size(); ++rank) {
      widen_source(other_.data(), rank, at, count);
      combine_(accumulator_.data(), accumulator_.data(), other_.data(), count);
    }
    narrow_(out, accumulator_.data(), count, divisor_of(request_.op, request_.average_over),
            overflow_of(request_.op));
  }

  void widen_source(std::byte* to, std::size_t rank, std::size_t at, std::size_t count) {
    if (request_.op == ReduceOp::kPremulSum) {
      table_.widen_scaled[index_of(request_.type)](to, source(rank, at), count,
                                                   request_.scales[rank]);
    } else {
      table_.widen[index_of(request_.type)](to, source(rank, at), count);
    }
  }

  const Request& request_;
  const Kernels& table_;
  const std::size_t size_;
  const Combine combine_;
  const Narrow narrow_;
  const bool as_is_;   // sources are read as accumulators
  const bool staged_;  // the result goes through result_
  alignas(64) std::array<std::byte, kBlockBytes> accumulator_;
  alignas(64) std::array<std::byte, kBlockBytes> other_;
  alignas(64) std::array<std::byte, kBlockBytes> result_;
};

// A handful of numbers (a loss, a norm, a flag): setting up the vector loops would take longer than
// adding them.
constexpr std::size_t kFew = 8;

template <typename Number>
void sum_few(const Request& request) {
  for (std::size_t i = 0; i < request.count; ++i) {
    Number sum{};
    std::memcpy(&sum, static_cast<const std::byte*>(request.sources[0]) + i * sizeof(Number),
                sizeof(Number));
    for (std::size_t rank = 1; rank < request.sources.size(); ++rank) {
      Number other{};
      std::memcpy(&other, static_cast<const std::byte*>(request.sources[rank]) + i * sizeof(Number),
                  sizeof(Number));
      sum += other;
    }
    std::memcpy(static_cast<std::byte*>(request.destination) + i * sizeof(Number), &sum,
                sizeof(Number));
  }
}

bool reduce_few(const Request& request) {
  if (request.count > kFew || request.op != ReduceOp::kSum ||
      request.second_destination != nullptr) {
    return false;
  }
  switch (request.type) {
    case DataType::kFloat32:
      sum_few<float>(request);
      return true;
    case DataType::kFloat64:
      sum_few<double>(request);
      return true;
    case DataType::kInt64:
      sum_few<std::uint64_t>(request);
      return true;
    default:
      return false;
  }
}

}  // namespace

void reduce(const Request& request) {
  const StandardArithmetic standard;
  if (reduce_few(request)) {
    return;
  }
  const Kernels& table = kernels();
  const OnePassFunction one_pass = table.one_pass[index_of(request.type)][index_of(request.op)];
  if (one_pass != nullptr) {
    one_pass({.destination = request.destination,
              .second_destination = request.second_destination,
              .sources = request.sources.data(),
              .source_count = request.sources.size(),
              .scales = request.scales.data(),
              .count = request.count,
              .average_over = divisor_of(request.op, request.average_over),
              .streaming = request.streaming});
  } else {
    BlockReducer(request).run();
  }
  if (request.streaming) {
    table.fence();
  }
}

DataType accumulator_type(DataType type) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      return DataType::kFloat32;
    default:
      return type;
  }
}

void widen(void* accumulator, const void* source, std::size_t count, DataType type, ReduceOp op,
           const Scale& scale) {
  const StandardArithmetic standard;
  if (op == ReduceOp::kPremulSum) {
    kernels().widen_scaled[index_of(type)](accumulator, source, count, scale);
  } else {
    kernels().widen[index_of(type)](accumulator, source, count);
  }
}

void combine(void* accumulator, const void* other, std::size_t count, DataType type, ReduceOp op) {
  const StandardArithmetic standard;
  kernels().combine[index_of(accumulator_type(type))][index_of(op)](accumulator, accumulator, other,
                                                                    count);
}

void narrow(void* destination, const void* accumulator, std::size_t count, DataType type,
            ReduceOp op, int average_over) {
  const StandardArithmetic standard;
  kernels().narrow[index_of(type)](destination, accumulator, count, divisor_of(op, average_over),
                                   overflow_of(op));
}

void copy(void* destination, const void* source, std::size_t bytes, bool streaming) {
  if (!streaming) {
    if (bytes > 0) {
      std::memcpy(destination, source, bytes);
    }
    return;
  }
  kernels().stream(destination, nullptr, source, bytes);
  kernels().fence();
}

void copy_to_two(void* streamed, void* cached, const void* source, std::size_t bytes,
                 bool streaming) {
  if (!streaming) {
    kernels().copy_to_two(streamed, cached, source, bytes);
    return;
  }
  kernels().stream(streamed, cached, source, bytes);
  kernels().fence();
}

const char* instruction_set() { return kernels().name; }

}  // namespace ljtrain::accl::reduction
