#include "base/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "base/errors.h"

namespace ljtrain::base {
namespace {

using std::chrono::milliseconds;

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"sh", "-c", script};
  options.environment = current_environment();
  return options;
}

TEST(RunCaptured, KeepsOutputErrorsAndStatus) {
  Captured result = run_captured(shell("cat; echo bad >&2; exit 3"), std::string(300000, 'x'),
                                 milliseconds(10000));
  EXPECT_EQ(result.output.size(), 300000U);
  EXPECT_EQ(result.errors, "bad\n");
  EXPECT_EQ(result.status.code, 3);
  EXPECT_FALSE(result.timed_out);
}

TEST(RunCaptured, AProgramThatDoesNotReadItsInputIsNoTrouble) {
  for (int i = 0; i < 20; ++i) {
    Captured result = run_captured(shell("exit 5"), std::string(1000000, 'x'), milliseconds(10000));
    EXPECT_EQ(result.status.code, 5);
  }
}

TEST(RunCaptured, EndsWhenItIsToldToStop) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::thread stops([&] {
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(::write(write_end.get(), "x", 1), 1);
  });
  Captured result =
      run_captured(shell("echo before; sleep 60"), "", milliseconds(30000), read_end.get());
  stops.join();
  EXPECT_TRUE(result.stopped);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.output, "before\n");
  EXPECT_FALSE(result.status.ok());
}

TEST(RunCaptured, EndsAtItsTimeoutWithTheWholeGroup) {
  auto start = std::chrono::steady_clock::now();
  Captured result = run_captured(shell("sleep 60 & sleep 60"), "", milliseconds(200));
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.status.signal, SIGKILL);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

TEST(ChildProcess, SaysWhyAProgramCannotStart) {
  SpawnOptions options = shell("true");
  options.argv = {"/no/such/program"};
  try {
    ChildProcess::spawn(options);
    FAIL() << "started";
  } catch (const RunError& error) {
    EXPECT_STREQ(error.what(), "cannot start /no/such/program: No such file or directory");
  }
}

TEST(ChildProcess, BindsToTheGivenCpus) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    last = CPU_ISSET(static_cast<std::size_t>(cpu), &allowed) ? cpu : last;
  }
  SpawnOptions options = shell("grep Cpus_allowed_list /proc/self/status");
  options.cpus = {last};
  Captured result = run_captured(options, "", milliseconds(5000));
  EXPECT_EQ(result.output, "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
}

TEST(EndDescendants, FindsThoseThatLeftTheirGroup) {
  become_subreaper();
  {
    ChildProcess child = ChildProcess::spawn(shell("setsid sleep 60 & setsid sleep 60 & wait"));
    std::this_thread::sleep_for(milliseconds(200));
  }
  EXPECT_GE(end_descendants(milliseconds(2000)), 2);
  EXPECT_EQ(end_descendants(milliseconds(100)), 0);
}

TEST(EndDescendants, SparesThoseThatWereThereBefore) {
  become_subreaper();
  ChildProcess neighbour = ChildProcess::spawn(shell("sleep 60"));
  std::set<pid_t> before = descendants();
  EXPECT_TRUE(before.contains(neighbour.pid()));
  ChildProcess child = ChildProcess::spawn(shell("sleep 60"));
  EXPECT_GE(end_descendants(milliseconds(2000), before), 1);
  EXPECT_FALSE(neighbour.poll().has_value());
}

TEST(ChildProcess, DiesWithTheProcessThatSpawnedIt) {
  become_subreaper();  // else the orphan waits for init to reap it
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_t middle = ::fork();
  if (middle == 0) {
    ChildProcess child = ChildProcess::spawn(shell("sleep 60"));
    pid_t pid = child.pid();
    [[maybe_unused]] ssize_t written = ::write(ends[1], &pid, sizeof pid);
    ::kill(::getpid(), SIGKILL);
  }
  pid_t grandchild = 0;
  ASSERT_EQ(::read(ends[0], &grandchild, sizeof grandchild), ssize_t{sizeof grandchild});
  ::waitpid(middle, nullptr, 0);
  bool gone = false;
  for (int i = 0; i < 100 && !gone; ++i) {
    ::waitpid(grandchild, nullptr, WNOHANG);
    gone = ::kill(grandchild, 0) != 0;
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(gone);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace ljtrain::base
