// Every data type and operator through the communicator, on 1 to 9 ranks, in and out of place,
// against the plain reference; and that all ranks get the same bits, wherever they run and however
// large the chunks.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "accl/communicator.h"
#include "ranks.h"
#include "reduction_reference.h"

namespace ljtrain::accl {
namespace {

using testing::As;

// What rank `rank` gives: random bytes where any bytes are a number, small numbers otherwise.
std::vector<std::uint8_t> data_of(int rank, DataType type, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 97 + static_cast<int>(type)));
  std::vector<std::uint8_t> bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    std::uint8_t* at = bytes.data() + i * size_of(type);
    const float small = static_cast<float>(static_cast<int>(random() % 9) - 4) / 2;
    const double larger = small;
    const auto half =
        static_cast<std::uint16_t>((random() % 2 << 15) | 0x3c00 | (random() % 0x400));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &small, sizeof(bits));
    switch (type) {
      case DataType::kFloat32:
        std::memcpy(at, &small, 4);
        break;
      case DataType::kComplex64:
        std::memcpy(at, &small, 4);
        std::memcpy(at + 4, &small, 4);
        break;
      case DataType::kFloat64:
        std::memcpy(at, &larger, 8);
        break;
      case DataType::kComplex128:
        std::memcpy(at, &larger, 8);
        std::memcpy(at + 8, &larger, 8);
        break;
      case DataType::kFloat16:
        std::memcpy(at, &half, 2);
        break;
      case DataType::kBfloat16:
        at[0] = static_cast<std::uint8_t>(bits >> 16);
        at[1] = static_cast<std::uint8_t>(bits >> 24);
        break;
      case DataType::kFloat8E4m3:
      case DataType::kFloat8E5m2:
        at[0] = static_cast<std::uint8_t>(0x30 + random() % 16);
        break;
      case DataType::kBool:
        at[0] = static_cast<std::uint8_t>(random() % 2);
        break;
      default:
        for (std::size_t byte = 0; byte < size_of(type); ++byte) {
          at[byte] = static_cast<std::uint8_t>(random());
        }
    }
  }
  return bytes;
}

class Types : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Types, ::testing::Range(1, 10));

struct Case {
  DataType type;
  ReduceOp op;
  std::size_t share;
  std::vector<std::vector<std::uint8_t>> inputs;
  std::vector<Scale> scales;
  std::vector<std::uint8_t> expected;
};

std::vector<Case> cases_for(int ranks) {
  std::vector<Case> cases;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      for (const std::size_t share : {0UL, 1UL, 7UL, 301UL}) {
        Case made{static_cast<DataType>(type), static_cast<ReduceOp>(op), share, {}, {}, {}};
        if (!is_supported(made.type, made.op)) {
          continue;
        }
        const std::size_t count = share * static_cast<std::size_t>(ranks);
        for (int rank = 0; rank < ranks; ++rank) {
          made.inputs.push_back(data_of(rank, made.type, count));
          made.scales.push_back({.real = 0.5 + rank, .integer = 1 + rank});
        }
        made.expected = reduction_reference::reduce(
            {.type = made.type,
             .op = made.op,
             .average_over = ranks,
             .scales = made.op == ReduceOp::kPremulSum ? made.scales : std::vector<Scale>()},
            made.inputs, count);
        cases.push_back(std::move(made));
      }
    }
  }
  return cases;
}

void check(Communicator& communicator, const Case& wanted, bool in_place) {
  const auto me = static_cast<std::size_t>(communicator.rank());
  const std::size_t bytes = wanted.expected.size();
  const std::size_t share_bytes = wanted.share * size_of(wanted.type);
  // One byte off, so that nothing is aligned.
  std::vector<std::uint8_t> send(bytes + 1);
  std::vector<std::uint8_t> recv(bytes + 1);
  std::copy(wanted.inputs[me].begin(), wanted.inputs[me].end(), send.begin() + 1);
  Collective call;
  call.type = wanted.type;
  call.op = wanted.op;
  call.scale = wanted.scales[me];
  call.kind = OperationKind::kAllReduce;
  call.count = wanted.share * wanted.inputs.size();
  call.send = send.data() + 1;
  call.recv = (in_place ? send : recv).data() + 1;
  communicator.run(call);
  if (bytes > 0 && std::memcmp(call.recv, wanted.expected.data(), bytes) != 0) {
    throw std::runtime_error(describe(call) + (in_place ? " in place" : ""));
  }
  std::copy(wanted.inputs[me].begin(), wanted.inputs[me].end(), send.begin() + 1);
  call.kind = OperationKind::kReduceScatter;
  call.count = wanted.share;
  call.recv = in_place ? send.data() + 1 + me * share_bytes : recv.data() + 1;
  communicator.run(call);
  if (share_bytes > 0 &&
      std::memcmp(call.recv, wanted.expected.data() + me * share_bytes, share_bytes) != 0) {
    throw std::runtime_error(describe(call) + (in_place ? " in place" : ""));
  }
}

// Threads read each other's buffers, processes go through the stages, here in small chunks. Both
// must agree with the reference bit for bit, so they agree with each other.
TEST_P(Types, MatchTheReferenceBitForBit) {
  const int ranks = GetParam();
  const std::vector<Case> cases = cases_for(ranks);
  ::setenv("ACCL_DETERMINISTIC", "1", 1);
  ::setenv("ACCL_ONE_STEP_BYTES", "256", 1);
  ::setenv("ACCL_CHUNK_BYTES", "4096", 1);
  for (const As how : {As::kThreads, As::kProcesses}) {
    testing::expect_no_failure(testing::run_ranks(how, ranks, [&](Communicator& communicator) {
      for (const Case& wanted : cases) {
        check(communicator, wanted, false);
        check(communicator, wanted, true);
      }
    }));
  }
  ::unsetenv("ACCL_DETERMINISTIC");
  ::unsetenv("ACCL_ONE_STEP_BYTES");
  ::unsetenv("ACCL_CHUNK_BYTES");
}

}  // namespace
}  // namespace ljtrain::accl
