// Buffers and windows that a program registers with a communicator. Collectives find by themselves
// whether a buffer is shared memory (ncclMemAlloc), so registering a buffer changes nothing about
// them; a window gives its memory a name that peers can put into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "accl/nccl.h"

namespace ljtrain::accl::api {

class Comm;

struct Window {
  std::weak_ptr<Comm> owner;
  std::uint64_t id = 0;  // the n-th window of the communicator, from 1: the same on every rank
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::vector<std::uint64_t> peer_bytes;  // by rank

  ncclWindow_t handle() { return reinterpret_cast<ncclWindow_t>(this); }
};

class Registrations {
 public:
  void* add_buffer(void* buffer, std::size_t bytes);
  // Throws kInvalidArgument.
  void remove_buffer(void* handle);

  // Ranks register in the same order, so they count alike.
  std::uint64_t next_window();
  void add_window(const std::shared_ptr<Window>& window);
  void remove_window(const Window& window);
  // nullptr: none (any more).
  std::shared_ptr<Window> window(std::uint64_t id) const;

  Registrations() = default;
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

 private:
  struct Buffer {
    void* data;
    std::size_t bytes;
  };
  mutable std::mutex mutex_;
  std::map<void*, std::unique_ptr<Buffer>> buffers_;
  std::map<std::uint64_t, std::shared_ptr<Window>> windows_;
  std::uint64_t last_window_ = 0;
};

// Throws kInvalidArgument for what is no window (any more).
std::shared_ptr<Window> find_window(ncclWindow_t handle);
// find_window(), and of this communicator.
std::shared_ptr<Window> find_window(ncclWindow_t handle, const Comm& comm);

}  // namespace ljtrain::accl::api
