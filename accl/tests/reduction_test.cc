#include "reduction/reduction.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "reduction/kernels.h"
#include "reduction_reference.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ljtrain::accl::reduction {
namespace {

namespace reference = reduction_reference;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kMargin = 128;
constexpr std::uint8_t kUntouched = 0xa5;

// Memory at any distance from a cache line, with a margin that must stay as it is.
class Memory {
 public:
  Memory(std::size_t bytes, std::size_t offset)
      : bytes_(bytes), storage_(bytes + 2 * kMargin + 64, kUntouched) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    start_ = kMargin + (64 - address % 64) % 64 + offset % 64;
    start_ -= start_ > kMargin + 64 ? 64 : 0;
  }
  std::uint8_t* data() { return storage_.data() + start_; }
  void fill(const Bytes& content) { std::copy(content.begin(), content.end(), data()); }
  bool holds(const Bytes& content) {
    return bytes_ == 0 || std::memcmp(data(), content.data(), bytes_) == 0;
  }
  bool margin_untouched() const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      if ((i < start_ || i >= start_ + bytes_) && storage_[i] != kUntouched) {
        return false;
      }
    }
    return true;
  }

 private:
  std::size_t bytes_;
  std::size_t start_ = 0;
  Bytes storage_;
};

class ForEveryInstructionSet : public testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override { set_kernels(GetParam()); }
  void TearDown() override { set_kernels(nullptr); }
};
INSTANTIATE_TEST_SUITE_P(Reduction, ForEveryInstructionSet,
                         testing::ValuesIn(available_kernels().begin(), available_kernels().end()),
                         [](const auto& instance) {
                           std::string name = instance.param->name;
                           std::erase_if(name, [](char c) {
                             return std::isalnum(static_cast<unsigned char>(c)) == 0;
                           });
                           return name;
                         });

// Half the elements are any bits (NaNs, infinities, denormals, overflow), half are small numbers,
// zeros of both signs among them, so that sums round.
Bytes random_elements(DataType type, std::size_t count, std::mt19937_64& random) {
  const std::size_t parts = reference::is_complex(type) ? 2 : 1;
  const std::size_t size = size_of(type) / parts;
  Bytes content(count * parts * size);
  for (std::size_t i = 0; i < count * parts; ++i) {
    std::uint8_t* const to = content.data() + i * size;
    const std::uint64_t bits = random();
    const bool any = random() % 2 == 0;
    if (type == DataType::kBool) {
      *to = static_cast<std::uint8_t>(bits % 2);
    } else if (any || !reference::is_real_number(type)) {
      std::memcpy(to, &bits, size);
    } else {
      const double value = static_cast<double>(static_cast<std::int64_t>(bits % 2001) - 1000) / 64;
      const double or_zero = random() % 8 == 0 ? std::copysign(0.0, value) : value;
      reference::store_real({type, ReduceOp::kMax, 1, {}}, or_zero, to);
    }
  }
  return content;
}

std::vector<Scale> some_scales(std::size_t count) {
  std::vector<Scale> scales(count);
  for (std::size_t i = 0; i < count; ++i) {
    scales[i].real = 0.375 * static_cast<double>(i + 1) - 0.5;
    scales[i].integer = static_cast<std::int64_t>(i % 4) * 3 - 3;
  }
  return scales;
}

// float32 and wider: any NaN is as good as another to the reference, so both sides get the same
// one.
void unify_nans(DataType type, Bytes& content) {
  const std::size_t size =
      reference::is_double(type)
          ? 8
          : (type == DataType::kFloat32 || reference::is_complex(type) ? 4 : 0);
  for (std::size_t i = 0; size > 0 && i < content.size(); i += size) {
    std::uint8_t* const at = content.data() + i;
    if (std::isnan(reference::load_real(type, at))) {
      std::memset(at, 0xff, size);
    }
  }
}

struct Layout {
  std::size_t offset = 0;  // of the destination; sources lie elsewhere
  int in_place = -1;       // the source that is the destination
  bool streaming = false;
  bool second = false;
};

struct Case {
  reference::Operation operation;
  std::size_t count = 0;
  std::vector<Bytes> sources;
  Bytes expected;
};

