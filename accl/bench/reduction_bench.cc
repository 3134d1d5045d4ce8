// GB/s of the reduction and the copies beside memcpy: reduction_bench [KiB ...]. Bytes counted are
// those read and written by the program (a store that first fetches its line is counted once).
// Variants take turns, so that a busy machine slows all of them; the best of the rounds is printed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reduction/kernels.h"
#include "reduction/reduction.h"

namespace {

using namespace ljtrain::accl;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 15;
constexpr std::size_t kBytesPerRound = std::size_t{256} << 20;

struct Free {
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): aligned_alloc's
  void operator()(void* pointer) const { std::free(pointer); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

Buffer make_buffer(std::size_t bytes, int fill) {
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
  std::memset(buffer.get(), fill, bytes);
  return buffer;
}

struct Variant {
  std::string name;
  std::size_t moved = 0;  // bytes of one call
  std::function<void()> call;
  double best = 0;  // GB/s
};

void run(std::vector<Variant>& variants, std::size_t bytes) {
  const std::size_t calls = std::max<std::size_t>(1, kBytesPerRound / 4 / bytes);
  for (int round = 0; round < kRounds; ++round) {
    for (Variant& variant : variants) {
      variant.call();
      const auto start = Clock::now();
      for (std::size_t i = 0; i < calls; ++i) {
        variant.call();
      }
      const std::chrono::duration<double, std::nano> took = Clock::now() - start;
      const double rate =
          static_cast<double>(variant.moved) * static_cast<double>(calls) / took.count();
      variant.best = std::max(variant.best, rate);
    }
  }
}

class Bench {
 public:
  explicit Bench(std::size_t bytes)
      : bytes_(bytes), destination_(make_buffer(bytes, 0)), second_(make_buffer(bytes, 0)) {
    for (int i = 0; i < 4; ++i) {
      sources_.push_back(make_buffer(bytes, 0x3f));
      pointers_.push_back(sources_.back().get());
    }
  }

  void print() {
    add_copies();
    for (const DataType type : {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16,
                                DataType::kFloat8E4m3, DataType::kInt32}) {
      add_partial(type);
    }
    for (const DataType type :
         {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16, DataType::kInt32}) {
      for (const std::size_t sources : {2, 3, 4}) {
        add_reduce(type, ReduceOp::kSum, sources, false, false);
        add_reduce(type, ReduceOp::kSum, sources, true, false);
      }
      add_reduce(type, ReduceOp::kSum, 2, false, true);
      add_reduce(type, ReduceOp::kSum, 2, true, true);
      add_reduce(type, ReduceOp::kAvg, 2, false, false);
      add_reduce(type, ReduceOp::kMax, 2, false, false);
    }
    run(variants_, bytes_);
    for (const Variant& variant : variants_) {
      fmt::print("{:>9} KiB  {:<44} {:8.1f} GB/s  {:5.2f} of memcpy\n", bytes_ >> 10, variant.name,
                 variant.best, variant.best / variants_.front().best);
    }
  }

 private:
  void add(std::string name, std::size_t buffers, std::function<void()> call) {
    variants_.push_back({std::move(name), buffers * bytes_, std::move(call)});
  }
  void add_copies() {
    void* const to = destination_.get();
    void* const second = second_.get();
    const void* const from = sources_[0].get();
    const std::size_t bytes = bytes_;
    add("memcpy", 2, [=] { std::memcpy(to, from, bytes); });
    add("copy, streaming", 2, [=] { reduction::copy(to, from, bytes, true); });
    add("copy_to_two", 3, [=] { reduction::copy_to_two(to, second, from, bytes, false); });
    add("copy_to_two, streaming", 3,
        [=] { reduction::copy_to_two(to, second, from, bytes, true); });
  }
  void add_reduce(DataType type, ReduceOp op, std::size_t sources, bool streaming, bool two) {
    const reduction::Request request{.destination = destination_.get(),
                                     .second_destination = two ? second_.get() : nullptr,
                                     .sources = {pointers_.data(), sources},
                                     .count = bytes_ / size_of(type),
                                     .type = type,
                                     .op = op,
                                     .average_over = static_cast<int>(sources),
                                     .streaming = streaming};
    add(fmt::format("{} {} of {}{}{}", name_of(type), name_of(op), sources,
                    streaming ? ", streaming" : "", two ? ", two destinations" : ""),
        sources + (two ? 2 : 1), [request] { reduction::reduce(request); });
  }

  // The accumulator has the size of the other buffers.
  void add_partial(DataType type) {
    void* const to = destination_.get();
    const void* const from = sources_[0].get();
    const std::size_t wide = size_of(reduction::accumulator_type(type));
    const std::size_t count = bytes_ / wide;
    const std::size_t moved = count * (wide + size_of(type));
    variants_.push_back({fmt::format("{} widen", name_of(type)), moved,
                         [=] { reduction::widen(to, from, count, type, ReduceOp::kSum, {}); }});
    variants_.push_back({fmt::format("{} narrow", name_of(type)), moved,
                         [=] { reduction::narrow(to, from, count, type, ReduceOp::kSum, 1); }});
    add(fmt::format("{} combine", name_of(type)), 3,
        [=] { reduction::combine(to, from, count, type, ReduceOp::kSum); });
  }

  std::size_t bytes_;
  Buffer destination_;
  Buffer second_;
  std::vector<Buffer> sources_;
  std::vector<const void*> pointers_;
  std::vector<Variant> variants_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    sizes.push_back(std::strtoull(argv[i], nullptr, 10) << 10);
  }
  if (sizes.empty()) {
    sizes = {std::size_t{16} << 10, std::size_t{64} << 10, std::size_t{256} << 10,
             std::size_t{64} << 20};
  }
  for (const reduction::Kernels* set : reduction::available_kernels()) {
    reduction::set_kernels(set);
    fmt::print("{}\n", reduction::instruction_set());
    for (const std::size_t bytes : sizes) {
      if (bytes > 0) {
        Bench(bytes).print();
      }
    }
    if (std::getenv("REDUCTION_BENCH_ALL") == nullptr) {
      break;
    }
  }
}
