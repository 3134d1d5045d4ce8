// Ranks that use the C interface, as threads or as processes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "accl/accl.h"
#include "ranks.h"

namespace ljtrain::accl::testing {

// For bodies of ranks: throws, so that the failure gets out of a child process too.
inline void must(ncclResult_t result, ncclComm_t comm = nullptr) {
  if (result != ncclSuccess) {
    throw std::runtime_error(std::string(ncclGetErrorString(result)) + ": " +
                             ncclGetLastError(comm));
  }
}

inline void must_be(bool condition, const std::string& what) {
  if (!condition) {
    throw std::runtime_error(what);
  }
}

// A call that must fail in a certain way, with a sentence that holds `words`.
inline void expect_refused(ncclResult_t expected, const std::string& words, ncclResult_t result) {
  EXPECT_EQ(result, expected) << words;
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find(words), std::string::npos)
      << "\"" << ncclGetLastError(nullptr) << "\" does not say \"" << words << "\"";
}

inline ncclUniqueId new_nccl_id() {
  ncclUniqueId id;
  must(ncclGetUniqueId(&id));
  return id;
}

using ApiBody = std::function<void(ncclComm_t comm, int rank)>;

// Creates a communicator, runs the body on every rank, and destroys it. What the ranks threw, by
// rank.
inline std::vector<std::string> run_api_ranks(As how, int ranks, const ApiBody& body) {
  const ncclUniqueId id = new_nccl_id();
  const auto run = [&](int rank) {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, ranks, id, rank));
    try {
      body(comm, rank);
    } catch (...) {
      ncclCommAbort(comm);
      throw;
    }
    must(ncclCommDestroy(comm));
  };
  return how == As::kThreads ? run_in_threads(ranks, run) : run_in_processes(ranks, run);
}

// All ranks in the calling thread, as a program with several GPUs has them.
class AllRanks {
 public:
  explicit AllRanks(int ranks) : comms_(static_cast<std::size_t>(ranks)) {
    must(ncclCommInitAll(comms_.data(), ranks, nullptr));
  }
  ~AllRanks() {
    for (ncclComm_t comm : comms_) {
      ncclCommDestroy(comm);
    }
  }
  AllRanks(const AllRanks&) = delete;
  AllRanks& operator=(const AllRanks&) = delete;
  ncclComm_t operator[](int rank) const { return comms_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(comms_.size()); }

 private:
  std::vector<ncclComm_t> comms_;
};

// What a process has open and mapped, to tell whether anything was left behind.
struct Footprint {
  int descriptors = 0;
  int threads = 0;
  int mappings = 0;
};
Footprint footprint();

}  // namespace ljtrain::accl::testing
