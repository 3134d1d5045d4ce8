// The algorithms over streams against a plain reference: one element at a time, in double or 64-bit
// integers, sharing no code with the library's arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "algorithm/stream.h"
#include "segment_ranks.h"
#include "transport/shared_memory/channel.h"

namespace ljtrain::accl::test {

using Algorithm = void (*)(const algorithm::StreamContext&, const Collective&);
using Number = std::complex<double>;

struct Case {
  OperationKind kind = OperationKind::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 0;
  bool in_place = false;
  int root = 0;
  std::size_t shift = 0;  // bytes by which the buffers are off their alignment
  bool has_parts = false;
};

inline std::string describe(const Case& c, int ranks) {
  return fmt::format("{} of {} {} {}, root {}, {} ranks{}{}", name_of(c.kind), c.count,
                     name_of(c.type), name_of(c.op), c.root, ranks, c.in_place ? ", in place" : "",
                     c.has_parts ? ", uneven" : "");
}

inline bool is_integer(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kBool:
      return true;
    default:
      return false;
  }
}
inline bool is_unsigned(DataType type) {
  return type == DataType::kUint8 || type == DataType::kUint16 || type == DataType::kUint32 ||
         type == DataType::kUint64;
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

inline std::int64_t load_integer(DataType type, const std::byte* at) {
  switch (size_of(type)) {
    case 1:
      return is_unsigned(type) || type == DataType::kBool ? load<std::uint8_t>(at)
                                                          : load<std::int8_t>(at);
    case 2:
      return is_unsigned(type) ? load<std::uint16_t>(at) : load<std::int16_t>(at);
    case 4:
      return is_unsigned(type) ? std::int64_t{load<std::uint32_t>(at)} : load<std::int32_t>(at);
    default:
      return load<std::int64_t>(at);
  }
}

// A small float of `exponent` and `mantissa` bits.
inline double decode_small(unsigned bits, int exponent, int mantissa) {
  const unsigned fraction = bits & ((1U << mantissa) - 1);
  const int power = static_cast<int>(bits >> mantissa) & ((1 << exponent) - 1);
  const int bias = (1 << (exponent - 1)) - 1;
  const double sign = (bits >> (exponent + mantissa)) != 0 ? -1 : 1;
  const double part = static_cast<double>(fraction) / (1 << mantissa);
  return power == 0 ? sign * std::ldexp(part, 1 - bias) : sign * std::ldexp(1 + part, power - bias);
}

inline Number load_number(DataType type, const std::byte* at) {
  switch (type) {
    case DataType::kFloat32:
      return load<float>(at);
    case DataType::kFloat64:
      return load<double>(at);
    case DataType::kComplex64:
      return {load<float>(at), load<float>(at + 4)};
    case DataType::kComplex128:
      return {load<double>(at), load<double>(at + 8)};
    case DataType::kFloat16:
      return decode_small(load<std::uint16_t>(at), 5, 10);
    case DataType::kBfloat16:
      return decode_small(load<std::uint16_t>(at), 8, 7);
    case DataType::kFloat8E4m3:
      return decode_small(load<std::uint8_t>(at), 4, 3);
    default:
      return decode_small(load<std::uint8_t>(at), 5, 2);
  }
}

// Only for numbers that the type can hold exactly.
inline void store_number(DataType type, std::byte* at, Number value) {
  switch (type) {
    case DataType::kFloat32:
      return store(at, static_cast<float>(value.real()));
    case DataType::kFloat64:
      return store(at, value.real());
    case DataType::kComplex64:
      store(at, static_cast<float>(value.real()));
      return store(at + 4, static_cast<float>(value.imag()));
    case DataType::kComplex128:
      store(at, value.real());
      return store(at + 8, value.imag());
    case DataType::kBfloat16: {
      std::uint32_t bits = 0;
      const auto single = static_cast<float>(value.real());
      std::memcpy(&bits, &single, 4);
      return store(at, static_cast<std::uint16_t>(bits >> 16));
    }
    case DataType::kFloat16: {
      // Normal numbers only.
      int power = 0;
      const double part = std::frexp(std::abs(value.real()), &power) * 2 - 1;
      const unsigned sign = value.real() < 0 ? 0x8000U : 0U;
      return store(at,
                   static_cast<std::uint16_t>(sign | static_cast<unsigned>(power - 1 + 15) << 10 |
                                              static_cast<unsigned>(part * 1024)));
    }
    default:
      for (unsigned code = 0; code < 256; ++code) {
        at[0] = static_cast<std::byte>(code);
        if (load_number(type, at) == value) {
          return;
        }
      }
  }
}

inline unsigned draw(int rank, std::size_t index) {
  std::uint64_t x =
      index * 0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(rank + 1) * 0xD1B54A32D192ED03ULL;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ULL;
  return static_cast<unsigned>(x >> 40);
}

// What a rank contributes at an index: small, so that sums and products are exact in float32.
inline std::int64_t integer_input(const Case& c, int rank, std::size_t index) {
  const unsigned x = draw(rank, index);
  if (c.type == DataType::kBool) {
    return x % 5 == 0 ? 0 : 1;
  }
  return c.op == ReduceOp::kProd || is_unsigned(c.type) ? 1 + x % 5
                                                        : static_cast<std::int64_t>(x % 10) - 4;
}
inline Number number_input(const Case& c, int rank, std::size_t index) {
  const unsigned x = draw(rank, index);
  const auto one = [&](unsigned y) {
    constexpr double kTerms[] = {-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2};
    constexpr double kFactors[] = {1, -1, 0.5, 1.5};
    return c.op == ReduceOp::kProd ? kFactors[y % 4] : kTerms[y % 8];
  };
  const bool is_complex = c.type == DataType::kComplex64 || c.type == DataType::kComplex128;
  return {one(x), is_complex ? one(x >> 5) : 0};
}
inline Scale scale_of(int rank) {
  return {.real = rank % 3 == 0 ? 0.5 : rank % 3, .integer = rank % 3 + 1};
}

inline void fill(const Case& c, int rank, std::byte* data, std::size_t first, std::size_t count) {
  const std::size_t size = size_of(c.type);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_integer(c.type)) {
      const std::int64_t value = integer_input(c, rank, first + i);
      std::memcpy(data + i * size, &value, size);  // little-endian
    } else {
      store_number(c.type, data + i * size, number_input(c, rank, first + i));
    }
  }
}

