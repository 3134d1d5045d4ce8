// What each engine is given, word by word.
#include "launcher/engines.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "launcher/elsewhere.h"
#include "launcher/rank_entry.h"
#include "launcher/ray.h"
#include "launcher/slurm.h"
#include "launcher/torchrun.h"

namespace ljtrain::ljperf {
namespace {

using Words = std::vector<std::string>;

RankCommand command() {
  RankCommand command;
  command.ljperf = "/opt/a b/ljperf";
  command.python = "/opt/python";
  command.argv = {"/opt/python", "train.py", "--note=it's; $(id)"};
  command.ranks_per_node = 4;
  command.log_folder = "/logs";
  command.working_directory = "/work here";
  return command;
}

bool holds(const Words& argv, const std::string& word) {
  return std::find(argv.begin(), argv.end(), word) != argv.end();
}

ElsewhereJob job() {
  ElsewhereJob job;
  job.arguments = {"benchmark", "--model", "ddp/bert-large", "--set=a=$(id) 'x'"};
  job.name = "bert";
  job.ljperf = "/opt/ljperf";
  job.folder = "/jobs/bert one";
  job.result = "/jobs/bert one/result.json";
  job.working_directory = "/home/me";
  job.ranks_per_node = 2;
  return job;
}

TEST(Torchrun, OneHost) {
  LaunchOptions options;
  options.launcher = "torchrun";
  options.max_restarts = 3;
  EXPECT_EQ(
      torchrun_argv(options, command(), "run-1", 0),
      (Words{"/opt/python", "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=4",
             "--rdzv-backend=c10d", "--rdzv-id=run-1", "--rdzv-endpoint=127.0.0.1:0",
             "--local-addr=127.0.0.1", "--max-restarts=3", "--no-python", "/opt/a b/ljperf", "rank",
             R"json({"argv":["/opt/python","train.py","--note=it's; $(id)"],"log":"/logs"})json"}));
}

TEST(Torchrun, EachHostIsToldWhoItIs) {
  LaunchOptions options;
  options.launcher = "torchrun";
  options.hosts = {"a", "fe80::2"};
  Words second = torchrun_argv(options, command(), "r", 1);
  EXPECT_TRUE(holds(second, "--nnodes=2"));
  EXPECT_TRUE(holds(second, "--rdzv-endpoint=a:29400"));
  EXPECT_TRUE(holds(second, "--rdzv-conf=is_host=0"));
  EXPECT_TRUE(holds(second, "--local-addr=fe80::2"));
  EXPECT_TRUE(holds(torchrun_argv(options, command(), "r", 0), "--rdzv-conf=is_host=1"));
  EXPECT_EQ(reach_argv(options, command(), 1),
            (Words{"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "fe80::2",
                   "'/opt/a b/ljperf'", "host-agent"}));
  options.remote_shell = "kubectl exec -i";
  EXPECT_EQ(reach_argv(options, command(), 0).at(3), "a");
  options.node_rank = 1;
  EXPECT_EQ(reach_argv(options, command(), 1).front(), "/opt/a b/ljperf");
}

TEST(Slurm, SrunStartsOneTaskARank) {
  LaunchOptions options;
  options.launcher = "slurm";
  options.nodes = 2;
  options.gpus_per_node = 4;
  Words argv = srun_argv(options, command(), "run-1");
  EXPECT_EQ(argv.front(), "srun");
  for (const char* word :
       {"--nodes=2", "--ntasks-per-node=4", "--ntasks=8", "--gpus-per-node=4",
        "--kill-on-bad-exit=1", "--distribution=block:block", "--job-name=run-1"}) {
    EXPECT_TRUE(holds(argv, word)) << word;
  }
  EXPECT_EQ(argv.at(argv.size() - 2), "rank");
}

TEST(Slurm, InsideAnAllocation) {
  const base::Environment allocation{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "3"}};
  LaunchOptions options;
  options.launcher = "slurm";
  EXPECT_EQ(settled(options, allocation).node_count(), 3);  // all that it has
  EXPECT_EQ(settled(options, {}).node_count(), 1);
  options.hosts = {"b", "c"};
  LaunchOptions chosen = settled(options, allocation);
  EXPECT_EQ(chosen.node_count(), 2);
  EXPECT_TRUE(holds(srun_argv(chosen, command(), "run-1"), "--nodelist=b,c"));
  options.hosts = {"a", "b", "c", "d"};
  EXPECT_THROW(settled(options, allocation), base::UserError);
  options.hosts.clear();
  options.nodes = 4;
  EXPECT_THROW(settled(options, allocation), base::UserError);
}

// Runs the script's shell code with stand-ins for Slurm's and our programs.
base::Captured run_script(const std::string& script, const std::string& prelude) {
  base::SpawnOptions options;
  options.argv = {"bash", "-c", prelude + "\n" + script};
  options.environment = base::current_environment();
  options.environment["SLURM_JOB_ID"] = "7";
  return base::run_captured(options, "", std::chrono::seconds(20));
}

TEST(Slurm, BatchScript) {
  LaunchOptions options;
  options.launcher = "slurm";
  options.nodes = 2;
  options.max_restarts = 1;
  options.time_limit = "1:00:00";
  Launch launch = slurm_launch(options, job());
  EXPECT_EQ(launch.form, "script");
  EXPECT_EQ(launch.argv, (Words{"sbatch", "--parsable", "--output=/jobs/bert one/slurm-%j.log",
                                "/jobs/bert one/job.sh"}));
  for (const char* line :
       {"#SBATCH --job-name=bert\n", "#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=2\n",
        "#SBATCH --time=1:00:00\n", "#SBATCH --requeue\n", "#SBATCH --signal=B:USR1@60\n",
        "result='/jobs/bert one/result.json'\n", "'--set=a=$(id) '\\''x'\\'''"}) {
    EXPECT_NE(launch.text.find(line), std::string::npos) << line << " in\n" << launch.text;
  }
  options.max_restarts = 0;
  EXPECT_NE(slurm_launch(options, job()).text.find("#SBATCH --no-requeue\n"), std::string::npos);
}

BatchJob script_job(const std::string& program) {
  BatchJob batch;
  batch.argv = {"sh", "-c", program};
  batch.name = "a";
  batch.folder = "/nowhere";
  return batch;
}

TEST(Slurm, AFailedJobIsRequeuedAsOftenAsAsked) {
  LaunchOptions options;
  options.launcher = "slurm";
  options.max_restarts = 1;
  const std::string requeue = "scontrol() { echo \"scontrol $*\"; }";
  base::Captured first = run_script(batch_script(options, script_job("exit 1")), requeue);
  EXPECT_EQ(first.status.code, 0);  // Slurm takes the job back
  EXPECT_EQ(first.output, "scontrol requeue 7\n");
  base::Captured second =
      run_script(batch_script(options, script_job("exit 1")), requeue + "\nSLURM_RESTART_COUNT=1");
  EXPECT_EQ(second.status.code, 1);
  EXPECT_EQ(second.output, "");
  base::Captured bad_input = run_script(batch_script(options, script_job("exit 2")), requeue);
  EXPECT_EQ(bad_input.status.code, 2);
  EXPECT_EQ(bad_input.output, "");
  base::Captured done = run_script(batch_script(options, script_job("echo done")), requeue);
  EXPECT_EQ(done.status.code, 0);
  EXPECT_EQ(done.output, "done\n");
}

TEST(Slurm, AWarningEndsTheRunAndRequeues) {
  LaunchOptions options;
  options.launcher = "slurm";
  options.max_restarts = 1;
  BatchJob batch = script_job(
      "trap 'echo ended; exit 1' TERM; kill -USR1 $PPID; sleep 9 >/dev/null 2>&1 & wait");
  base::Captured warned =
      run_script(batch_script(options, batch), "scontrol() { echo \"scontrol $*\"; }");
  EXPECT_EQ(warned.status.code, 0) << warned.errors;
  EXPECT_EQ(warned.output, "ended\nscontrol requeue 7\n");
}

TEST(Slurm, HowAJobEnded) {
  JobEnd end = parse_job(
      "JobId=12 JobName=a UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) "
      "ExitCode=3:0 Command=/a JobState=x\n");
  EXPECT_EQ(end.id, "12");
  EXPECT_EQ(end.state, "FAILED");
  EXPECT_EQ(end.reason, "NonZeroExitCode");
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_NE(describe(end, script_job(""))
                .find("Slurm job 12 ended as FAILED (NonZeroExitCode, "
                      "exit code 3)"),
            std::string::npos);
  BatchJob odd = script_job("");
  odd.folder = "/a%j";
  EXPECT_THROW(sbatch_argv({}, odd), base::UserError);
}

TEST(RankEntry, TasksOnANode) {
  EXPECT_EQ(tasks_on_node("2(x2)", 1), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("4", 1), std::nullopt);
  EXPECT_EQ(tasks_on_node("2(x", 0), std::nullopt);
  EXPECT_EQ(tasks_on_node("a", 0), std::nullopt);
}

TEST(RankEntry, PlacesInTheLaunchersWords) {
  RankPlace slurm = place_from({{"SLURM_PROCID", "3"},
                                {"SLURM_NTASKS", "4"},
                                {"SLURM_STEP_ID", "0"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_NODEID", "1"},
                                {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                {"RANK", "0"},
                                {"WORLD_SIZE", "1"}});
  EXPECT_EQ(slurm.rank, 3);
  EXPECT_EQ(slurm.world_size, 4);
  EXPECT_EQ(slurm.local_rank, 1);
  EXPECT_EQ(slurm.local_world_size, 2);
  EXPECT_TRUE(slurm.by_slurm);
  RankPlace torch = place_from({{"RANK", "1"},
                                {"WORLD_SIZE", "2"},
                                {"LOCAL_RANK", "0"},
                                {"LOCAL_WORLD_SIZE", "1"},
                                {"TORCHELASTIC_RUN_ID", "a"},
                                {"SLURM_PROCID", "0"},
                                {"SLURM_NTASKS", "1"},
                                {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(torch.rank, 1);
  EXPECT_FALSE(torch.by_slurm);
  EXPECT_THROW(place_from({}), base::UserError);
  EXPECT_THROW(place_from({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), base::UserError);
}

TEST(Ray, OneBundleAHost) {
  LaunchOptions options;
  options.launcher = "ray";
  options.nodes = 2;
  base::OrderedJson task = ray_task(options, command(), /*gpus=*/true);
  EXPECT_EQ(task["strategy"], "STRICT_SPREAD");
  EXPECT_EQ(task["bundles"].dump(), R"([{"CPU":4,"GPU":4},{"CPU":4,"GPU":4}])");
  options.nodes = 1;
  task = ray_task(options, command(), /*gpus=*/false);
  EXPECT_EQ(task["strategy"], "STRICT_PACK");
  EXPECT_EQ(task["bundles"].dump(), R"([{"CPU":4}])");
}

TEST(Docker, LeastPrivilegeThatWorks) {
  LaunchOptions options;
  options.launcher = "docker";
  options.image = "registry.io/a/b:1";
  options.gpus_per_node = 8;
  ElsewhereJob one = job();
  one.environment = {{"HF_TOKEN", "hf_secret"}};
  Launch launch = docker_launch(options, one);
  for (const char* word :
       {"--ipc=host", "--net=host", "--cap-drop=ALL", "--security-opt=no-new-privileges",
        "--ulimit=memlock=-1:-1", "--gpus=8", "--env=HF_TOKEN", "--workdir=/home/me"}) {
    EXPECT_TRUE(holds(launch.argv, word)) << word;
  }
  EXPECT_FALSE(holds(launch.argv, "--privileged"));
  EXPECT_EQ(describe(launch, options, true).find("hf_secret"), std::string::npos);
  auto image = std::find(launch.argv.begin(), launch.argv.end(), options.image);
  ASSERT_NE(image, launch.argv.end());
  EXPECT_EQ(*(image + 1), "ljperf");
  one.working_directory = "/a,readonly";
  EXPECT_THROW(docker_launch(options, one), base::UserError);
}

}  // namespace
}  // namespace ljtrain::ljperf
