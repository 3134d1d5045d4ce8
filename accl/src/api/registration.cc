#include "api/registration.h"

#include <unordered_map>
#include <utility>

#include "api/arguments.h"
#include "api/comm.h"
#include "api/group.h"
#include "api/leaked.h"

namespace ljtrain::accl::api {
namespace {

using Table = std::unordered_map<const void*, std::shared_ptr<Window>>;
Table& table() { return leaked<Table>(); }

}  // namespace

void* Registrations::add_buffer(void* buffer, std::size_t bytes) {
  auto entry = std::make_unique<Buffer>(Buffer{buffer, bytes});
  void* const handle = entry.get();
  const std::scoped_lock lock(mutex_);
  buffers_.emplace(handle, std::move(entry));
  return handle;
}

void Registrations::remove_buffer(void* handle) {
  const std::scoped_lock lock(mutex_);
  if (buffers_.erase(handle) == 0) {
    throw error(ErrorCode::kInvalidArgument,
                "handle {} is no registration of this communicator (any more)", handle);
  }
}

std::uint64_t Registrations::next_window() {
  const std::scoped_lock lock(mutex_);
  return ++last_window_;
}

void Registrations::add_window(const std::shared_ptr<Window>& window) {
  {
    const std::scoped_lock lock(mutex_);
    windows_.emplace(window->id, window);
  }
  const std::scoped_lock lock(global_mutex(GlobalMutex::kWindows));
  table().emplace(window.get(), window);
}

void Registrations::remove_window(const Window& window) {
  {
    const std::scoped_lock lock(global_mutex(GlobalMutex::kWindows));
    table().erase(&window);
  }
  const std::scoped_lock lock(mutex_);
  windows_.erase(window.id);
}

std::shared_ptr<Window> Registrations::window(std::uint64_t id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = windows_.find(id);
  return found == windows_.end() ? nullptr : found->second;
}

Registrations::~Registrations() {
  const std::scoped_lock lock(global_mutex(GlobalMutex::kWindows));
  for (const auto& [id, window] : windows_) {
    table().erase(window.get());
  }
}

std::shared_ptr<Window> find_window(ncclWindow_t handle) {
  require_pointer(handle, "window");
  const std::scoped_lock lock(global_mutex(GlobalMutex::kWindows));
  const auto found = table().find(handle);
  if (found == table().end()) {
    throw error(ErrorCode::kInvalidArgument, "window {} is none, or has been deregistered",
                static_cast<const void*>(handle));
  }
  return found->second;
}

std::shared_ptr<Window> find_window(ncclWindow_t handle, const Comm& comm) {
  std::shared_ptr<Window> window = find_window(handle);
  if (window->owner.lock().get() != &comm) {
    throw error(ErrorCode::kInvalidArgument, "window {} belongs to another communicator",
                static_cast<const void*>(handle));
  }
  return window;
}

namespace {

constexpr unsigned kWindowFlags = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING;

// Every rank tells how large its part is, so that an origin can check its puts; when the exchange
// is over, every rank has its part in place.
void register_window(const std::shared_ptr<Comm>& comm, const std::shared_ptr<Window>& window) {
  comm->registrations().add_window(window);
  comm->one_sided().start(*comm);
  const std::uint64_t own = window->bytes;
  comm->core().run({.kind = OperationKind::kAllGather,
                    .send = &own,
                    .recv = window->peer_bytes.data(),
                    .count = 1,
                    .type = DataType::kUint64});
}

ncclResult_t window_register(ncclComm_t handle, void* buffer, std::size_t bytes,
                             ncclWindow_t* result, int flags) {
  const std::shared_ptr<Comm> comm = Comm::find_ready(handle);
  require_pointer(result, "win");
  *result = nullptr;
  require_flags(static_cast<unsigned>(flags), kWindowFlags, "winFlags");
  require_buffer(buffer, bytes, "buff");
  if ((flags & NCCL_WIN_COLL_SYMMETRIC) != 0 &&
      reinterpret_cast<std::uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
    throw error(ErrorCode::kInvalidArgument,
                "buff {} is not aligned to {} bytes, as a symmetric window must be", buffer,
                NCCL_WIN_REQUIRED_ALIGNMENT);
  }
  const auto window = std::make_shared<Window>();
  window->owner = comm;
  window->id = comm->registrations().next_window();
  window->data = static_cast<std::byte*>(buffer);
  window->bytes = bytes;
  window->peer_bytes.resize(static_cast<std::size_t>(comm->size()));
  *result = window->handle();
  trace::info(trace::kReg, comm->rank_for_log(), "window {} of {} bytes at {}{}", window->id, bytes,
              buffer, Communicator::is_shared(buffer, bytes) ? ", shared" : "");
  return submit({.subject = comm,
                 .ordered_on = comm,
                 .run = [comm, window] { register_window(comm, window); },
                 .undo =
                     [comm, window, result](const Failure&) {
                       comm->registrations().remove_window(*window);
                       if (comm->is_blocking()) {
                         *result = nullptr;
                       }
                     }});
}

}  // namespace
}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclMemAlloc(void** ptr, size_t size) {
  return guarded([&] {
    require_pointer(ptr, "ptr");
    *ptr = nullptr;
    if (size == 0) {
      throw error(ErrorCode::kInvalidArgument, "size is 0");
    }
    *ptr = Communicator::allocate(size);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclMemAlloc);

ncclResult_t pncclMemFree(void* ptr) {
  return guarded([&] {
    if (ptr != nullptr && !Communicator::deallocate(ptr)) {
      throw error(ErrorCode::kInvalidArgument, "{} was not allocated by ncclMemAlloc, or is freed",
                  ptr);
    }
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclMemFree);

ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_ready(comm);
    require_pointer(buff, "buff");
    require_pointer(handle, "handle");
    *handle = nullptr;
    if (size == 0) {
      throw error(ErrorCode::kInvalidArgument, "size is 0");
    }
    trace::info(trace::kReg, found->rank_for_log(), "buffer of {} bytes at {}: {}", size, buff,
                Communicator::is_shared(buff, size)
                    ? "shared, collectives move it without a copy"
                    : "not from ncclMemAlloc, collectives go through the communicator's memory");
    *handle = found->registrations().add_buffer(buff, size);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find(comm);
    require_pointer(handle, "handle");
    found->registrations().remove_buffer(handle);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommDeregister);

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                     int winFlags) {
  return guarded([&] { return window_register(comm, buff, size, win, winFlags); });
}
ACCL_ALIAS(ncclCommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find(comm);
    if (win != nullptr) {
      found->registrations().remove_window(*find_window(win, *found));
    }
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommWindowDeregister);

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find(comm);
    require_pointer(outUserPtr, "outUserPtr");
    *outUserPtr = nullptr;
    *outUserPtr = find_window(win, *found)->data;
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclWinGetUserPtr);