inline std::int64_t expected_integer(const Case& c, int ranks, std::size_t index) {
  std::int64_t result = integer_input(c, 0, index);
  std::uint64_t scaled = static_cast<std::uint64_t>(result * scale_of(0).integer);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::int64_t x = integer_input(c, rank, index);
    scaled += static_cast<std::uint64_t>(x * scale_of(rank).integer);
    switch (c.op) {
      case ReduceOp::kProd:
        result = static_cast<std::int64_t>(static_cast<std::uint64_t>(result) *
                                           static_cast<std::uint64_t>(x));
        break;
      case ReduceOp::kMax:
        result = std::max(result, x);
        break;
      case ReduceOp::kMin:
        result = std::min(result, x);
        break;
      case ReduceOp::kBitAnd:
        result &= x;
        break;
      case ReduceOp::kBitOr:
        result |= x;
        break;
      case ReduceOp::kBitXor:
        result ^= x;
        break;
      default:
        result += x;
    }
  }
  if (c.op == ReduceOp::kPremulSum) {
    result = static_cast<std::int64_t>(scaled);
  } else if (c.op == ReduceOp::kAvg) {
    result /= ranks;
  }
  if (c.type == DataType::kBool) {
    return c.op == ReduceOp::kBitXor ? result & 1 : result != 0 ? 1 : 0;
  }
  std::byte bytes[8];
  std::memcpy(bytes, &result, 8);
  return load_integer(c.type, bytes);
}

inline Number expected_number(const Case& c, int ranks, std::size_t index) {
  const bool scales = c.op == ReduceOp::kPremulSum;
  Number result = number_input(c, 0, index) * (scales ? scale_of(0).real : 1);
  for (int rank = 1; rank < ranks; ++rank) {
    const Number x = number_input(c, rank, index) * (scales ? scale_of(rank).real : 1);
    switch (c.op) {
      case ReduceOp::kProd:
        result *= x;
        break;
      case ReduceOp::kMax:
        result = std::max(result.real(), x.real());
        break;
      case ReduceOp::kMin:
        result = std::min(result.real(), x.real());
        break;
      default:
        result += x;
    }
  }
  return c.op == ReduceOp::kAvg ? result / static_cast<double>(ranks) : result;
}

// Half a unit in the last place, or a whole one where the library may divide by multiplying.
inline double tolerance(DataType type, double expected) {
  const auto half = [&](int mantissa, int smallest) {
    return std::max(std::ldexp(std::abs(expected), -mantissa - 1), std::ldexp(0.5, smallest));
  };
  switch (type) {
    case DataType::kFloat8E4m3:
      return half(3, -9);
    case DataType::kFloat8E5m2:
      return half(2, -16);
    case DataType::kFloat16:
      return half(10, -24);
    case DataType::kBfloat16:
      return half(7, -133);
    case DataType::kFloat32:
    case DataType::kComplex64:
      return half(22, -149);
    default:
      return half(51, -1000);
  }
}

