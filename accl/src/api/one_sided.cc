#include "api/one_sided.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "api/comm.h"
#include "api/operation.h"

namespace ljtrain::accl::api {
namespace {

// Tags that no other message of the C interface uses (those have 0).
constexpr int kHeaderTag = 0x0acc0001;
constexpr int kDataTag = 0x0acc0002;
// A target does not know when the next put comes: its receive waits "for ever".
constexpr std::chrono::hours kForEver{24 * 365};
constexpr std::chrono::milliseconds kLookAround{100};

}  // namespace

bool OneSided::is_stopping() const {
  const std::scoped_lock lock(mutex_);
  return is_stopping_;
}

void OneSided::start(Comm& comm) {
  const std::scoped_lock lock(mutex_);
  if (service_ == nullptr && !is_stopping_) {
    service_ = std::make_unique<Worker>("accl-onesided");
    // The communicator outlives its service: ~Comm stops it first.
    service_->push([this, &comm] {
      try {
        serve(comm);
      } catch (const Error& failed) {
        const std::scoped_lock inner(mutex_);
        failure_ = failed;
      }
      changed_.notify_all();
    });
  }
}

void OneSided::stop(Communicator& core) {
  std::unique_ptr<Worker> service;
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
    service = std::move(service_);
  }
  while (service != nullptr && !service->is_idle()) {
    core.interrupt_wait();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void OneSided::serve(Comm& comm) {
  Communicator& core = comm.core();
  while (!is_stopping()) {
    const MessageHandle header = core.post({.direction = Message::Direction::kReceive,
                                            .data = &incoming_,
                                            .bytes = sizeof(incoming_),
                                            .peer = kAnySource,
                                            .tag = kHeaderTag,
                                            .timeout = kForEver});
    while (!header->is_done()) {
      if (is_stopping()) {
        return;
      }
      if (!core.progress()) {
        core.wait_for_progress(kLookAround);
      }
      sweep_outgoing();
    }
    if (const std::optional<Error> failed = header->failure()) {
      if (core.async_error() || comm.turns().is_stopped()) {
        throw Error(*failed);
      }
      std::this_thread::sleep_for(
          kLookAround);  // a peer has left in order: the others may still put
      continue;
    }
    accept(comm, header->source());
  }
}

void OneSided::accept(Comm& comm, int source) {
  const Header header = incoming_;
  if (header.bytes > 0) {
    const std::shared_ptr<Window> window = comm.registrations().window(header.window);
    // The origin checked against what this rank registered, so only deregistering too early leads
    // here.
    if (window == nullptr || header.offset > window->bytes ||
        header.bytes > window->bytes - header.offset) {
      throw error(ErrorCode::kInvalidUsage,
                  "rank {} put {} bytes at {} into window {}, which this rank no longer has",
                  source, header.bytes, header.offset, header.window);
    }
    const MessageHandle data = comm.core().post({.direction = Message::Direction::kReceive,
                                                 .data = window->data + header.offset,
                                                 .bytes = header.bytes,
                                                 .peer = source,
                                                 .tag = kDataTag});
    comm.core().wait({&data, 1});
  }
  count_signal(source, header.signal, header.context);
}

void OneSided::count_signal(int source, int signal, int context) {
  {
    const std::scoped_lock lock(mutex_);
    ++signals_[{source, signal, context}];
  }
  changed_.notify_all();
}

void OneSided::put(Comm& comm, const PutWork& work) {
  if (work.peer == comm.rank()) {
    if (work.bytes > 0) {
      const std::shared_ptr<Window> window = comm.registrations().window(work.window);
      if (window == nullptr) {
        throw error(ErrorCode::kInvalidUsage, "the window was deregistered before the put ran");
      }
      std::memmove(window->data + work.offset, work.data, work.bytes);
    }
    count_signal(work.peer, work.signal, work.context);
    return;
  }
  start(comm);
  send_header(comm, work);
  if (work.bytes > 0) {
    const MessageHandle data = comm.core().post({.direction = Message::Direction::kSend,
                                                 .data = const_cast<void*>(work.data),
                                                 .bytes = work.bytes,
                                                 .peer = work.peer,
                                                 .tag = kDataTag});
    comm.core().wait({&data, 1});
  }
}

void OneSided::send_header(Comm& comm, const PutWork& work) {
  auto header = std::make_unique<Header>(Header{.window = work.window,
                                                .offset = work.offset,
                                                .bytes = work.bytes,
                                                .signal = work.signal,
                                                .context = work.context});
  MessageHandle message = comm.core().post({.direction = Message::Direction::kSend,
                                            .data = header.get(),
                                            .bytes = sizeof(Header),
                                            .peer = work.peer,
                                            .tag = kHeaderTag,
                                            .timeout = kForEver});
  {
    const std::scoped_lock lock(mutex_);
    outgoing_.push_back({std::move(header), std::move(message)});
  }
  comm.core().interrupt_wait();  // the service drives it from here
}

void OneSided::sweep_outgoing() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(outgoing_, [](const Outgoing& sent) { return sent.message->is_done(); });
}

void OneSided::wait(Comm& comm, const WaitSignalWork& work) {
  start(comm);
  const auto deadline = std::chrono::steady_clock::now() + comm.timeout();
  std::unique_lock lock(mutex_);
  for (const ncclWaitSignalDesc_t& wanted : work.signals) {
    std::uint64_t& count = signals_[{wanted.peer, wanted.sigIdx, wanted.ctx}];
    const auto needed = static_cast<std::uint64_t>(wanted.opCnt);
    while (count < needed) {
      if (failure_) {
        throw Error(*failure_);
      }
      if (comm.turns().is_stopped()) {
        throw error(ErrorCode::kAborted, "the communicator was stopped in ncclWaitSignal");
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        throw Error(ErrorCode::kTimeout,
                    fmt::format("ncclWaitSignal: {} of {} signals {} (context {}) of rank {} came "
                                "in time",
                                count, needed, wanted.sigIdx, wanted.ctx, wanted.peer),
                    {wanted.peer});
      }
      changed_.wait_for(lock, kLookAround);
    }
    count -= needed;
  }
}

}  // namespace ljtrain::accl::api
