#include "communicator/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "accl/error.h"

namespace ljtrain::accl::environment {
namespace {

constexpr const char* kName = "ACCL_TEST_VALUE";

class Environment : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv(kName);
    ::unsetenv("ACCL_TIMEOUT");
  }
  static void set(const char* value) { ::setenv(kName, value, 1); }
};

TEST_F(Environment, Bytes) {
  EXPECT_EQ(bytes(kName, 7, 0, 100), 7U) << "not set";
  const std::pair<const char*, std::uint64_t> good[] = {
      {"4096", 4096}, {" 4096 ", 4096}, {"4K", 4096},     {"4KiB", 4096},
      {"4kib", 4096}, {"4 KiB", 4096},  {"1M", 1U << 20}, {"8192 bytes", 8192}};
  for (const auto& [text, value] : good) {
    set(text);
    EXPECT_EQ(bytes(kName, 7, 4096, 1 << 20), value) << text;
  }
  for (const char* text : {"foo", "-1", "1", "4095", "2M", "1e6", "4KB!", "4096x", "KiB",
                           "99999999999999999999999", "17179869184G", "0x1000"}) {
    set(text);
    EXPECT_THROW(bytes(kName, 7, 4096, 1 << 20), Error) << text;
  }
  set("");
  EXPECT_EQ(bytes(kName, 7, 0, 100), 7U);
}

TEST_F(Environment, Switches) {
  for (const char* text : {"1", "true", "YES", "on"}) {
    set(text);
    EXPECT_TRUE(is_on(kName)) << text;
  }
  for (const char* text : {"0", "False", "no", "off", ""}) {
    set(text);
    EXPECT_FALSE(is_on(kName)) << text;
  }
  set("2");
  EXPECT_THROW(is_on(kName), Error);
}

TEST_F(Environment, Timeout) {
  EXPECT_EQ(timeout(), std::chrono::seconds(1800));
  ::setenv("ACCL_TIMEOUT", "2.5", 1);
  EXPECT_EQ(timeout(), std::chrono::milliseconds(2500));
  for (const char* text : {"abc", "-1", "0", "nan", "inf", "1e400", "5s", "1e12"}) {
    ::setenv("ACCL_TIMEOUT", text, 1);
    try {
      timeout();
      FAIL() << text;
    } catch (const Error& failure) {
      EXPECT_NE(std::string(failure.what()).find(text), std::string::npos) << failure.what();
    }
  }
}

}  // namespace
}  // namespace ljtrain::accl::environment
