#include "faults.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "doctor/examine.h"
#include "doctor/run_doctor.h"

namespace ljtrain::ljperf {
namespace {

std::vector<Fault> all_faults() {
  std::vector<Fault> all;
  for (auto group : {gpu_faults, network_faults, host_faults, python_faults}) {
    std::vector<Fault> some = group();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::string reported(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    if (finding.status == kWarn || finding.status == kFail) {
      text += fmt::format("  {} {}: {} -> {}\n", status_name(finding.status), finding.id,
                          finding.found, finding.fix);
    }
  }
  return text;
}

class Faults : public testing::TestWithParam<Fault> {};

TEST_P(Faults, AreFound) {
  const Fault& fault = GetParam();
  FakeMachine machine;
  fault.seed(machine);
  std::vector<Finding> findings = examine(machine.machine, {});
  auto found = std::find_if(findings.begin(), findings.end(),
                            [&](const Finding& finding) { return finding.id == fault.id; });
  ASSERT_NE(found, findings.end());
  EXPECT_EQ(status_name(found->status), status_name(fault.status)) << found->found;
  EXPECT_NE((found->found + " " + found->expected + " " + found->fix).find(fault.says),
            std::string::npos)
      << found->found << " | " << found->expected << " | " << found->fix;
  EXPECT_FALSE(found->expected.empty());
  EXPECT_FALSE(found->fix.empty());
}

TEST_P(Faults, HaveAHealthyTwin) {
  const Fault& fault = GetParam();
  FakeMachine machine;
  fault.twin(machine);
  EXPECT_EQ(reported(examine(machine.machine, {})), "") << "twin of: " << fault.name;
}

INSTANTIATE_TEST_SUITE_P(All, Faults, testing::ValuesIn(all_faults()), [](const auto& test) {
  std::string name;
  for (char c : std::string(test.param.id) + " " + test.param.name) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
});

TEST(Doctor, ReportsNothingOnAHealthyMachine) {
  FakeMachine machine;
  std::vector<Finding> findings = examine(machine.machine, {});
  EXPECT_EQ(reported(findings), "");
  EXPECT_GE(findings.size(), 50U);
}

TEST(Doctor, SurvivesAMachineWithoutAnyFile) {
  FakeMachine machine;
  std::filesystem::remove_all(machine.machine.root);
  machine.machine.gpus = GpuReport{};
  machine.machine.environment.clear();
  EXPECT_GE(examine(machine.machine, {}).size(), 50U);
}

TEST(Doctor, EveryCheckIsSeeded) {
  std::set<std::string> seeded;
  for (const Fault& fault : all_faults()) {
    seeded.insert(fault.id);
  }
  FakeMachine machine;
  for (const Finding& finding : examine(machine.machine, {})) {
    EXPECT_TRUE(seeded.contains(finding.id)) << finding.id << " has no fault in this file";
  }
  EXPECT_GE(all_faults().size(), 60U);
}

TEST(Doctor, TextFitsATerminalAndHidesControlCharacters) {
  FakeMachine machine;
  several_hosts(machine);
  machine.set("MASTER_ADDR", "\x1b[2Jevil");
  machine.set("NCCL_SOCKET_IFNAME", std::string(500, 'x') + "\x1b");
  machine.set("HF_TOKEN", "hf_verysecretverysecret");
  std::string text = findings_text(examine(machine.machine, {}));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("verysecret"), std::string::npos);
  EXPECT_NE(text.find("fix:"), std::string::npos);
}

}  // namespace
}  // namespace ljtrain::ljperf
