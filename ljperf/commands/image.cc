// ljperf image: the releases of the training image, and the rules that go with them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/errors.h"
#include "commands.h"
#include "doctor/network_value.h"
#include "doctor/run_doctor.h"
#include "image/compare.h"
#include "image/listing.h"
#include "image/notes.h"
#include "image/release.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf image list                                       every release known
  ljperf image show 25.10 --arch aarch64                  one in full
  ljperf image diff 25.07 26.05                           what changes
  ljperf image address --release 25.07 --region cn-beijing --vpc
  ljperf image check 25.07                                the manifest, then this machine against it
  ljperf image network --gpus 16                          which interface collectives should take
  ljperf image notes 0.1.0 --ablation ablation.json       release notes in Markdown

A release is a name, a tag, or the path of a manifest. Exit codes: 0 done, 1 a check failed, 2 bad input.
)";

struct ImageOptions {
  std::string release;
  std::string other;
  std::string architecture = "amd64";
  std::string region;
  std::string ablation;
  std::string since;
  std::string output;
  std::optional<int> gpus;
  bool vpc = false;
  bool json = false;
};
using Options = std::shared_ptr<ImageOptions>;

void print_json(const base::OrderedJson& json) { fmt::print("{}\n", json.dump(2)); }

void add_architecture(CLI::App* command, const Options& options) {
  command->add_option("--arch", options->architecture, "amd64 or aarch64")
      ->capture_default_str()
      ->check(CLI::IsMember({"amd64", "aarch64"}));
}

void add_json(CLI::App* command, const Options& options) {
  command->add_flag("--json", options->json, "One JSON document on standard output");
}

void add_list(CLI::App* parent, const Options& options) {
  CLI::App* command = parent->add_subcommand("list", "List the releases");
  add_json(command, options);
  command->callback([options] {
    if (!options->json) {
      fmt::print("{}", image::list_text(image::releases()));
      return;
    }
    base::OrderedJson all = base::OrderedJson::array();
    for (const image::Release& release : image::releases()) {
      all.push_back(image::to_json(release, "amd64"));
    }
    print_json({{"schema_version", image::kReleaseSchema}, {"releases", all}});
  });
}

void add_show(CLI::App* parent, const Options& options) {
  CLI::App* command = parent->add_subcommand("show", "Show a release in full");
  command->add_option("release", options->release, "Name, tag or manifest")->required();
  add_architecture(command, options);
  add_json(command, options);
  command->callback([options] {
    image::Release release = image::find_release(options->release);
    if (options->json) {
      print_json(image::to_json(release, options->architecture));
    } else {
      fmt::print("{}", image::show_text(release, options->architecture));
    }
  });
}

void add_diff(CLI::App* parent, const Options& options) {
  CLI::App* command = parent->add_subcommand("diff", "Say what changes between two releases");
  command->add_option("before", options->release, "Name, tag or manifest")->required();
  command->add_option("after", options->other, "Name, tag or manifest")->required();
  add_architecture(command, options);
  add_json(command, options);
  command->callback([options] {
    image::Release before = image::find_release(options->release);
    image::Release after = image::find_release(options->other);
    auto differences = image::compare(before, after, options->architecture);
    if (!options->json) {
      fmt::print("{}", image::diff_text(before, after, differences));
      return;
    }
    base::OrderedJson all = base::OrderedJson::array();
    for (const image::Difference& difference : differences) {
      all.push_back(
          {{"key", difference.key}, {"before", difference.before}, {"after", difference.after}});
    }
    print_json({{"schema_version", image::kReleaseSchema},
                {"before", before.name},
                {"after", after.name},
                {"differences", all}});
  });
}

void add_address(CLI::App* parent, const Options& options) {
  CLI::App* command = parent->add_subcommand(
      "address", "Print where to pull a release; what to know of it on standard error");
  command->add_option("--release", options->release, "Name, tag or manifest")->required();
  command->add_option("--region", options->region, "Region id, with --vpc");
  command->add_flag("--vpc", options->vpc, "The address inside the region's VPC");
  command->callback([options] {
    image::Release release = image::find_release(options->release);
    fmt::print("{}\n", image::address(release, options->region, options->vpc));
    if (options->vpc && !release.vpc_regions.empty() &&
        std::find(release.vpc_regions.begin(), release.vpc_regions.end(), options->region) ==
            release.vpc_regions.end()) {
      fmt::print(stderr, "{:<14} the notes name {} only; this one follows their pattern\n",
                 "region", fmt::join(release.vpc_regions, ", "));
    }
    fmt::print(stderr, "{}", image::caveats_text(release));
  });
}

void add_check(CLI::App* parent, const Options& options, CommandContext& context) {
  CLI::App* command = parent->add_subcommand(
      "check", "Check a manifest, then the driver, network and components here against it");
  command->add_option("release", options->release, "Name, tag or manifest")->required();
  add_json(command, options);
  command->callback([&context, options] {
    DoctorOptions doctor;
    doctor.release = options->release;
    doctor.json = options->json;
    doctor.only = {"image", "gpu.devices", "gpu.driver", "gpu.libcuda", "network", "python"};
    context.exit_code = run_doctor(doctor);
  });
}

void add_network(CLI::App* parent, const Options& options) {
  CLI::App* command = parent->add_subcommand(
      "network", "Print NCCL_SOCKET_IFNAME for this machine by the release's rule, or nothing");
  command->add_option("--release", options->release, "Name, tag or manifest (default: this one's)");
  constexpr int kMostGpus = 1024;
  command->add_option("--gpus", options->gpus, "GPUs a pod (default: those that are here)")
      ->check(CLI::Range(0, kMostGpus));
  command->callback([options] {
    image::Release release =
        options->release.empty() ? image::releases().back() : image::find_release(options->release);
    NetworkValue answer = network_value(real_machine(), release, options->gpus);
    fmt::print("{}", answer.value.empty() ? "" : answer.value + "\n");
    fmt::print(stderr, "{}\n", answer.why);
  });
}

void add_notes(CLI::App* parent, const Options& options) {
  CLI::App* command = parent->add_subcommand("notes", "Write release notes in Markdown");
  command->add_option("release", options->release, "Name, tag or manifest")->required();
  command->add_option("--ablation", options->ablation, "What `cnp ablate --json` wrote");
  command->add_option("--since", options->since, "Release to list the changes from");
  command->add_option("--output", options->output, "File to write (default: standard output)");
  command->callback([options] {
    image::Release release = image::find_release(options->release);
    image::Release since;
    image::NotesInput input{&release, nullptr, {}, options->ablation};
    if (!options->since.empty()) {
      since = image::find_release(options->since);
      input.since = &since;
    }
    if (!options->ablation.empty()) {
      input.ablation = image::read_ablation(base::JsonDocument::read(options->ablation));
    }
    std::string notes = image::write_notes(input);
    if (options->output.empty()) {
      fmt::print("{}", notes);
    } else {
      base::write_file_atomically(options->output, notes);
    }
  });
}

}  // namespace

void add_image(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "image", "Releases of the training image: list, show, diff, address, check, network, notes");
  auto options = std::make_shared<ImageOptions>();
  command->require_subcommand(1);
  add_list(command, options);
  add_show(command, options);
  add_diff(command, options);
  add_address(command, options);
  add_check(command, options, context);
  add_network(command, options);
  add_notes(command, options);
  command->footer(kExamples);
}

}  // namespace ljtrain::ljperf
