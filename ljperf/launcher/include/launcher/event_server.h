// Ranks that another program starts, on this host or others, report here by TCP: each says who it
// is, gets what it shall run with, and then sends the events that a rank of ours writes to its
// pipe. Whoever reaches the port and knows the run's name can speak; PyTorch's own rendezvous asks
// for no more, so a network that is trusted with that is trusted with this.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/unique_fd.h"

struct pollfd;

namespace ljtrain::ljperf {

class EventReader;

// What a rank says when it reports: `{"event": "hello", "run", "rank", "host", "cpus", "log"}`.
struct RankIdentity {
  std::string host;
  std::vector<int> cpus;  // it is bound to
};

class EventServer {
 public:
  // Listens on `address` ("" for all) and `port` (0: a free one). `reply` is what each rank gets:
  // {"environment": {NAME: value or null}, "worker": {...}}. Throws RunError.
  EventServer(const std::string& address, int port, std::string run, int ranks,
              const base::OrderedJson& reply);
  ~EventServer();
  EventServer(const EventServer&) = delete;
  EventServer& operator=(const EventServer&) = delete;

  int port() const { return port_; }
  void add_to(std::vector<pollfd>& polled) const;
  // Takes new connections and reads what has come, without waiting.
  void serve(const std::function<void(int rank, const base::Json& event)>& on_event);

  // nullopt: has not reported yet.
  const std::optional<RankIdentity>& identity(int rank) const;
  bool closed(int rank) const;  // it reported, and its connection has ended

 private:
  struct Newcomer;
  struct Seat;

  void accept_all();
  void seat(Newcomer& newcomer, const base::Json& hello);

  std::string run_;
  std::string reply_;
  base::UniqueFd listener_;
  int port_ = 0;
  std::vector<Newcomer> newcomers_;
  std::vector<Seat> seats_;
};

// The other side: connects to HOST:PORT, says `hello`, returns the connection and the reply. Throws
// RunError when nobody answers within `patience`.
std::pair<base::UniqueFd, base::Json> report_to(const std::string& host, int port,
                                                const base::Json& hello,
                                                std::chrono::milliseconds patience);

}  // namespace ljtrain::ljperf
