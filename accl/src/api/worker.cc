#include "api/worker.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "accl/error.h"

namespace ljtrain::accl::api {
namespace {

// The new thread inherits the mask: signals stay with the threads of the program.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

Worker::Worker(const char* name) {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([state = state_] { run(*state); });
  } catch (const std::system_error& cause) {
    throw error(ErrorCode::kSystem, "cannot start a thread: {}", cause.what());
  }
  pthread_setname_np(thread_.native_handle(), name);
}

Worker::~Worker() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->is_closing = true;
  }
  state_->changed.notify_all();
  if (is_own_thread()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Worker::push(std::function<void()> task) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
    ++state_->pushed;
  }
  state_->changed.notify_all();
}

bool Worker::is_idle() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->finished == state_->pushed;
}

void Worker::drain() const {
  std::unique_lock lock(state_->mutex);
  const std::size_t target = state_->pushed;
  state_->changed.wait(lock, [&] { return state_->finished >= target; });
}

void Worker::run(State& state) {
  std::unique_lock lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&] { return !state.tasks.empty() || state.is_closing; });
    if (state.tasks.empty()) {
      return;
    }
    {
      const std::function<void()> task = std::move(state.tasks.front());
      state.tasks.pop_front();
      lock.unlock();
      task();
      // The task, and what it holds, goes before it counts as finished.
    }
    lock.lock();
    ++state.finished;
    state.changed.notify_all();
  }
}

}  // namespace ljtrain::accl::api
