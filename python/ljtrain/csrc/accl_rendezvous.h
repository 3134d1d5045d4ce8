// How the ranks of a c10d group find each other: through the group's store.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accl/communicator.h"

namespace ljtrain {

// The ranks are on different hosts (or in containers that share too little). Every rank of the
// group gets it.
class ElsewhereError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Rank 0 looks at where each rank is and hands out the id of the communicator. Throws
// ElsewhereError, or DistBackendError that names the ranks which did not come within the time.
accl::UniqueId meet(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace ljtrain
