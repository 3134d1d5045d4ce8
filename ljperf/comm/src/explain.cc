#include "comm/explain.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <sstream>
#include <utility>
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

constexpr std::chrono::seconds kPatience{60};

void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    CPU_SET(static_cast<std::size_t>(cpu), &set);
  }
  ::sched_setaffinity(0, sizeof set, &set);
}

// A communicator of processes that are bound as those of a measured run: this one is rank 0, the
// others are forked, and only wait. What ACCL measures to choose by is measured on the cores that
// count.
class Ranks {
 public:
  Ranks(int ranks, const Hardware& hardware) {
    ::sched_getaffinity(0, sizeof before_, &before_);
    std::vector<std::vector<int>> cpus = place_ranks(hardware.cores, ranks, /*oversubscribe=*/true);
    accl::UniqueId id = accl::new_unique_id();
    for (int rank = 1; rank < ranks; ++rank) {
      children_.push_back(::fork());
      if (children_.back() == 0) {
        serve(id, rank, ranks, cpus[static_cast<std::size_t>(rank)]);
      }
    }
    try {
      bind_to(cpus[0]);
      communicator_ =
          accl::Communicator::create(id, 0, ranks, {.timeout = kPatience, .name = "explain"});
    } catch (const accl::Error& error) {
      end();
      throw base::run_error("no communicator of {} ranks: {}", ranks, error.what());
    }
  }
  ~Ranks() { end(); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const accl::Communicator& communicator() const { return *communicator_; }

 private:
  [[noreturn]] static void serve(const accl::UniqueId& id, int rank, int ranks,
                                 const std::vector<int>& cpus) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    bind_to(cpus);
    try {
      auto communicator =
          accl::Communicator::create(id, rank, ranks, {.timeout = kPatience, .name = "explain"});
      while (communicator != nullptr) {
        ::pause();  // until rank 0 has said all and ends this
      }
    } catch (const std::exception&) {
      ::_exit(1);  // rank 0 names it
    }
    ::_exit(0);
  }

  void end() {
    communicator_.reset();
    for (pid_t child : children_) {
      if (child > 0) {
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
      }
    }
    children_.clear();
    ::sched_setaffinity(0, sizeof before_, &before_);
  }

  cpu_set_t before_{};
  std::vector<pid_t> children_;
  std::shared_ptr<accl::Communicator> communicator_;
};

// "a; b; c" in lines of at most 100 columns behind the size.
std::string wrap(const std::string& choice) {
  constexpr std::size_t kIndent = 12;
  constexpr std::size_t kWidth = 100 - kIndent;
  std::string text;
  std::size_t column = 0;
  for (std::size_t start = 0; start < choice.size();) {
    std::size_t end = std::min(choice.find("; ", start), choice.size());
    std::string part = choice.substr(start, end - start);
    if (column > 0 && column + 2 + part.size() > kWidth) {
      text += ";\n" + std::string(kIndent, ' ');
      column = 0;
    }
    text += (column > 0 ? "; " : "") + part;
    column += part.size() + 2;
    start = end + 2;
  }
  return text;
}

// The lines on the topology, which are the same for every size, and what follows "all_reduce of 8
// bytes: " in the last one.
std::pair<std::string, std::string> split(std::string text) {
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  std::size_t last = text.rfind('\n') + 1;  // npos + 1 is 0
  std::size_t colon = text.find(": ", last);
  return {text.substr(0, last), text.substr(colon == std::string::npos ? last : colon + 2)};
}

// "ring 3.2 us; tree 4.0 us" as a list.
base::OrderedJson algorithms_json(const std::string& choice) {
  base::OrderedJson list = base::OrderedJson::array();
  std::istringstream words(choice);
  std::string name;
  double microseconds = 0;
  std::string unit;
  while (words >> name >> microseconds >> unit) {
    list.push_back({{"name", name}, {"predicted_us", microseconds}});
  }
  return list;
}

}  // namespace

Explanation explain_comm(const CommPlan& plan, const Hardware& hardware) {
  std::string text;
  base::OrderedJson topologies = base::OrderedJson::array();
  base::OrderedJson rows = base::OrderedJson::array();
  std::string known;  // what was said already of the topology
  for (int ranks : plan.ranks) {
    Ranks group(ranks, hardware);
    for (ljperf_comm::Op op : plan.ops) {
      for (ljperf_comm::Type dtype : plan.dtypes) {
        std::string table;
        for (std::uint64_t size : plan.sizes) {
          // ACCL counts the bytes of one rank's share.
          std::size_t count = ljperf_comm::count_of(op, dtype, size, ranks);
          auto [topology, choice] = split(group.communicator().explain(
              kind_of(op), type_of(dtype), count * ljperf_comm::size_of(dtype)));
          if (topology != known) {
            topologies.push_back({{"ranks", ranks}, {"lines", topology}});
            text += (text.empty() ? "" : "\n") + topology;
          }
          known = topology;
          const std::uint64_t bytes = ljperf_comm::bytes_of(op, dtype, count, ranks);
          table += fmt::format("{:>10}  {}\n", exact_bytes(bytes), wrap(choice));
          rows.push_back({{"op", ljperf_comm::kOpNames[static_cast<int>(op)]},
                          {"dtype", ljperf_comm::kTypeNames[static_cast<int>(dtype)]},
                          {"ranks", ranks},
                          {"bytes", bytes},
                          {"algorithms", algorithms_json(choice)}});
        }
        text +=
            fmt::format("\n{}, {}, {} ranks: the algorithms that can serve it, cheapest first\n{}",
                        ljperf_comm::kOpNames[static_cast<int>(op)],
                        ljperf_comm::kTypeNames[static_cast<int>(dtype)], ranks, table);
      }
    }
  }
  constexpr int kSchemaVersion = 1;
  return {text, {{"schema_version", kSchemaVersion}, {"topologies", topologies}, {"rows", rows}}};
}

}  // namespace ljtrain::ljperf
