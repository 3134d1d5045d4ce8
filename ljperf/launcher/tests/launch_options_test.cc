#include "launcher/launch_options.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

std::string refusal(const LaunchOptions& options) {
  try {
    check(options);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

LaunchOptions with(const std::string& launcher) {
  LaunchOptions options;
  options.launcher = launcher;
  options.image = launcher == "docker" || launcher == "kubernetes" ? "registry.io/a/b:1" : "";
  return options;
}

TEST(LaunchOptions, EveryLauncherIsTakenAsItIs) {
  for (std::string_view launcher : kLaunchers) {
    EXPECT_EQ(refusal(with(std::string(launcher))), "") << launcher;
  }
}

TEST(LaunchOptions, HostNames) {
  for (const char* good : {"a", "node-1", "node_1.cluster.local", "10.0.0.1", "fe80::1", "::1"}) {
    EXPECT_TRUE(is_host_name(good)) << good;
  }
  for (const char* bad : {"", "-a", "a-", "a b", "a;b", "$(id)", "`id`", "a/b", "a\nb", "a..b",
                          ".a", "user@a", "a:22", "-oProxyCommand=id", "a'b", "::1 x"}) {
    EXPECT_FALSE(is_host_name(bad)) << bad;
    LaunchOptions options = with("torchrun");
    options.hosts = {"a", bad};
    EXPECT_NE(refusal(options), "") << bad;
  }
  EXPECT_FALSE(is_host_name(std::string(254, 'a')));
  EXPECT_FALSE(is_host_name(std::string_view("a\0b", 3)));
}

TEST(LaunchOptions, HostsAndNodesAgree) {
  LaunchOptions options = with("torchrun");
  options.hosts = {"a", "b"};
  EXPECT_EQ(options.node_count(), 2);
  options.nodes = 2;
  EXPECT_EQ(refusal(options), "");
  options.nodes = 3;
  EXPECT_NE(refusal(options), "");
  options.nodes.reset();
  options.hosts = {"a", "a"};
  EXPECT_NE(refusal(options).find("twice"), std::string::npos);
  LaunchOptions nowhere = with("torchrun");
  nowhere.nodes = 2;
  EXPECT_NE(refusal(nowhere).find("--hosts"), std::string::npos);
}

TEST(LaunchOptions, WhatALauncherWouldIgnoreIsRefused) {
  LaunchOptions options = with("local");
  options.nodes = 2;
  EXPECT_NE(refusal(options), "");
  options = with("local");
  options.hosts = {"a"};
  EXPECT_NE(refusal(options), "");
  options = with("ray");
  options.max_restarts = 1;
  EXPECT_NE(refusal(options), "");
  options = with("torchrun");
  options.time_limit = "10";
  EXPECT_NE(refusal(options), "");
  options = with("docker");
  options.image.clear();
  EXPECT_NE(refusal(options).find("--image"), std::string::npos);
  options.image = "a b; id";
  EXPECT_NE(refusal(options), "");
  options = with("slurm");
  options.time_limit = "1:30:00\n#SBATCH --uid=0";
  EXPECT_NE(refusal(options), "");
  options.time_limit = "1:30:00";
  EXPECT_EQ(refusal(options), "");
  options.job_name = "a b";
  EXPECT_NE(refusal(options), "");
}

TEST(LaunchOptions, JobNamesAreLabels) {
  EXPECT_EQ(job_name_from("deepspeed/llama3-8b"), "deepspeed-llama3-8b");
  EXPECT_EQ(job_name_from("8B"), "ljperf-8b");
  EXPECT_EQ(job_name_from("$(id) \n"), "id");
  EXPECT_EQ(job_name_from(""), "ljperf");
  EXPECT_EQ(job_name_from(std::string(80, 'a')).size(), 50U);
  EXPECT_EQ(job_name_from("9" + std::string(80, '-')), "ljperf-9");
}

TEST(LaunchOptions, OptionsAreTakenOutInBothForms) {
  std::vector<std::string> line{"benchmark", "--launcher", "slurm", "--model=ddp/a",
                                "--nodes=2", "--dry-run",  "--seq", "64"};
  EXPECT_EQ(without_options(line, {"--launcher", "--nodes"}, {"--dry-run"}),
            (std::vector<std::string>{"benchmark", "--model=ddp/a", "--seq", "64"}));
}

TEST(LaunchOptions, Environment) {
  LaunchOptions options;
  options.environment = {"A=b=c", "HOME"};
  auto variables = environment_of(options);
  ASSERT_EQ(variables.size(), 2U);
  EXPECT_EQ(variables[0], (std::pair<std::string, std::string>("A", "b=c")));
  EXPECT_EQ(variables[1].second, std::getenv("HOME"));
  options.environment = {"LJTRAIN_SURELY_NOT_SET"};
  EXPECT_THROW(environment_of(options), base::UserError);
  options.environment = {"A B=c"};
  EXPECT_THROW(environment_of(options), base::UserError);
}

}  // namespace
}  // namespace ljtrain::ljperf
