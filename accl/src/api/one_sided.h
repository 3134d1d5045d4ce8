// Puts and signals. The origin sends a header and the data as messages; a service thread on the
// target, started with the first window or the first wait, receives them into the window and counts
// the signal. The data has arrived when its signal counts.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "accl/communicator.h"
#include "api/worker.h"

namespace ljtrain::accl::api {

class Comm;
struct PutWork;
struct WaitSignalWork;

class OneSided {
 public:
  // Starts the service thread. More than once is harmless.
  void start(Comm& comm);
  // Before the core goes.
  void stop(Communicator& core);

  // Returns when `work.data` is the caller's again. Throws Error.
  void put(Comm& comm, const PutWork& work);
  // Until all signals have come, and takes them off. Throws Error, kTimeout after the
  // communicator's time.
  void wait(Comm& comm, const WaitSignalWork& work);

 private:
  // Travels before the data of a put.
  struct Header {
    std::uint64_t window;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::int32_t signal;
    std::int32_t context;
  };
  using SignalKey = std::tuple<int, int, int>;  // peer, signal, context

  // A header under way: a target may not look before long, so nobody waits for it.
  struct Outgoing {
    std::unique_ptr<Header> header;
    MessageHandle message;
  };

  void serve(Comm& comm);
  void send_header(Comm& comm, const PutWork& work);
  void sweep_outgoing();
  void accept(Comm& comm, int source);
  void count_signal(int source, int signal, int context);
  bool is_stopping() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SignalKey, std::uint64_t> signals_;
  std::optional<Error> failure_;
  bool is_stopping_ = false;
  Header incoming_{};
  std::vector<Outgoing> outgoing_;
  std::unique_ptr<Worker> service_;
};

}  // namespace ljtrain::accl::api