inline bool reduces(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kReduceScatter;
}

// Elements `count` at `data` are those from `first` on of the result; `from`: whose data, where
// nothing is reduced.
inline void expect_result(const Case& c, int ranks, const std::byte* data, std::size_t first,
                          std::size_t count, int from) {
  const std::size_t size = size_of(c.type);
  std::vector<std::byte> plain(size);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* at = data + i * size;
    if (!reduces(c.kind)) {
      fill(c, from, plain.data(), first + i, 1);
      ASSERT_EQ(std::memcmp(at, plain.data(), size), 0) << describe(c, ranks) << ": element " << i;
    } else if (is_integer(c.type)) {
      ASSERT_EQ(load_integer(c.type, at), expected_integer(c, ranks, first + i))
          << describe(c, ranks) << ": element " << i;
    } else {
      const Number expected = expected_number(c, ranks, first + i);
      const Number got = load_number(c.type, at);
      ASSERT_LE(std::abs(got.real() - expected.real()), tolerance(c.type, expected.real()))
          << describe(c, ranks) << ": element " << i << " is " << got << ", not " << expected;
      ASSERT_LE(std::abs(got.imag() - expected.imag()), tolerance(c.type, expected.imag()))
          << describe(c, ranks) << ": element " << i << " is " << got << ", not " << expected;
    }
  }
}

// Memory between guards.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t shift)
      : bytes_(bytes), shift_(shift), all_(bytes + shift + 128, kGuard) {}
  std::byte* data() { return all_.data() + 64 + shift_; }
  void check(const std::string& what) const {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (i < 64 + shift_ || i >= 64 + shift_ + bytes_) {
        ASSERT_EQ(all_[i], kGuard) << what << ": written outside the buffer";
      }
    }
  }

 private:
  static constexpr std::byte kGuard{0xA5};
  std::size_t bytes_;
  std::size_t shift_;
  std::vector<std::byte> all_;
};

inline std::size_t share(const Case& c, int rank) {
  return c.has_parts ? c.count * static_cast<std::size_t>(rank % 3) : c.count;
}

// What one rank has for the algorithms.
class StreamRank {
 public:
  explicit StreamRank(const Rank& self, std::size_t chunk = 0,
                      std::chrono::nanoseconds timeout = std::chrono::seconds(50))
      : self_(self),
        transport_(self.segment, self.waiting, self.rank, 0),
        wait_(timeout,
              [this] { return error(ErrorCode::kTimeout, "rank {} waited too long", self_.rank); }),
        context_{self.rank, self.ranks, transport_, self.waiting, wait_, chunk} {}
  const algorithm::StreamContext& context() const { return context_; }

  // Runs the case and checks the result. All ranks' results get into digest(), where they must be
  // alike.
  void run(Algorithm algorithm, const Case& c) {
    const std::size_t size = size_of(c.type);
    const bool gathers = c.kind == OperationKind::kAllGather;
    const bool scatters = c.kind == OperationKind::kReduceScatter;
    std::vector<std::size_t> starts;
    std::size_t total = 0;
    for (int rank = 0; rank < self_.ranks; ++rank) {
      starts.push_back(total);
      total += share(c, rank);
    }
    const std::size_t own = gathers || scatters ? share(c, self_.rank) : c.count;
    const std::size_t own_start =
        gathers || scatters ? starts[static_cast<std::size_t>(self_.rank)] : 0;
    Guarded in((scatters ? total : own) * size, c.shift);
    Guarded out((gathers ? total : own) * size, c.shift);
    std::byte* send = in.data();
    std::byte* recv = out.data();
    if (c.in_place && gathers) {
      send = recv + own_start * size;
    } else if (c.in_place && scatters) {
      recv = send + own_start * size;
    } else if (c.in_place) {
      recv = send;
    }
    fill(c, self_.rank, send, gathers ? own_start : 0, scatters ? total : own);

    Collective call{.kind = c.kind,
                    .send = send,
                    .recv = recv,
                    .count = own,
                    .type = c.type,
                    .op = c.op,
                    .scale = scale_of(self_.rank),
                    .root = c.root};
    // What a rank has no use for need not be there.
    if (self_.rank != c.root && c.kind == OperationKind::kReduce) {
      call.recv = nullptr;
    } else if (self_.rank != c.root && c.kind == OperationKind::kBroadcast && !c.in_place) {
      call.send = nullptr;
    }
    std::vector<Part> parts;
    if (c.has_parts) {
      for (int rank = 0; rank < self_.ranks; ++rank) {
        std::byte* whole = gathers ? recv : send;
        parts.push_back({whole + starts[static_cast<std::size_t>(rank)] * size, share(c, rank)});
      }
      (gathers ? call.recv_parts : call.send_parts) = parts;
    }
    algorithm(context_, call);

    in.check(describe(c, self_.ranks));
    out.check(describe(c, self_.ranks));
    if (gathers) {
      for (int rank = 0; rank < self_.ranks; ++rank) {
        const std::size_t start = starts[static_cast<std::size_t>(rank)];
        expect_result(c, self_.ranks, recv + start * size, start, share(c, rank), rank);
      }
    } else if (c.kind != OperationKind::kReduce || self_.rank == c.root) {
      expect_result(c, self_.ranks, recv, own_start, own, c.root);
    }
    if (c.kind == OperationKind::kAllReduce) {
      for (std::size_t i = 0; i < own * size; ++i) {
        digest() = (digest() ^ static_cast<std::uint64_t>(recv[i])) * 0x100000001B3ULL;
      }
    }
  }