Case make_case(DataType type, ReduceOp op, std::size_t count, std::size_t sources,
               std::mt19937_64& random) {
  Case made;
  made.operation = {type, op, static_cast<int>(sources), some_scales(sources)};
  made.count = count;
  for (std::size_t i = 0; i < sources; ++i) {
    made.sources.push_back(random_elements(type, count, random));
  }
  made.expected = reference::reduce(made.operation, made.sources, count);
  unify_nans(type, made.expected);
  return made;
}

std::string first_difference(const Case& made, const Bytes& got) {
  const std::size_t size = size_of(made.operation.type);
  for (std::size_t i = 0; i < made.count; ++i) {
    if (std::memcmp(got.data() + i * size, made.expected.data() + i * size, size) != 0) {
      const auto hex = [&](const Bytes& bytes) {
        std::string text;
        for (std::size_t b = size; b-- > 0;) {
          text += fmt::format("{:02x}", bytes[i * size + b]);
        }
        return text;
      };
      std::string text =
          fmt::format("element {}: {} instead of {}, of", i, hex(got), hex(made.expected));
      for (const Bytes& source : made.sources) {
        text += " " + hex(source);
      }
      return text;
    }
  }
  return "";
}

void check(const Case& made, const Layout& layout) {
  const std::size_t bytes = made.count * size_of(made.operation.type);
  Memory destination(bytes, layout.offset);
  Memory second(bytes, layout.offset + 5);
  std::vector<Memory> sources;
  std::vector<const void*> pointers;
  sources.reserve(made.sources.size());
  for (std::size_t i = 0; i < made.sources.size(); ++i) {
    sources.emplace_back(bytes, layout.offset * (i + 2));
    Memory& memory = std::cmp_equal(i, layout.in_place) ? destination : sources.back();
    memory.fill(made.sources[i]);
    pointers.push_back(memory.data());
  }
  reduce({.destination = destination.data(),
          .second_destination = layout.second ? second.data() : nullptr,
          .sources = pointers,
          .scales = made.operation.scales,
          .count = made.count,
          .type = made.operation.type,
          .op = made.operation.op,
          .average_over = made.operation.average_over,
          .streaming = layout.streaming});
  Bytes got(destination.data(), destination.data() + bytes);
  ASSERT_TRUE(!layout.second || second.holds(got));
  unify_nans(made.operation.type, got);
  ASSERT_EQ(first_difference(made, got), "")
      << fmt::format("{} {} of {} sources, {} elements, offset {}, in place {}, streaming {}",
                     name_of(made.operation.type), name_of(made.operation.op), made.sources.size(),
                     made.count, layout.offset, layout.in_place, layout.streaming);
  ASSERT_TRUE(destination.margin_untouched() && second.margin_untouched());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    ASSERT_TRUE(sources[i].margin_untouched());
    ASSERT_TRUE(std::cmp_equal(i, layout.in_place) || sources[i].holds(made.sources[i]));
  }
}

