#include "comm/explain.h"

#include <fmt/format.h>

#include <memory>
#include <thread>
#include <vector>

#include "accl/communicator.h"
#include "base/errors.h"
#include "comm/sizes.h"

namespace ljtrain::ljperf {
namespace {

accl::OperationKind kind_of(ljperf_comm::Op op) {
  using ljperf_comm::Op;
  switch (op) {
    case Op::kAllReduce:
      return accl::OperationKind::kAllReduce;
    case Op::kAllGather:
      return accl::OperationKind::kAllGather;
    case Op::kReduceScatter:
      return accl::OperationKind::kReduceScatter;
    case Op::kBroadcast:
      return accl::OperationKind::kBroadcast;
    case Op::kAllToAll:
      return accl::OperationKind::kAllToAll;
    case Op::kReduce:
      return accl::OperationKind::kReduce;
    case Op::kGather:
      return accl::OperationKind::kGather;
    case Op::kScatter:
      return accl::OperationKind::kScatter;
  }
  throw base::run_error("no such operation");
}

accl::DataType type_of(ljperf_comm::Type type) {
  std::string name = ljperf_comm::kTypeNames[static_cast<int>(type)];
  for (int number = 0; number < accl::kDataTypes; ++number) {
    if (accl::name_of(static_cast<accl::DataType>(number)) == name) {
      return static_cast<accl::DataType>(number);
    }
  }
  throw base::run_error("ACCL has no type {}", name);
}

// A communicator whose ranks are threads of this process: its choices are those of processes.
std::vector<std::shared_ptr<accl::Communicator>> make_communicator(int ranks) {
  std::vector<std::shared_ptr<accl::Communicator>> communicators(static_cast<std::size_t>(ranks));
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  accl::UniqueId id = accl::new_unique_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        communicators[static_cast<std::size_t>(rank)] = accl::Communicator::create(id, rank, ranks);
      } catch (const accl::Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& error : errors) {
    if (!error.empty()) {
      throw base::run_error("no communicator of {} ranks: {}", ranks, error);
    }
  }
  return communicators;
}

}  // namespace

std::string explain_comm(const CommPlan& plan) {
  std::string text;
  for (int ranks : plan.ranks) {
    auto communicators = make_communicator(ranks);
    for (ljperf_comm::Op op : plan.ops) {
      for (ljperf_comm::Type dtype : plan.dtypes) {
        for (std::uint64_t size : plan.sizes) {
          std::size_t count = ljperf_comm::count_of(op, dtype, size, ranks);
          std::size_t bytes = ljperf_comm::bytes_of(op, dtype, count, ranks);
          text += fmt::format("{} of {} {}, {} ranks:\n",
                              ljperf_comm::kOpNames[static_cast<int>(op)], exact_bytes(bytes),
                              ljperf_comm::kTypeNames[static_cast<int>(dtype)], ranks);
          // ACCL counts the bytes of one rank's share.
          text += communicators.front()->explain(kind_of(op), type_of(dtype),
                                                 count * ljperf_comm::size_of(dtype));
          text += text.ends_with('\n') ? "" : "\n";
        }
      }
    }
  }
  return text;
}

}  // namespace ljtrain::ljperf
