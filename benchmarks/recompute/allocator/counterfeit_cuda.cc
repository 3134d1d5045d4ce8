// Stands in for libcudart.so.13 and libnvidia-ml.so.1, so that PyTorch's allocator runs without a
// GPU: memory is a counter ($COUNTERFEIT_BYTES of it), addresses only grow, streams finish when
// counterfeit_synchronize() says so. Layouts and codes: cuda_runtime_api.h of CUDA 13.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

namespace {

using Status = int;
constexpr Status kOutOfMemory = 2;
constexpr Status kNotReady = 600;
constexpr std::uint64_t kStep = 2 << 20;
constexpr std::size_t kTotalMemoryOffset = 288;  // cudaDeviceProp::totalGlobalMem

std::uint64_t used = 0;
std::uint64_t next_address = kStep;
std::uint64_t next_handle = std::uint64_t{1} << 50;
std::uint64_t sequence = 0;
std::unordered_map<std::uint64_t, std::uint64_t> sizes;     // of allocations and physical pages
std::unordered_map<std::uint64_t, std::uint64_t> finished;  // by stream

struct Event {
  std::uint64_t stream;
  std::uint64_t sequence;
};

std::uint64_t total() {
  static const std::uint64_t bytes = std::strtoull(std::getenv("COUNTERFEIT_BYTES"), nullptr, 10);
  return bytes;
}

std::uint64_t take_address(std::uint64_t bytes) {
  std::uint64_t address = next_address;
  next_address += (bytes + kStep - 1) / kStep * kStep;
  return address;
}

bool take(std::uint64_t key, std::uint64_t bytes) {
  if (bytes > total() - used) {
    return false;
  }
  used += bytes;
  sizes[key] = bytes;
  return true;
}

Status give_back(std::uint64_t key) {
  used -= sizes.at(key);
  sizes.erase(key);
  return 0;
}

// The driver's calls for expandable segments.
Status reserve_addresses(std::uint64_t* address, std::size_t bytes, std::size_t, std::uint64_t,
                         unsigned long long) {
  *address = take_address(bytes);
  return 0;
}
Status create_page(std::uint64_t* handle, std::size_t bytes, const void*, unsigned long long) {
  *handle = next_handle++;
  return take(*handle, bytes) ? 0 : kOutOfMemory;
}
Status release_page(std::uint64_t handle) { return give_back(handle); }
Status succeed() { return 0; }
Status attribute(int* value, int, int) {
  *value = 0;
  return 0;
}
Status granularity(std::size_t* bytes, const void*, int) {
  *bytes = kStep;
  return 0;
}
Status error_text(int, const char** text) {
  *text = "counterfeit";
  return 0;
}

}  // namespace

extern "C" {

void counterfeit_synchronize(std::uint64_t stream) { finished[stream] = sequence; }

Status cudaMalloc(void** pointer, std::size_t bytes) {
  if (!take(next_address, bytes)) {
    *pointer = nullptr;
    return kOutOfMemory;
  }
  *pointer = reinterpret_cast<void*>(take_address(bytes));
  return 0;
}
Status cudaFree(void* pointer) { return give_back(reinterpret_cast<std::uint64_t>(pointer)); }
Status cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = total() - used;
  *total_bytes = total();
  return 0;
}
Status cudaGetDevice(int* device) {
  *device = 0;
  return 0;
}
Status cudaSetDevice(int) { return 0; }
Status cudaGetDeviceCount(int* count) {
  *count = 1;
  return 0;
}
Status cudaGetDeviceProperties(char* properties, int) {
  std::uint64_t bytes = total();
  std::memcpy(properties + kTotalMemoryOffset, &bytes, sizeof(bytes));
  return 0;
}
Status cudaGetLastError() { return 0; }
const char* cudaGetErrorName(Status) { return "counterfeit"; }
const char* cudaGetErrorString(Status) { return "counterfeit"; }
Status cudaDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
Status cudaDeviceSynchronize() { return 0; }
Status cudaStreamSynchronize(void*) { return 0; }
Status cudaStreamQuery(void*) { return 0; }
Status cudaStreamIsCapturing(void*, int* capturing) {
  *capturing = 0;
  return 0;
}
Status cudaStreamGetCaptureInfo(void*, int* capturing, void*, void*, void*, void*, void*) {
  *capturing = 0;
  return 0;
}
Status cudaThreadExchangeStreamCaptureMode(int*) { return 0; }
Status cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return 0;
}
Status cudaEventCreateWithFlags(Event** event, unsigned) {
  *event = new Event{};
  return 0;
}
Status cudaEventDestroy(Event* event) {
  delete event;
  return 0;
}
Status cudaEventRecord(Event* event, std::uint64_t stream) {
  *event = {stream, ++sequence};
  return 0;
}
Status cudaEventQuery(const Event* event) {
  return finished[event->stream] >= event->sequence ? 0 : kNotReady;
}
Status cudaEventSynchronize(Event*) { return 0; }

Status cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                        unsigned long long, int* found) {
  static const std::unordered_map<std::string_view, void*> kFunctions{
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve_addresses)},
      {"cuMemCreate", reinterpret_cast<void*>(create_page)},
      {"cuMemRelease", reinterpret_cast<void*>(release_page)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(attribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_text)}};
  auto known = kFunctions.find(name);
  *function = known != kFunctions.end() ? known->second : reinterpret_cast<void*>(succeed);
  if (found != nullptr) {
    *found = 0;
  }
  return 0;
}

// What the allocator must not call in these programs.
#define COUNTERFEIT_MISSING(name)                                 \
  Status name() {                                                 \
    std::fprintf(stderr, "counterfeit_cuda: %s called\n", #name); \
    std::abort();                                                 \
  }
COUNTERFEIT_MISSING(cudaDeviceCanAccessPeer)
COUNTERFEIT_MISSING(cudaDeviceEnablePeerAccess)
COUNTERFEIT_MISSING(cudaDeviceGetDefaultMemPool)
COUNTERFEIT_MISSING(cudaEventElapsedTime)
COUNTERFEIT_MISSING(cudaFreeAsync)
COUNTERFEIT_MISSING(cudaGraphNodeGetDependencies)
COUNTERFEIT_MISSING(cudaIpcCloseMemHandle)
COUNTERFEIT_MISSING(cudaIpcGetMemHandle)
COUNTERFEIT_MISSING(cudaIpcOpenMemHandle)
COUNTERFEIT_MISSING(cudaMallocAsync)
COUNTERFEIT_MISSING(cudaMemPoolGetAttribute)
COUNTERFEIT_MISSING(cudaMemPoolSetAccess)
COUNTERFEIT_MISSING(cudaMemPoolSetAttribute)
COUNTERFEIT_MISSING(cudaMemPoolTrimTo)
COUNTERFEIT_MISSING(cudaMemcpy)
COUNTERFEIT_MISSING(cudaMemcpyAsync)
COUNTERFEIT_MISSING(cudaMemcpyPeerAsync)
COUNTERFEIT_MISSING(cudaStreamCreateWithPriority)
COUNTERFEIT_MISSING(cudaStreamWaitEvent)

// NVML, which is asked whether the device belongs to a fabric: it does not.
Status nvmlInit_v2() { return 0; }
Status nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = nullptr;
  return 0;
}
Status nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 0; }
Status nvmlDeviceGetNvLinkRemoteDeviceType() { return 3; }
Status nvmlDeviceGetNvLinkRemotePciInfo_v2() { return 3; }
Status nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
Status nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}

}  // extern "C"
