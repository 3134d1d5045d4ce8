// A thread that runs tasks one after the other. Streams are made of it, and what communicators do
// in the background.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace ljtrain::accl::api {

class Worker {
 public:
  // `name` is what top and gdb show, up to 15 characters. Throws Error kSystem.
  explicit Worker(const char* name);
  // Runs what is queued and ends the thread. On the worker's own thread (the last task dropped its
  // owner): the thread ends by itself afterwards.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Tasks do not throw.
  void push(std::function<void()> task);
  bool is_idle() const;
  // Until everything that is queued now has run. Not on the worker's own thread.
  void drain() const;
  bool is_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  // Shared with the thread, which may outlive the object.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    std::size_t pushed = 0;
    std::size_t finished = 0;
    bool is_closing = false;
  };
  static void run(State& state);
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace ljtrain::accl::api