template <class Function>
void for_every_pair(const Function& function) {
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      if (is_supported(static_cast<DataType>(type), static_cast<ReduceOp>(op))) {
        function(static_cast<DataType>(type), static_cast<ReduceOp>(op));
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_P(ForEveryInstructionSet, ReducesEveryTypeAndOperatorAsTheReferenceDoes) {
  std::mt19937_64 random(4);  // NOLINT(bugprone-random-generator-seed): the same on every run
  for_every_pair([&](DataType type, ReduceOp op) {
    for (const std::size_t sources : {1, 2, 3, 4, 9}) {
      for (const std::size_t count : {0, 1, 2, 7, 33, 200, 1533}) {
        const Case made = make_case(type, op, count, sources, random);
        for (const std::size_t offset : {0, 1, 4, 40}) {
          for (const int in_place : {-1, 0, static_cast<int>(sources) - 1}) {
            const bool odd = (offset + count) % 2 == 1;
            check(made, {offset, in_place, false, odd});
            check(made, {offset, in_place, true, !odd});
          }
        }
      }
    }
  });
}

TEST_P(ForEveryInstructionSet, PartialResultsGiveTheSameBitsAsReducingAtOnce) {
  constexpr std::size_t kCount = 777;
  constexpr std::size_t kSources = 3;
  std::mt19937_64 random(5);  // NOLINT(bugprone-random-generator-seed): the same on every run
  for_every_pair([&](DataType type, ReduceOp op) {
    const Case made = make_case(type, op, kCount, kSources, random);
    const std::size_t accumulator_bytes = kCount * size_of(accumulator_type(type));
    Bytes accumulator(accumulator_bytes + 1);
    Bytes other(accumulator_bytes + 1);
    widen(accumulator.data() + 1, made.sources[0].data(), kCount, type, op,
          made.operation.scales[0]);
    for (std::size_t i = 1; i < kSources; ++i) {
      widen(other.data() + 1, made.sources[i].data(), kCount, type, op, made.operation.scales[i]);
      combine(accumulator.data() + 1, other.data() + 1, kCount, type, op);
    }
    Bytes got(made.expected.size());
    narrow(got.data(), accumulator.data() + 1, kCount, type, op, kSources);
    unify_nans(type, got);
    ASSERT_EQ(first_difference(made, got), "") << name_of(type) << " " << name_of(op);
    if (accumulator_type(type) == type) {
      narrow(accumulator.data() + 1, accumulator.data() + 1, kCount, type, op, kSources);
      Bytes in_place(accumulator.begin() + 1, accumulator.end());
      unify_nans(type, in_place);
      ASSERT_EQ(first_difference(made, in_place), "") << name_of(type) << " " << name_of(op);
    }
  });
}

TEST(Reduction, EveryInstructionSetGivesTheSameBitsIncludingThoseOfNan) {
  constexpr std::size_t kCount = 3001;
  std::mt19937_64 random(6);  // NOLINT(bugprone-random-generator-seed): the same on every run
  for_every_pair([&](DataType type, ReduceOp op) {
    const Case made = make_case(type, op, kCount, 3, random);
    std::vector<const void*> pointers;
    for (const Bytes& source : made.sources) {
      pointers.push_back(source.data());
    }
    Bytes first;
    for (const Kernels* set : available_kernels()) {
      set_kernels(set);
      Bytes got(made.expected.size());
      reduce({.destination = got.data(),
              .sources = pointers,
              .scales = made.operation.scales,
              .count = kCount,
              .type = type,
              .op = op,
              .average_over = 3});
      first = first.empty() ? got : first;
      ASSERT_EQ(got, first) << set->name << " " << name_of(type) << " " << name_of(op);
    }
  });
  set_kernels(nullptr);
}

// 64 ranks and more: nothing is sized by their number.
TEST_P(ForEveryInstructionSet, TakesAnyNumberOfSources) {
  std::mt19937_64 random(7);  // NOLINT(bugprone-random-generator-seed): the same on every run
  for (const DataType type : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt32}) {
    check(make_case(type, ReduceOp::kSum, 129, 64, random), {});
    check(make_case(type, ReduceOp::kAvg, 129, 300, random), {});
  }
}

TEST_P(ForEveryInstructionSet, EveryValueOfSmallTypesSurvivesWideningAndRounding) {
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8E4m3, DataType::kFloat8E5m2}) {
    const reference::Format& format = *reference::format_of(type);
    const std::size_t count = std::size_t{1} << format.bits();
    Bytes all(count * size_of(type));
    Bytes expected = all;
    for (std::uint32_t code = 0; code < count; ++code) {
      std::memcpy(all.data() + code * size_of(type), &code, size_of(type));
      reference::store_real({type, ReduceOp::kMax, 1, {}}, format.decode(code),
                            expected.data() + code * size_of(type));
    }
    std::vector<float> wide(count);
    widen(wide.data(), all.data(), count, type, ReduceOp::kMax, {});
    for (std::uint32_t code = 0; code < count; ++code) {
      const double exact = format.decode(code);
      ASSERT_TRUE(wide[code] == static_cast<float>(exact) ||
                  (std::isnan(wide[code]) && std::isnan(exact)))
          << name_of(type) << " " << code;
      ASSERT_TRUE(std::isnan(exact) || std::signbit(wide[code]) == std::signbit(exact));
    }
    Bytes back(all.size());
    narrow(back.data(), wide.data(), count, type, ReduceOp::kMax, 1);
    ASSERT_EQ(back, expected) << name_of(type);
    // As a sum of one: the vector loops, where there are such. Only infinities of 8 bits become
    // finite.
    const void* const source = all.data();
    reduce({.destination = back.data(), .sources = {&source, 1}, .count = count, .type = type});
    for (std::uint32_t code = 0; code < count; ++code) {
      if (!format.saturates || !std::isinf(format.decode(code))) {
        ASSERT_EQ(std::memcmp(back.data() + code * size_of(type),
                              expected.data() + code * size_of(type), size_of(type)),
                  0)
            << name_of(type) << " " << code;
      }
    }
  }
}

