// Plays a script of allocator calls (see simulate.cc) on PyTorch's own allocator, libc10_cuda.so.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <unordered_map>

extern "C" void counterfeit_synchronize(std::uint64_t stream);
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(std::int8_t));
}
namespace c10::cuda::detail {
void init_p2p_access_cache(std::int64_t);
}

namespace {

c10::cuda::CUDAStream stream_of(std::int64_t stream) {
  return c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(stream), 0);
}

}  // namespace

int main() {
  c10::cuda::CUDACachingAllocator::init(1);
  c10::cuda::_internal::setHasPrimaryContext([](std::int8_t) { return true; });
  c10::cuda::detail::init_p2p_access_cache(1);
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  std::unordered_map<std::int64_t, at::DataPtr> live;
  char operation = 0;
  std::int64_t id = 0;
  std::int64_t bytes = 0;
  std::int64_t stream = 0;
  while (std::cin >> operation) {
    bool failed = false;
    std::int64_t address = -1;
    if (operation == 'a') {
      std::cin >> id >> bytes >> stream;
      c10::cuda::setCurrentCUDAStream(stream_of(stream));
      try {
        at::DataPtr pointer = allocator->allocate(bytes);
        address = reinterpret_cast<std::int64_t>(pointer.get());
        live.emplace(id, std::move(pointer));
      } catch (const c10::OutOfMemoryError&) {
        failed = true;
      }
    } else if (operation == 'f') {
      std::cin >> id;
      live.erase(id);
    } else if (operation == 'r') {
      std::cin >> id >> stream;
      if (auto found = live.find(id); found != live.end()) {
        allocator->recordStream(found->second, stream_of(stream));
      }
    } else if (operation == 's') {
      std::cin >> stream;
      counterfeit_synchronize(stream);
    } else if (operation == 'e') {
      allocator->emptyCache();
    }
    auto now = allocator->getDeviceStats(0);
    std::printf("%c %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                " %" PRId64 " %" PRId64 " %" PRId64 "\n",
                operation, failed ? 1 : 0, address, now.allocated_bytes[0].current,
                now.active_bytes[0].current, now.reserved_bytes[0].current, now.segment[0].current,
                now.num_device_alloc, now.num_device_free, now.num_ooms + now.num_oom_rejections,
                now.num_alloc_retries);
  }
  std::fflush(stdout);
  _exit(0);  // PyTorch's destructors would free into a runtime that is gone
}
