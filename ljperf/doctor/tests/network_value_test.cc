#include "doctor/network_value.h"

#include <gtest/gtest.h>

#include "fake_machine.h"

namespace ljtrain::ljperf {
namespace {

// A host with eight GPUs whose only network is eth0.
struct NetworkValueTest : testing::Test {
  FakeMachine fake;
  image::Release release = image::find_release("25.10");

  NetworkValueTest() { fake.machine.environment.erase("NCCL_SOCKET_IFNAME"); }

  NetworkValue value(std::optional<int> gpus = std::nullopt) {
    return network_value(fake.machine, release, gpus);
  }
};

TEST_F(NetworkValueTest, FollowsTheGpusOfThePod) {
  fake.interface("hpn0", 9);
  EXPECT_EQ(value().value, "eth0") << value().why;  // eight device nodes
  EXPECT_EQ(value(16).value, "hpn0") << value().why;
  EXPECT_EQ(value(0).value, "eth0");  // the rule by default
}

TEST_F(NetworkValueTest, KeepsWhatTheUserSet) {
  fake.set("NCCL_SOCKET_IFNAME", "^docker");
  EXPECT_EQ(value().value, "^docker");
  fake.set("NCCL_SOCKET_IFNAME", "");
  EXPECT_EQ(value().value, "eth0");
}

TEST_F(NetworkValueTest, NamesNoInterfaceThatIsNotHere) {
  NetworkValue here = value(16);
  EXPECT_EQ(here.value, "");
  EXPECT_NE(here.why.find("no hpn0"), std::string::npos) << here.why;
  fake.interface("hpn0", 9, /*up=*/false);
  EXPECT_EQ(value(16).value, "");
  EXPECT_NE(value(16).why.find("is down"), std::string::npos) << value(16).why;
}

TEST_F(NetworkValueTest, AsksForTheWholeNameWhereItIsAPrefixOfAnother) {
  fake.interface("eth01", 9);
  EXPECT_EQ(value().value, "=eth0");
}

TEST_F(NetworkValueTest, LeavesItToNcclWithoutARule) {
  release.interface_rules.clear();
  EXPECT_EQ(value().value, "");
}

}  // namespace
}  // namespace ljtrain::ljperf