// The middle between neighbours and its two neighbours in float32, of every pair of finite values.
TEST_P(ForEveryInstructionSet, RoundsToNearestEven) {
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8E4m3, DataType::kFloat8E5m2}) {
    const reference::Format& format = *reference::format_of(type);
    std::vector<float> values;
    for (std::uint32_t code = 0; code < format.finite_end(); ++code) {
      const double middle = (format.finite(code) + format.finite(code + 1)) / 2;
      const auto at = static_cast<float>(middle);
      for (const float value : {at, std::nextafter(at, 0.0F), std::nextafter(at, INFINITY)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    Bytes got(values.size() * size_of(type));
    narrow(got.data(), values.data(), values.size(), type, ReduceOp::kSum, 1);
    Bytes expected(got.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      reference::store_real({type, ReduceOp::kSum, 1, {}}, values[i],
                            expected.data() + i * size_of(type));
    }
    ASSERT_EQ(got, expected) << name_of(type);
  }
}

#if defined(__SSE__)
TEST_P(ForEveryInstructionSet, CallersRoundingModeChangesNothing) {
  std::mt19937_64 random(8);  // NOLINT(bugprone-random-generator-seed): the same on every run
  const unsigned int before = _mm_getcsr();
  for (const DataType type : {DataType::kFloat16, DataType::kFloat32, DataType::kFloat64,
                              DataType::kBfloat16, DataType::kFloat8E5m2}) {
    const Case made = make_case(type, ReduceOp::kSum, 999, 3, random);
    std::vector<const void*> pointers;
    for (const Bytes& source : made.sources) {
      pointers.push_back(source.data());
    }
    Bytes got(made.expected.size());
    // Flush to zero, denormals are zero, round up.
    const unsigned int odd = before | 0x8040 | 0x4000;
    _mm_setcsr(odd);
    reduce({.destination = got.data(), .sources = pointers, .count = made.count, .type = type});
    const unsigned int after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & 0xffc0, odd & 0xffc0);
    unify_nans(type, got);
    EXPECT_EQ(first_difference(made, got), "") << name_of(type);
  }
}
#endif

TEST_P(ForEveryInstructionSet, CopiesAnyNumberOfBytesBetweenAnyAlignments) {
  std::mt19937_64 random(9);  // NOLINT(bugprone-random-generator-seed): the same on every run
  for (const std::size_t bytes : {0, 1, 3, 63, 64, 65, 255, 256, 1000, 5000}) {
    const Bytes content = random_elements(DataType::kUint8, bytes, random);
    for (const std::size_t offset : {0, 1, 8, 63}) {
      for (const bool streaming : {false, true}) {
        Memory source(bytes, offset * 3);
        Memory one(bytes, offset);
        Memory first(bytes, offset);
        Memory second(bytes, offset + 9);
        source.fill(content);
        copy(one.data(), source.data(), bytes, streaming);
        copy_to_two(first.data(), second.data(), source.data(), bytes, streaming);
        ASSERT_TRUE(one.holds(content) && first.holds(content) && second.holds(content))
            << bytes << " bytes, offset " << offset << ", streaming " << streaming;
        ASSERT_TRUE(one.margin_untouched() && first.margin_untouched() &&
                    second.margin_untouched());
      }
    }
  }
}

TEST(Reduction, NamesTheInstructionSetInUse) {
  EXPECT_STREQ(instruction_set(), available_kernels().front()->name);
  for (const Kernels* set : available_kernels()) {
    set_kernels(set);
    EXPECT_STREQ(instruction_set(), set->name);
  }
  set_kernels(nullptr);
}

}  // namespace
}  // namespace ljtrain::accl::reduction
