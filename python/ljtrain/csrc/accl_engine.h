// Runs the operations of one group: collectives in the order they were called, messages beside
// them.
//
// Whoever waits does the work: a blocking call runs on its own thread, wait() takes from the queue
// what nobody has taken yet. Threads start only when they are needed: one for collectives at the
// first asynchronous one, one for messages at the first that is not done at once. They are two
// because a collective may wait for a rank that waits for a message.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "accl_work.h"

namespace ljtrain {

class AcclEngine : public std::enable_shared_from_this<AcclEngine> {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit AcclEngine(std::shared_ptr<accl::Communicator> communicator);

  // Blocking ones (and any on a thread that must do it itself) run before this returns if nothing
  // is queued before them. Failures are in the work.
  void submit(const c10::intrusive_ptr<CollectiveWork>& work, bool asynchronous);
  // Runs it on this thread, after all that is queued.
  void run_here(const c10::intrusive_ptr<CollectiveWork>& work);
  void post(const c10::intrusive_ptr<MessageWork>& work, const accl::Message& message);

  // Return when the work is settled; throw when the time is up (0: no limit), and the work goes on.
  void wait_for(CollectiveWork& work, Milliseconds timeout);
  void wait_for(MessageWork& work, Milliseconds timeout);
  void progress_messages();

  void abort(const std::string& reason) noexcept;
  // Lets what is under way end until `deadline`, then aborts it; joins the threads. Later calls are
  // refused.
  void shut_down(TimePoint deadline);
  // The same before the interpreter ends, but blocking calls still work.
  void retire_threads(TimePoint deadline);

  // Null after shut_down().
  std::shared_ptr<accl::Communicator> communicator() const;
  // False in a child that was forked from the process that made the group.
  bool is_mine() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  std::shared_ptr<accl::Communicator> usable_communicator(Lock& lock) const;
  void run(Lock& lock, c10::intrusive_ptr<CollectiveWork> work);
  void run_head(Lock& lock);
  void drain(Lock& lock, TimePoint deadline);
  void stop_threads(Lock& lock);
  void start_collective_thread();
  void start_message_thread();
  void serve_collectives();
  void serve_messages();
  void settle_messages(Lock& lock, const std::optional<accl::Error>& failure);
  void notify_waiters();

  const pid_t owner_;
  mutable std::mutex mutex_;
  std::condition_variable work_available_;     // the collective thread sleeps here
  std::condition_variable message_available_;  // the message thread
  std::condition_variable changed_;            // those who wait for a work
  int waiters_ = 0;

  std::shared_ptr<accl::Communicator> communicator_;
  std::deque<c10::intrusive_ptr<CollectiveWork>> queue_;
  bool busy_ = false;  // somebody runs a collective
  std::vector<c10::intrusive_ptr<MessageWork>> messages_;
  std::thread collective_thread_;
  std::thread message_thread_;
  bool stopping_ = false;
  bool closed_ = false;
  bool threadless_ = false;
};

}  // namespace ljtrain
