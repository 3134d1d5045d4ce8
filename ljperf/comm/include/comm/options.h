// What a user may ask of `ljperf comm`, as typed and as understood.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "operations.h"

namespace ljtrain::ljperf {

struct CommOptions {
  std::vector<std::string> ops = {"all_reduce"};
  std::vector<std::string> sizes = {"8:64MiB:x4"};
  std::vector<std::string> dtypes = {"float32"};
  std::vector<int> ranks;               // empty: one a core, at least two
  std::vector<std::string> peers;       // libraries to stand beside ACCL
  std::vector<std::string> interfaces;  // c, c10d; empty: c, and c10d where a peer has only that
  bool check = false;                   // verify every element
  bool in_place = false;                // rows for operations in place, too
  bool registered = false;              // rows for ACCL on registered memory, too
  int blocks = 20;                      // of each library and size
  double min_time = 10;                 // of a block, milliseconds
  int seed = 1;                         // of the order of blocks
  double timeout = 60;  // until a library that does not answer counts as hung, seconds
  std::filesystem::path python;
  std::filesystem::path oneccl_root;
  std::filesystem::path output;  // the JSON document goes here, too
  bool explain = false;
  bool json = false;
  bool verbose = false;
  std::vector<std::string> command_line;
};

inline constexpr int kVerdictBlocks = 20;

enum class Interface { kC, kC10d };
inline const char* name_of(Interface interface) {
  return interface == Interface::kC ? "c" : "c10d";
}

// The same, understood.
struct CommPlan {
  CommOptions options;
  std::vector<ljperf_comm::Op> ops;
  std::vector<ljperf_comm::Type> dtypes;
  std::vector<std::uint64_t> sizes;
  std::vector<int> ranks;
  bool c = true;
  bool c10d = false;
};

// Throws UserError. `cores`: for the default of --ranks.
CommPlan understand(const CommOptions& options, int cores);

}  // namespace ljtrain::ljperf
