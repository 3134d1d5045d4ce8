// Slurm as the engine: srun inside an allocation; outside of one a batch script that runs the same
// command there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/interrupts.h"
#include "base/process.h"
#include "launcher/engine_group.h"
#include "launcher/launch_options.h"
#include "launcher/rank_command.h"

namespace ljtrain::ljperf {

// Whether this process runs inside a job's allocation (a batch script, or salloc).
bool inside_allocation(const base::Environment& environment);
// The nodes of that allocation.
int allocated_nodes(const base::Environment& environment);

// One task a rank, bound by Slurm to its cores; the first failure ends all. `run` is the name of the
// step.
std::vector<std::string> srun_argv(const LaunchOptions& options, const RankCommand& command,
                                   const std::string& run);

// Sends SIGTERM to all tasks of the step `run` of this job: srun itself, asked to end, kills them
// before they could keep what they have.
void ask_step_to_end(const std::string& run);

// The batch script. `argv` is what runs inside the allocation, its standard output goes to `result`
// (a file; empty: into the job's log).
struct BatchJob {
  std::vector<std::string> argv;
  std::string name;
  int nodes = 1;
  int ranks_per_node = 1;
  std::filesystem::path folder;  // job.sh, slurm-JOB.log
  std::filesystem::path result;
};
std::string batch_script(const LaunchOptions& options, const BatchJob& job);
std::vector<std::string> sbatch_argv(const LaunchOptions& options, const BatchJob& job);

// Why a command of Slurm failed, by its last error or fatal line: those before it say what followed.
std::string slurm_complaint(const base::Captured& answer);

// How a job ended, as `scontrol show job` tells it.
struct JobEnd {
  std::string id;
  std::string state;  // COMPLETED, FAILED, TIMEOUT, NODE_FAIL, ...
  std::string reason;
  int exit_code = 0;
  int signal = 0;
  bool interrupted = false;  // by our user: `reason` is a sentence on what became of the job
};
// Of `scontrol --oneliner show job ID`.
JobEnd parse_job(const std::string& text);

// Writes the script, submits it, tells on standard error what becomes of it, and waits for its end.
// Throws UserError when there is no Slurm here, RunError when Slurm refuses the job.
JobEnd submit_and_wait(const LaunchOptions& options, const BatchJob& job,
                       const base::Interrupts& interrupts);

// One sentence on a job that did not complete.
std::string describe(const JobEnd& end, const BatchJob& job);

// The address of the first node of this allocation, for MASTER_ADDR, and a port that depends on the
// job and step only. Throws RunError.
struct Rendezvous {
  std::string address;
  int port = 0;
};
Rendezvous slurm_rendezvous(const base::Environment& environment);

}  // namespace ljtrain::ljperf
