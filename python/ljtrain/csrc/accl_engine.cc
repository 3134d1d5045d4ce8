#include "accl_engine.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace ljtrain {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that has called a blocking send or receive moves it itself; the thread comes in for those
// that do not.
constexpr auto kHandOver = std::chrono::microseconds(200);
constexpr auto kMessageTurn = std::chrono::milliseconds(20);
constexpr auto kNoLimit = std::chrono::milliseconds(0);

void begin_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // Python's handlers belong to its own threads
}

[[noreturn]] void raise_operation_timeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK(false, "Operation timed out! It has not completed within ", timeout.count(), "ms");
}

}  // namespace

AcclEngine::AcclEngine(std::shared_ptr<accl::Communicator> communicator)
    : owner_(getpid()), communicator_(std::move(communicator)) {}

bool AcclEngine::is_mine() const { return getpid() == owner_; }

std::shared_ptr<accl::Communicator> AcclEngine::communicator() const {
  const std::lock_guard lock(mutex_);
  return communicator_;
}

std::shared_ptr<accl::Communicator> AcclEngine::usable_communicator(Lock& lock) const {
  if (!is_mine()) {  // before locking: a thread that the child does not have may hold the lock
    C10_THROW_ERROR(DistBackendError,
                    "[accl] a process group does not survive fork(): use it in the process that "
                    "made it");
  }
  lock.lock();
  if (closed_) {
    C10_THROW_ERROR(DistBackendError, "[accl] the process group has been shut down");
  }
  return communicator_;
}

// ---- collectives ----

void AcclEngine::submit(const c10::intrusive_ptr<CollectiveWork>& work, bool asynchronous) {
  Lock lock(mutex_, std::defer_lock);
  usable_communicator(lock);
  if (!asynchronous && !busy_ && queue_.empty()) {
    run(lock, work);
    return;
  }
  queue_.push_back(work);
  start_collective_thread();
  work_available_.notify_one();
}

void AcclEngine::run_here(const c10::intrusive_ptr<CollectiveWork>& work) {
  Lock lock(mutex_, std::defer_lock);
  usable_communicator(lock);
  while (busy_ || !queue_.empty()) {
    if (!busy_) {
      run_head(lock);
      continue;
    }
    ++waiters_;
    changed_.wait(lock);
    --waiters_;
  }
  run(lock, work);
}

// Takes the lock and gives it back; holds it neither while the work runs nor while its callbacks
// do.
void AcclEngine::run(Lock& lock, c10::intrusive_ptr<CollectiveWork> work) {
  busy_ = true;
  const auto communicator = communicator_;
  lock.unlock();
  auto failure = work->run(*communicator);
  lock.lock();
  // Before the callbacks, as they may call the next collective.
  busy_ = false;
  if (!queue_.empty()) {
    work_available_.notify_one();
  }
  notify_waiters();
  lock.unlock();
  work->settle(std::move(failure));
  work.reset();
  lock.lock();
  notify_waiters();
}

void AcclEngine::run_head(Lock& lock) {
  auto work = std::move(queue_.front());
  queue_.pop_front();
  run(lock, std::move(work));
}

void AcclEngine::notify_waiters() {
  if (waiters_ > 0) {
    changed_.notify_all();
  }
}

void AcclEngine::wait_for(CollectiveWork& work, Milliseconds timeout) {
  Lock lock(mutex_, std::defer_lock);
  if (!is_mine()) {
    usable_communicator(lock);
  }
  lock.lock();
  const auto deadline = Clock::now() + timeout;
  while (!work.is_settled()) {
    // With a limit of its own this thread must not take what it cannot leave.
    if (!busy_ && !queue_.empty() && (timeout == kNoLimit || !collective_thread_.joinable())) {
      run_head(lock);
      continue;
    }
    ++waiters_;
    if (timeout == kNoLimit) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, deadline) == std::cv_status::timeout &&
               !work.is_settled()) {
      --waiters_;
      raise_operation_timeout(timeout);
    }
    --waiters_;
  }
}

void AcclEngine::start_collective_thread() {
  if (threadless_ || collective_thread_.joinable()) {
    return;
  }
  collective_thread_ = std::thread([self = shared_from_this()] { self->serve_collectives(); });
}

void AcclEngine::serve_collectives() {
  begin_thread("accl collective");
  Lock lock(mutex_);
  while (true) {
    work_available_.wait(lock, [this] { return stopping_ || (!busy_ && !queue_.empty()); });
    if (stopping_) {
      return;
    }
    run_head(lock);
  }
}

// ---- messages ----

void AcclEngine::post(const c10::intrusive_ptr<MessageWork>& work, const accl::Message& message) {
  Lock lock(mutex_, std::defer_lock);
  const auto communicator = usable_communicator(lock);
  lock.unlock();
  try {
    work->attach(communicator->post(message));
  } catch (const accl::Error& error) {
    std::rethrow_exception(as_c10d_exception(error, work->info().timeout));
  }
  if (work->settle_if_done()) {
    return;
  }
  lock.lock();
  messages_.push_back(work);
  start_message_thread();
  message_available_.notify_one();
}

void AcclEngine::progress_messages() {
  if (const auto communicator = this->communicator()) {
    try {
      communicator->progress();
    } catch (const accl::Error&) {  // those who wait get it
    }
  }
}

