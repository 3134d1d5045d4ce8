// NCCL_DEBUG and what it prints.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "api_ranks.h"

namespace ljtrain::accl::testing {
namespace {

using Variables = std::map<std::string, std::string>;

// What a process with these variables prints; the environment is read at the first call, so it
// takes a new process image.
std::string output_of(const Variables& variables, const std::string& filter) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const auto& [name, value] : variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    ::dup2(ends[1], STDOUT_FILENO);
    const std::string argument = "--gtest_filter=" + filter;
    ::execl("/proc/self/exe", "accl_test", argument.c_str(), "--gtest_also_run_disabled_tests",
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << text;
  return text;
}

constexpr const char* kSubject = "ApiLog.DISABLED_Subject";

// Run by the tests below in a process of its own.
TEST(ApiLog, DISABLED_Subject) {
  expect_no_failure(run_api_ranks(As::kThreads, 2, [](ncclComm_t comm, int) {
    int value = 1;
    must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr));
    must_be(
        ncclAllReduce(nullptr, &value, 1, ncclInt, ncclSum, comm, nullptr) == ncclInvalidArgument,
        "NULL was taken");
  }));
}

int count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), regex), {}));
}

TEST(ApiLog, IsSilentUnlessAsked) { EXPECT_EQ(count(output_of({}, kSubject), "NCCL"), 0); }

TEST(ApiLog, VersionPrintsTheVersionOnce) {
  const std::string text = output_of({{"NCCL_DEBUG", "version"}}, kSubject);
  EXPECT_EQ(count(text, "NCCL version 2\\.29\\.7 \\(ACCL "), 1) << text;
  EXPECT_EQ(count(text, "NCCL (WARN|INFO)"), 0) << text;
}

TEST(ApiLog, WarnNamesMistakesAndUnknownVariables) {
  const std::string text = output_of(
      {{"NCCL_DEBUG", "WARN"}, {"NCCL_NVLS_ENABLE", "1"}, {"NCCL_ALGO", "ring"}}, kSubject);
  EXPECT_EQ(count(text, "\\S+:\\d+:\\d+ \\[-?\\d+\\] \\w+\\.cc:\\d+ NCCL WARN sendbuff is NULL"), 2)
      << text;
  EXPECT_EQ(count(text, "NCCL WARN NCCL_NVLS_ENABLE is set"), 1) << text;
  EXPECT_EQ(count(text, "NCCL_ALGO"), 0) << text;
  EXPECT_EQ(count(text, "NCCL INFO"), 0) << text;
}

TEST(ApiLog, InfoTellsOfTheCreation) {
  const std::string text = output_of({{"NCCL_DEBUG", "INFO"}}, kSubject);
  for (const char* rank : {"0", "1"}) {
    EXPECT_EQ(count(text, std::string("\\S+:\\d+:\\d+ \\[") + rank +
                              "\\] NCCL INFO ncclCommInitRank comm 0x[0-9a-f]+ rank " + rank +
                              " nranks 2 .*commId 0x[0-9a-f]+ - Init COMPLETE"),
              1)
        << text;
  }
  EXPECT_EQ(count(text, "AllReduce"), 0) << "COLL is not among the subsystems of default\n" << text;
}

TEST(ApiLog, SubsystemsChooseWhatSpeaks) {
  const std::string calls =
      output_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "COLL"}}, kSubject);
  EXPECT_EQ(count(calls, "NCCL INFO AllReduce: .*count 1 datatype 2 op 0"), 2) << calls;
  EXPECT_EQ(count(calls, "Init COMPLETE"), 0) << calls;
  const std::string others =
      output_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "^INIT,REG"}}, kSubject);
  EXPECT_EQ(count(others, "AllReduce: "), 2) << others;
  EXPECT_EQ(count(others, "Init COMPLETE"), 0) << others;
}

TEST(ApiLog, GoesToTheFileThatIsNamed) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("accl_log_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string text = output_of(
      {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_FILE", (folder / "log.%h.%p.%%").string()}}, kSubject);
  EXPECT_EQ(count(text, "NCCL"), 0) << text;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string short_host =
      std::string(host.data()).substr(0, std::string(host.data()).find('.'));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++files;
    EXPECT_TRUE(std::regex_match(entry.path().filename().string(),
                                 std::regex("log\\." + short_host + "\\.\\d+\\.%")))
        << entry.path();
    std::ostringstream content;
    content << std::ifstream(entry.path()).rdbuf();
    EXPECT_EQ(count(content.str(), "Init COMPLETE"), 2) << content.str();
  }
  EXPECT_EQ(files, 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ljtrain::accl::testing