 private:
  std::uint64_t& digest() {
    return *reinterpret_cast<std::uint64_t*>(self_.segment.stage(self_.rank));
  }

  Rank self_;
  shared_memory::ChannelTransport transport_;
  WaitContext wait_;
  algorithm::StreamContext context_;
};

inline void expect_equal_bits(const shared_memory::Segment& segment, int ranks) {
  for (int rank = 1; rank < ranks; ++rank) {
    EXPECT_EQ(load<std::uint64_t>(segment.stage(rank)), load<std::uint64_t>(segment.stage(0)))
        << "rank " << rank << " holds other bits than rank 0";
  }
}

struct Sweep {
  Algorithm algorithm;
  std::span<const OperationKind> kinds;
  bool parts = false;
};

// Every type with every operator that it has, at sizes of one chunk.
inline void sweep_types(const Sweep& sweep, StreamRank& rank, int ranks) {
  for (const OperationKind kind : sweep.kinds) {
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < (reduces(kind) ? kReduceOps : 1); ++op) {
        Case c{.kind = kind, .type = static_cast<DataType>(type), .op = static_cast<ReduceOp>(op)};
        if (reduces(kind) && !is_supported(c.type, c.op)) {
          continue;
        }
        c.root = (type + op) % ranks;
        c.in_place = (type + op) % 2 == 1;
        for (const std::size_t count : {1, 67}) {
          c.count = count;
          rank.run(sweep.algorithm, c);
        }
      }
    }
  }
}

// A type that widens and one that does not, at many sizes; several chunks a block and several
// windows at the largest.
inline void sweep_sizes(const Sweep& sweep, StreamRank& rank, int ranks) {
  for (const OperationKind kind : sweep.kinds) {
    for (const DataType type : {DataType::kFloat32, DataType::kBfloat16}) {
      for (const std::size_t count : {0, 1, 3, 8, 9, 1000, 40'001}) {
        for (const bool in_place : {false, true}) {
          for (const bool parts : {false, true}) {
            if (parts && (!sweep.parts || (kind != OperationKind::kAllGather &&
                                           kind != OperationKind::kReduceScatter))) {
              continue;
            }
            rank.run(sweep.algorithm, {.kind = kind,
                                       .type = type,
                                       .count = count,
                                       .in_place = in_place,
                                       .root = static_cast<int>(count) % ranks,
                                       .shift = count % 2 == 1 ? std::size_t{1} : 0,
                                       .has_parts = parts});
          }
        }
      }
    }
  }
}

inline void sweep_threads(const Sweep& sweep, int ranks) {
  auto segment = make_segment(ranks);
  run_threads(segment, ranks, [&](const Rank& self) {
    StreamRank rank(self);
    sweep_types(sweep, rank, ranks);
    sweep_sizes(sweep, rank, ranks);
  });
  expect_equal_bits(segment, ranks);
}

inline void sweep_processes(const Sweep& sweep, int ranks) {
  auto segment = make_segment(ranks, 16384);
  EXPECT_EQ(run_processes(segment, ranks,
                          [&](const Rank& self) {
                            StreamRank rank(self, 1000);
                            sweep_sizes(sweep, rank, ranks);
                          }),
            std::vector<int>(static_cast<std::size_t>(ranks), 0));
  expect_equal_bits(segment, ranks);
}

}  // namespace ljtrain::accl::test
