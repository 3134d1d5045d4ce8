#include "transport/shared_memory/channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "segment_ranks.h"

namespace ljtrain::accl {
namespace {

using shared_memory::ChannelTransport;
using test::make_segment;
using test::Rank;

constexpr int kLane = 1;

// Both ends in one thread.
struct Ends {
  explicit Ends(std::size_t channel_bytes)
      : segment(make_segment(2, channel_bytes)),
        waiting_0(segment, 0, 2),
        waiting_1(segment, 1, 2),
        transport_0(segment, waiting_0, 0, kLane),
        transport_1(segment, waiting_1, 1, kLane),
        writer(transport_0.to(1)),
        reader(transport_1.from(0)) {}
  shared_memory::Segment segment;
  Waiting waiting_0;
  Waiting waiting_1;
  ChannelTransport transport_0;
  ChannelTransport transport_1;
  ChunkSender& writer;
  ChunkReceiver& reader;
};

std::byte pattern(std::uint32_t chunk, std::size_t at) {
  return static_cast<std::byte>((std::size_t{chunk} * 131 + at * 7 + at / 251) & 0xFF);
}

bool send(ChunkSender& writer, std::uint32_t number, std::size_t bytes) {
  std::byte* place = writer.try_reserve(bytes);
  if (place == nullptr) {
    return false;
  }
  for (std::size_t i = 0; i < bytes; ++i) {
    place[i] = pattern(number, i);
  }
  writer.commit({.bytes = static_cast<std::uint32_t>(bytes),
                 .kind = number + 1,
                 .tag = -static_cast<int>(number),
                 .message = number,
                 .total = std::uint64_t{number} << 33});
  return true;
}

void expect_chunk(const Chunk& chunk, std::uint32_t number, std::size_t bytes) {
  ASSERT_EQ(chunk.header.message, number);
  ASSERT_EQ(chunk.header.bytes, bytes);
  ASSERT_EQ(chunk.header.kind, number + 1);
  ASSERT_EQ(chunk.header.tag, -static_cast<int>(number));
  ASSERT_EQ(chunk.header.total, std::uint64_t{number} << 33);
  for (std::size_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(chunk.payload[i], pattern(number, i)) << "chunk " << number << " byte " << i;
  }
}

TEST(Channel, StartsEmptyAndMovesOneChunk) {
  Ends ends(8192);
  EXPECT_EQ(ends.reader.try_peek(), nullptr);
  ASSERT_TRUE(send(ends.writer, 0, 5));
  const Chunk* chunk = ends.reader.try_peek();
  ASSERT_NE(chunk, nullptr);
  expect_chunk(*chunk, 0, 5);
  EXPECT_EQ(ends.reader.try_peek(1), nullptr);
  ends.reader.release();
  EXPECT_EQ(ends.reader.try_peek(), nullptr);
}

TEST(Channel, RoomForThreeOfTheLargestWhereverTheRingStands) {
  for (const std::size_t channel_bytes : {4096, 8192, 65536, 1 << 20}) {
    Ends ends(channel_bytes);
    const std::size_t largest = ends.transport_0.max_chunk_bytes();
    for (std::uint32_t number = 0; number < 60; number += 3) {
      // An odd small one moves the position.
      ASSERT_TRUE(send(ends.writer, 1000 + number, 33 + std::size_t{number} * 40 % largest / 2));
      ASSERT_NE(ends.reader.try_peek(), nullptr);
      ends.reader.release();
      for (std::uint32_t i = 0; i < 3; ++i) {
        ASSERT_TRUE(send(ends.writer, number + i, largest)) << channel_bytes << " " << number;
      }
      for (std::uint32_t i = 0; i < 3; ++i) {
        const Chunk* chunk = ends.reader.try_peek(2 - i);
        ASSERT_NE(chunk, nullptr);
        expect_chunk(*chunk, number + 2 - i, largest);
      }
      for (std::uint32_t i = 0; i < 3; ++i) {
        ends.reader.release();
      }
    }
  }
}

TEST(Channel, FullHoldsTheSenderBackAndRingsWhenThereIsRoom) {
  Ends ends(8192);
  std::uint32_t sent = 0;
  while (send(ends.writer, sent, 8)) {
    ++sent;
  }
  EXPECT_EQ(sent, 8U);  // entries of a channel of 8 KiB
  const std::uint32_t seen = ends.transport_0.doorbell();
  EXPECT_FALSE(send(ends.writer, sent, 8));
  ASSERT_NE(ends.reader.try_peek(), nullptr);
  ends.reader.release();
  EXPECT_NE(ends.transport_0.doorbell(), seen) << "the sender was not told of the room";
  EXPECT_TRUE(send(ends.writer, sent, 8));
}

TEST(Channel, LargerThanTheLargestIsAnError) {
  Ends ends(8192);
  EXPECT_THROW(ends.writer.try_reserve(ends.transport_0.max_chunk_bytes() + 1), Error);
}

TEST(Channel, ChunkThatWouldLieOutsideIsAnErrorNotARead) {
  Ends ends(8192);
  ASSERT_TRUE(send(ends.writer, 0, 100));
  const shared_memory::ChannelLayout layout(ends.segment.channel(kLane, 0, 1),
                                            ends.segment.header().channel_bytes);
  layout.entries[0].offset = 1U << 20;
  EXPECT_THROW(ends.reader.try_peek(), Error);
}

TEST(Channel, LessMayBeSentThanWasReserved) {
  Ends ends(8192);
  std::byte* place = ends.writer.try_reserve(500);
  ASSERT_NE(place, nullptr);
  place[0] = std::byte{42};
  ends.writer.commit({.bytes = 1});
  const Chunk* chunk = ends.reader.try_peek();
  ASSERT_NE(chunk, nullptr);
  EXPECT_EQ(chunk->header.bytes, 1U);
  EXPECT_EQ(chunk->payload[0], std::byte{42});
}

// A long stream of chunks of random sizes, both ends asleep now and then.
void stream(const Rank& self) {
  ChannelTransport transport(self.segment, self.waiting, self.rank, kLane);
  const std::size_t largest = transport.max_chunk_bytes();
  std::mt19937 sizes(7);  // NOLINT(bugprone-random-generator-seed): the same on both sides
  const auto next_size = [&] {
    const std::size_t limit = sizes() % 4 == 0 ? largest : 80;
    return sizes() % (limit + 1);
  };
  for (std::uint32_t number = 0; number < 3000; ++number) {
    const std::size_t bytes = next_size();
    for (;;) {
      const std::uint32_t seen = transport.doorbell();
      if (self.rank == 0) {
        if (send(transport.to(1), number, bytes)) {
          break;
        }
      } else if (const Chunk* chunk = transport.from(0).try_peek()) {
        expect_chunk(*chunk, number, bytes);
        transport.from(0).release();
        break;
      }
      transport.wait(seen, Transport::Clock::now() + std::chrono::seconds(1));
    }
  }
}

TEST(Channel, StreamBetweenThreads) {
  auto segment = make_segment(2, 16384);
  test::run_threads(segment, 2, stream);
}

TEST(Channel, StreamBetweenProcesses) {
  auto segment = make_segment(2, 16384);
  EXPECT_EQ(test::run_processes(segment, 2, stream), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace ljtrain::accl