void AcclEngine::wait_for(MessageWork& work, Milliseconds timeout) {
  Lock lock(mutex_, std::defer_lock);
  const auto communicator = usable_communicator(lock);
  lock.unlock();
  if (timeout == kNoLimit) {
    try {
      const accl::MessageHandle handle = work.handle();
      communicator->wait({&handle, 1});
    } catch (const accl::Error& error) {
      if (!work.handle()->is_done()) {
        work.settle(as_c10d_exception(error, work.info().timeout));
      }
    }
  } else {
    const auto deadline = Clock::now() + timeout;
    while (!work.handle()->is_done() && !work.is_settled()) {
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) {
        raise_operation_timeout(timeout);
      }
      communicator->wait_for_progress(std::min<std::chrono::nanoseconds>(left, kMessageTurn));
    }
  }
  work.settle_if_done();
  lock.lock();
  std::erase_if(messages_, [&work](const auto& other) { return other.get() == &work; });
  // Another thread may be running its callbacks.
  while (!work.is_settled()) {
    ++waiters_;
    changed_.wait_for(lock, kMessageTurn);
    --waiters_;
  }
}

void AcclEngine::start_message_thread() {
  if (threadless_ || message_thread_.joinable()) {
    return;
  }
  message_thread_ = std::thread([self = shared_from_this()] { self->serve_messages(); });
}

void AcclEngine::serve_messages() {
  begin_thread("accl messages");
  Lock lock(mutex_);
  while (true) {
    message_available_.wait(lock, [this] { return stopping_ || !messages_.empty(); });
    if (stopping_) {
      return;
    }
    message_available_.wait_for(lock, kHandOver, [this] { return stopping_ || messages_.empty(); });
    while (!stopping_ && !messages_.empty()) {
      const auto communicator = communicator_;
      lock.unlock();
      std::optional<accl::Error> failure;
      try {
        communicator->wait_for_progress(kMessageTurn);
      } catch (const accl::Error& error) {
        failure = error;
      }
      lock.lock();
      settle_messages(lock, failure);
    }
  }
}

void AcclEngine::settle_messages(Lock& lock, const std::optional<accl::Error>& failure) {
  std::vector<c10::intrusive_ptr<MessageWork>> done;
  std::erase_if(messages_, [&](const auto& work) {
    if (failure || work->handle()->is_done()) {
      done.push_back(work);
      return true;
    }
    return false;
  });
  if (done.empty()) {
    return;
  }
  lock.unlock();
  for (const auto& work : done) {
    if (!work->settle_if_done()) {
      work->settle(as_c10d_exception(*failure, work->info().timeout));
    }
  }
  done.clear();
  lock.lock();
  notify_waiters();
}

// ---- the end ----

void AcclEngine::abort(const std::string& reason) noexcept {
  if (!is_mine()) {
    return;
  }
  if (const auto communicator = this->communicator()) {
    communicator->abort(reason);
  }
}

void AcclEngine::drain(Lock& lock, TimePoint deadline) {
  const auto is_idle = [this] {
    return !busy_ && queue_.empty() &&
           std::none_of(messages_.begin(), messages_.end(), [](const auto& work) {
             return work->info().kind == c10d::OpType::SEND && !work->handle()->is_done();
           });
  };
  // Nobody else would run the queue if a callback on its thread has dropped the group.
  const bool is_served = collective_thread_.get_id() != std::this_thread::get_id() &&
                         (collective_thread_.joinable() || message_thread_.joinable());
  ++waiters_;
  while (!is_idle() && Clock::now() < deadline && (is_served || busy_)) {
    changed_.wait_until(lock, std::min(deadline, Clock::now() + kMessageTurn));
  }
  if (!is_idle()) {
    const std::string reason =
        fmt::format("rank {} has left the group while {} was pending", communicator_->rank(),
                    busy_ || !queue_.empty() ? "a collective" : "a message");
    communicator_->abort(reason);
    while (busy_ || !queue_.empty()) {  // each fails at once now
      if (!busy_) {
        run_head(lock);
      } else {
        changed_.wait_for(lock, kMessageTurn);
      }
    }
  }
  --waiters_;
}

void AcclEngine::stop_threads(Lock& lock) {
  stopping_ = true;
  work_available_.notify_all();
  message_available_.notify_all();
  if (communicator_) {
    communicator_->interrupt_wait();
  }
  std::array threads{std::move(collective_thread_), std::move(message_thread_)};
  lock.unlock();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // a callback has dropped the group; the thread ends when it returns
    } else if (thread.joinable()) {
      thread.join();
    }
  }
  lock.lock();
}

void AcclEngine::shut_down(TimePoint deadline) {
  if (!is_mine()) {
    return;
  }
  Lock lock(mutex_);
  if (closed_) {
    return;
  }
  closed_ = true;
  drain(lock, deadline);
  stop_threads(lock);
  const auto messages = std::move(messages_);  // outlive the communicator, which writes to them
  const auto communicator = std::move(communicator_);
  lock.unlock();
  for (const auto& work : messages) {
    work->abort();
  }
}

void AcclEngine::retire_threads(TimePoint deadline) {
  if (!is_mine()) {
    return;
  }
  Lock lock(mutex_);
  if (closed_ || threadless_) {
    return;
  }
  threadless_ = true;
  drain(lock, deadline);
  stop_threads(lock);
  stopping_ = false;
}

}  // namespace ljtrain
