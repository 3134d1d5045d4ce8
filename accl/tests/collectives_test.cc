// Every collective against a plain reference, with ranks as threads and as processes.
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "accl/communicator.h"
#include "ranks.h"

namespace ljtrain::accl {
namespace {

using testing::As;

// Element `i` of what rank `from` gives (to rank `to`, where it matters). Small integers: sums are
// exact in float32.
float value(int from, std::size_t i, int to = 0) {
  return static_cast<float>(
      (static_cast<std::size_t>(from) * 7 + static_cast<std::size_t>(to) * 3 + i) % 61);
}

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

// Buffers with a guard behind them, at an odd multiple of the element's size when `shift` says so.
struct Buffer {
  explicit Buffer(std::size_t count, std::size_t shift = 0)
      : storage(count + shift + kGuard, -1.0F), data(storage.data() + shift), size(count) {}
  void check_guard(const std::string& what) const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      require(data[size + i] == -1.0F, what + ": written past the end");
    }
  }
  static constexpr std::size_t kGuard = 19;
  std::vector<float> storage;
  float* data;
  std::size_t size;
};

void check_all(Communicator& communicator, std::size_t count, bool in_place, std::size_t shift) {
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  const auto n = static_cast<std::size_t>(ranks);
  const auto me = static_cast<std::size_t>(rank);
  const int root = ranks - 1;
  const std::string where =
      fmt::format("count {}, {} ranks{}", count, ranks, in_place ? ", in place" : "");
  const auto sum_at = [&](std::size_t i, int to = 0) {
    float sum = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      sum += value(peer, i, to);
    }
    return sum;
  };
  const auto fill = [&](float* data, std::size_t elements, int to = 0) {
    for (std::size_t i = 0; i < elements; ++i) {
      data[i] = value(rank, i, to);
    }
  };
  Collective call;
  call.type = DataType::kFloat32;
  call.count = count;
  call.root = root;

  {  // all_reduce, reduce, broadcast: one share in, one out
    for (const auto kind :
         {OperationKind::kAllReduce, OperationKind::kReduce, OperationKind::kBroadcast}) {
      Buffer send(count, shift);
      Buffer recv(count, shift);
      fill(send.data, count);
      call.kind = kind;
      call.send = send.data;
      call.recv = in_place ? send.data : recv.data;
      communicator.run(call);
      const bool has_result = kind != OperationKind::kReduce || rank == root;
      for (std::size_t i = 0; i < count && has_result; ++i) {
        const float expected = kind == OperationKind::kBroadcast ? value(root, i) : sum_at(i);
        require(static_cast<float*>(call.recv)[i] == expected,
                fmt::format("{} {}: element {} is {}, not {}", name_of(kind), where, i,
                            static_cast<float*>(call.recv)[i], expected));
      }
      (in_place ? send : recv).check_guard(std::string(name_of(kind)));
    }
  }
  {  // all_gather, gather
    for (const auto kind : {OperationKind::kAllGather, OperationKind::kGather}) {
      Buffer send(count, shift);
      Buffer recv(count * n, shift);
      float* own = in_place ? recv.data + me * count : send.data;
      fill(own, count);
      call.kind = kind;
      call.send = own;
      call.recv = recv.data;
      communicator.run(call);
      for (std::size_t i = 0; i < count * n && (kind == OperationKind::kAllGather || rank == root);
           ++i) {
        require(recv.data[i] == value(static_cast<int>(i / count), i % count),
                fmt::format("{} {}: element {}", name_of(kind), where, i));
      }
      recv.check_guard(std::string(name_of(kind)));
    }
  }
  {  // reduce_scatter, scatter
    for (const auto kind : {OperationKind::kReduceScatter, OperationKind::kScatter}) {
      Buffer send(count * n, shift);
      Buffer recv(count, shift);
      for (int to = 0; to < ranks; ++to) {
        fill(send.data + static_cast<std::size_t>(to) * count, count, to);
      }
      const bool own = in_place && (kind == OperationKind::kReduceScatter || rank == root);
      call.kind = kind;
      call.send = send.data;
      call.recv = own ? send.data + me * count : recv.data;
      communicator.run(call);
      for (std::size_t i = 0; i < count; ++i) {
        const float expected =
            kind == OperationKind::kScatter ? value(root, i, rank) : sum_at(i, rank);
        require(static_cast<float*>(call.recv)[i] == expected,
                fmt::format("{} {}: element {}", name_of(kind), where, i));
      }
    }
  }
  {  // all_to_all
    Buffer send(count * n, shift);
    Buffer recv(count * n, shift);
    for (int to = 0; to < ranks; ++to) {
      fill(send.data + static_cast<std::size_t>(to) * count, count, to);
    }
    call.kind = OperationKind::kAllToAll;
    call.send = send.data;
    call.recv = in_place ? send.data : recv.data;
    communicator.run(call);
    for (std::size_t i = 0; i < count * n; ++i) {
      require(
          static_cast<float*>(call.recv)[i] == value(static_cast<int>(i / count), i % count, rank),
          fmt::format("all_to_all {}: element {}", where, i));
    }
  }
  communicator.run({});
}

