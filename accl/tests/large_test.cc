// Buffers beyond 2^31 bytes and elements: needs 10 GiB, so it runs with the slow tests
// (ACCL_TEST_LARGE).
#include <cstdlib>
#include <cstring>

#include "accl/communicator.h"
#include "ranks.h"

namespace ljtrain::accl {
namespace {

constexpr std::size_t kCount = (1UL << 31) + 12'345;

std::uint8_t value(int rank, std::size_t i) {
  return static_cast<std::uint8_t>(static_cast<std::size_t>(rank) * 5 + i % 251);
}

void fill(std::vector<std::uint8_t>& data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = value(rank, i);
  }
}

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

TEST(Large, CountsBeyondTwoToThe31) {
  if (std::getenv("ACCL_TEST_LARGE") == nullptr) {
    GTEST_SKIP() << "ACCL_TEST_LARGE is not set";
  }
  testing::expect_no_failure(
      testing::run_ranks(testing::As::kProcesses, 2, [](Communicator& communicator) {
        const int rank = communicator.rank();
        std::vector<std::uint8_t> data(kCount);
        Collective call;
        call.type = DataType::kUint8;
        call.send = call.recv = data.data();
        call.count = kCount;

        fill(data, rank);
        call.kind = OperationKind::kAllReduce;
        communicator.run(call);
        for (std::size_t i = 0; i < kCount; ++i) {
          require(data[i] == static_cast<std::uint8_t>(value(0, i) + value(1, i)), "all_reduce");
        }
        fill(data, rank);
        call.kind = OperationKind::kBroadcast;
        call.root = 1;
        communicator.run(call);
        for (std::size_t i = 0; i < kCount; ++i) {
          require(data[i] == value(1, i), "broadcast");
        }
        // Each share beyond 2^30, the whole beyond 2^31.
        const std::size_t share = kCount / 2;
        std::memset(data.data(), 0, data.size());
        for (std::size_t i = 0; i < share; ++i) {
          data[static_cast<std::size_t>(rank) * share + i] = value(rank, i);
        }
        call.kind = OperationKind::kAllGather;
        call.send = data.data() + static_cast<std::size_t>(rank) * share;
        call.count = share;
        communicator.run(call);
        for (std::size_t i = 0; i < 2 * share; ++i) {
          require(data[i] == value(static_cast<int>(i / share), i % share), "all_gather");
        }
        fill(data, rank);
        Message message;
        message.direction = rank == 0 ? Message::Direction::kSend : Message::Direction::kReceive;
        message.data = data.data();
        message.bytes = kCount;
        message.peer = 1 - rank;
        const MessageHandle handle = communicator.post(message);
        communicator.wait({&handle, 1});
        for (std::size_t i = 0; i < kCount; ++i) {
          require(data[i] == value(0, i), "message");
        }
      }));
}

}  // namespace
}  // namespace ljtrain::accl
