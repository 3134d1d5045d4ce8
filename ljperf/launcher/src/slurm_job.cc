// Submitting a batch job and waiting for its end.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "launcher/slurm.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::chrono::milliseconds kPollEvery{2000};
// sbatch retries by itself while the controller does not answer.
constexpr std::chrono::seconds kCommandPatience{120};
constexpr int kMostMisses = 30;  // queries in a row without an answer

// Slurm's commands retry for minutes while the controller does not answer: `stop_fd` ends that.
base::Captured run_command(std::vector<std::string> argv, int stop_fd = -1) {
  base::SpawnOptions options;
  options.argv = std::move(argv);
  options.environment = base::current_environment();
  return base::run_captured(options, "", kCommandPatience, stop_fd);
}

bool is_over(const std::string& state) {
  static constexpr std::array kGoingOn{"PENDING",     "CONFIGURING", "RUNNING",      "COMPLETING",
                                       "SUSPENDED",   "REQUEUED",    "RESIZING",     "SIGNALING",
                                       "STAGE_OUT",   "STOPPED",     "REQUEUE_HOLD", "REQUEUE_FED",
                                       "SPECIAL_EXIT"};
  return !state.empty() && std::find(kGoingOn.begin(), kGoingOn.end(), state) == kGoingOn.end();
}

// The job's id; empty when an interrupt ended it.
std::string submit(const LaunchOptions& options, const BatchJob& job,
                   const base::Interrupts& interrupts) {
  std::vector<std::string> argv = sbatch_argv(options, job);
  if (program_in_path("sbatch").empty() || program_in_path("scontrol").empty()) {
    throw base::user_error(
        "sbatch is not in PATH: --launcher slurm works on a login node of a Slurm cluster or "
        "inside an allocation");
  }
  base::write_file_atomically(job.folder / "job.sh", batch_script(options, job));
  base::Captured answer = run_command(argv, interrupts.fd());
  if (answer.stopped) {
    return "";
  }
  if (!answer.status.ok() || answer.timed_out) {
    throw base::run_error("Slurm does not take the job: {}", slurm_complaint(answer));
  }
  return answer.output.substr(0, answer.output.find_first_of(";\n"));  // ID[;CLUSTER]
}

// Ends the job and says what is known of that.
std::string cancel(const std::string& id) {
  base::Captured answer = run_command({"scancel", id});
  return answer.status.ok() && !answer.timed_out
             ? fmt::format("interrupted; Slurm job {} is cancelled", id)
             : fmt::format("interrupted, but Slurm job {} may go on: scancel {} fails: {}", id, id,
                           slurm_complaint(answer));
}

}  // namespace

JobEnd submit_and_wait(const LaunchOptions& options, const BatchJob& job,
                       const base::Interrupts& interrupts) {
  JobEnd end;
  end.id = submit(options, job, interrupts);
  if (end.id.empty()) {
    end.interrupted = true;
    end.reason = fmt::format(
        "interrupted while Slurm was asked to take the job; `squeue --name={}` tells whether it "
        "did",
        job.name);
    return end;
  }
  fmt::print(stderr, "Slurm job {} is submitted; script and log are in {}\n", end.id,
             job.folder.string());
  std::string told;
  for (int misses = 0; misses < kMostMisses;) {
    base::Captured answer =
        run_command({"scontrol", "--oneliner", "show", "job", end.id}, interrupts.fd());
    JobEnd now = parse_job(answer.output);
    misses = answer.status.ok() && !now.state.empty() ? 0 : misses + 1;
    std::string words =
        now.state == "PENDING" ? fmt::format("PENDING ({})", now.reason) : now.state;
    if (misses == 0 && words != told) {
      fmt::print(stderr, "Slurm job {}: {}\n", end.id, words);
      told = words;
    }
    if (misses == 0 && is_over(now.state)) {
      return now;
    }
    pollfd interrupt{interrupts.fd(), POLLIN, 0};
    ::poll(&interrupt, 1, static_cast<int>(kPollEvery.count()));
    if (interrupts.arrived()) {
      end.state = "CANCELLED";
      end.interrupted = true;
      end.reason = cancel(end.id);
      return end;
    }
  }
  throw base::run_error(
      "Slurm no longer answers for job {}; its script and log are in {} (squeue --job {} shows it)",
      end.id, job.folder.string(), end.id);
}

}  // namespace ljtrain::ljperf
