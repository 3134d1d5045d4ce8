// All libraries of one run with one number of ranks: their rank processes, started together, ended
// together.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/interrupts.h"
#include "base/unique_fd.h"
#include "launcher/hardware.h"
#include "peer_group.h"

namespace ljtrain::ljperf {

class Fleet {
 public:
  // Starts the ranks of every library and returns when all are ready or known to be of no use here.
  // `folder`: for logs and what the ranks tell each other; the fleet's own. Throws Interrupted.
  Fleet(const std::vector<Library>& libraries, int ranks, const Hardware& hardware,
        std::filesystem::path folder, const base::Interrupts& interrupts);
  // Ends all of them; nothing is left, in memory, among processes or in /dev/shm.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Those that are ready.
  std::vector<PeerGroup*> groups();
  std::vector<Skipped> skipped() const;
  // Ends the ranks in order, before the destructor ends what is left.
  void quit();

 private:
  void start(const Hardware& hardware);
  void await(const base::Interrupts& interrupts);
  void accept_rank();
  void read_greetings();

  struct Greeting {
    base::UniqueFd socket;
    std::string text;
  };

  std::filesystem::path folder_;
  int ranks_;
  std::set<int> neighbours_;  // processes that were here before
  SharedMemoryFiles files_;
  base::UniqueFd listener_;
  std::string address_;
  std::vector<Greeting> greetings_;
  std::vector<std::unique_ptr<PeerGroup>> groups_;
};

}  // namespace ljtrain::ljperf