struct Case {
  As how;
  int ranks;
};
class CollectivesOn : public ::testing::TestWithParam<Case> {};

TEST_P(CollectivesOn, AgreeWithTheReference) {
  testing::expect_no_failure(
      testing::run_ranks(GetParam().how, GetParam().ranks, [](Communicator& communicator) {
        for (const std::size_t count :
             {0UL, 1UL, 3UL, 12UL, 13UL, 1000UL, 4096UL, 40'001UL, 300'000UL}) {
          for (const bool in_place : {false, true}) {
            check_all(communicator, count, in_place, count % 2);
          }
        }
      }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOn,
                         ::testing::Values(Case{As::kThreads, 1}, Case{As::kThreads, 2},
                                           Case{As::kThreads, 3}, Case{As::kThreads, 5},
                                           Case{As::kProcesses, 2}, Case{As::kProcesses, 3},
                                           Case{As::kProcesses, 4}, Case{As::kProcesses, 9}),
                         [](const auto& entry) {
                           return fmt::format(
                               "{}{}", entry.param.how == As::kThreads ? "Threads" : "Processes",
                               entry.param.ranks);
                         });

// NCCL_ALGO chooses; what an algorithm cannot do, another does.
TEST(Collectives, EveryAlgorithmByName) {
  for (const char* name : {"Ring", "Tree", "Recursive", "Direct", "^Direct,Ring"}) {
    ::setenv("NCCL_ALGO", name, 1);
    for (const int ranks : {2, 3, 5}) {
      testing::expect_no_failure(
          testing::run_ranks(As::kProcesses, ranks, [](Communicator& communicator) {
            for (const std::size_t count : {0UL, 1UL, 13UL, 1000UL, 40'001UL}) {
              check_all(communicator, count, count % 2 == 1, count % 2);
            }
          }));
    }
    ::unsetenv("NCCL_ALGO");
  }
}

// Shares that differ, zero among them, and lie apart.
TEST(Collectives, UnevenParts) {
  for (const int ranks : {2, 3, 4}) {
    testing::expect_no_failure(
        testing::run_ranks(As::kProcesses, ranks, [](Communicator& communicator) {
          const int rank = communicator.rank();
          const auto n = static_cast<std::size_t>(communicator.size());
          for (const std::size_t unit : {1UL, 100UL, 70'000UL}) {
            const auto count_of = [&](int from, int to) {
              return static_cast<std::size_t>((from * 2 + to) % 3) * unit;
            };
            Collective call;
            call.type = DataType::kFloat32;
            std::vector<std::vector<float>> in(n);
            std::vector<std::vector<float>> out(n);
            std::vector<Part> send(n);
            std::vector<Part> recv(n);
            // all_to_all
            for (std::size_t peer = 0; peer < n; ++peer) {
              in[peer].resize(count_of(rank, static_cast<int>(peer)));
              for (std::size_t i = 0; i < in[peer].size(); ++i) {
                in[peer][i] = value(rank, i, static_cast<int>(peer));
              }
              out[peer].assign(count_of(static_cast<int>(peer), rank), -1);
              send[peer] = {in[peer].data(), in[peer].size()};
              recv[peer] = {out[peer].data(), out[peer].size()};
            }
            call.kind = OperationKind::kAllToAll;
            call.send_parts = send;
            call.recv_parts = recv;
            communicator.run(call);
            for (std::size_t peer = 0; peer < n; ++peer) {
              for (std::size_t i = 0; i < out[peer].size(); ++i) {
                require(out[peer][i] == value(static_cast<int>(peer), i, rank), "all_to_all");
              }
            }
            // all_gather
            std::vector<float> own(count_of(rank, 1));
            for (std::size_t i = 0; i < own.size(); ++i) {
              own[i] = value(rank, i);
            }
            for (std::size_t peer = 0; peer < n; ++peer) {
              out[peer].assign(count_of(static_cast<int>(peer), 1), -1);
              recv[peer] = {out[peer].data(), out[peer].size()};
            }
            call = {};
            call.kind = OperationKind::kAllGather;
            call.type = DataType::kFloat32;
            call.send = own.data();
            call.count = own.size();
            call.recv_parts = recv;
            communicator.run(call);
            for (std::size_t peer = 0; peer < n; ++peer) {
              for (std::size_t i = 0; i < out[peer].size(); ++i) {
                require(out[peer][i] == value(static_cast<int>(peer), i), "all_gather");
              }
            }
            // reduce_scatter
            for (std::size_t peer = 0; peer < n; ++peer) {
              in[peer].resize(count_of(1, static_cast<int>(peer)));
              for (std::size_t i = 0; i < in[peer].size(); ++i) {
                in[peer][i] = value(rank, i, static_cast<int>(peer));
              }
              send[peer] = {in[peer].data(), in[peer].size()};
            }
            own.assign(count_of(1, rank), -1);
            call = {};
            call.kind = OperationKind::kReduceScatter;
            call.type = DataType::kFloat32;
            call.recv = own.data();
            call.count = own.size();
            call.send_parts = send;
            communicator.run(call);
            for (std::size_t i = 0; i < own.size(); ++i) {
              float sum = 0;
              for (int peer = 0; peer < communicator.size(); ++peer) {
                sum += value(peer, i, rank);
              }
              require(own[i] == sum, "reduce_scatter");
            }
          }
        }));
  }
}

// One rank may give shares where its peers give one count: what counts is what each pair exchanges.
// Around the sizes where the data move from the announcement to an area, and on to the stages.
TEST(Collectives, AllToAllInEveryForm) {
  for (const int ranks : {2, 3}) {
    testing::expect_no_failure(
        testing::run_ranks(As::kProcesses, ranks, [](Communicator& communicator) {
          const int rank = communicator.rank();
          const auto n = static_cast<std::size_t>(communicator.size());
          for (const std::size_t count : {0UL, 1UL, 13UL, 14UL, 29UL, 30UL, 5000UL, 100'000UL}) {
            for (int with_parts = 0; with_parts < (1 << communicator.size()); ++with_parts) {
              std::vector<float> in(n * count);
              std::vector<float> out(n * count, -1);
              std::vector<Part> send;
              std::vector<Part> recv;
              for (std::size_t i = 0; i < in.size(); ++i) {
                in[i] = value(rank, i);
              }
              for (std::size_t peer = 0; peer < n; ++peer) {
                send.push_back({in.data() + peer * count, count});
                recv.push_back({out.data() + peer * count, count});
              }
              Collective call;
              call.kind = OperationKind::kAllToAll;
              call.type = DataType::kFloat32;
              if ((with_parts >> rank & 1) != 0) {
                call.send_parts = send;
                call.recv_parts = recv;
              } else {
                call.send = in.data();
                call.recv = out.data();
                call.count = count;
              }
              communicator.run(call);
              for (std::size_t i = 0; i < out.size(); ++i) {
                const std::size_t at = static_cast<std::size_t>(rank) * count + i % count;
                require(out[i] == value(static_cast<int>(i / count), at), "all_to_all");
              }
            }
          }
        }));
  }
}

// Buffers from Communicator::allocate() are read by peers directly; freed and allocated anew in
// between.
TEST(Collectives, SharedBuffers) {
  for (const int ranks : {2, 3}) {
    testing::expect_no_failure(
        testing::run_ranks(As::kProcesses, ranks, [](Communicator& communicator) {
          const auto n = static_cast<std::size_t>(communicator.size());
          for (const std::size_t count : {10'000UL, 250'000UL}) {
            for (int round = 0; round < 3; ++round) {
              auto* send = static_cast<float*>(Communicator::allocate(count * n * sizeof(float)));
              auto* recv = static_cast<float*>(Communicator::allocate(count * n * sizeof(float)));
              for (std::size_t i = 0; i < count * n; ++i) {
                send[i] = value(communicator.rank(), i);
              }
              Collective call;
              call.type = DataType::kFloat32;
              call.send = send;
              call.recv = recv;
              call.count = count;
              call.kind = OperationKind::kAllGather;
              communicator.run(call);
              for (std::size_t i = 0; i < count * n; ++i) {
                require(recv[i] == value(static_cast<int>(i / count), i % count), "all_gather");
              }
              call.kind = OperationKind::kAllToAll;
              communicator.run(call);
              for (std::size_t i = 0; i < count * n; ++i) {
                const std::size_t at =
                    static_cast<std::size_t>(communicator.rank()) * count + i % count;
                require(recv[i] == value(static_cast<int>(i / count), at), "all_to_all");
              }
              call.kind = OperationKind::kReduceScatter;
              communicator.run(call);
              const auto sum_at = [&](std::size_t i) {
                float sum = 0;
                for (int peer = 0; peer < communicator.size(); ++peer) {
                  sum += value(peer, i);
                }
                return sum;
              };
              for (std::size_t i = 0; i < count; ++i) {
                require(
                    recv[i] == sum_at(static_cast<std::size_t>(communicator.rank()) * count + i),
                    "reduce_scatter");
              }
              call.kind = OperationKind::kAllReduce;
              call.count = count * n;
              call.recv = round == 1 ? send : recv;
              communicator.run(call);
              for (std::size_t i = 0; i < count * n; ++i) {
                require(static_cast<float*>(call.recv)[i] == sum_at(i), "all_reduce");
              }
              require(Communicator::deallocate(send) && Communicator::deallocate(recv),
                      "deallocate");
            }
          }
        }));
  }
}

}  // namespace
}  // namespace ljtrain::accl
