#include "image/driver_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "embedded.h"

namespace ljtrain::image {
namespace {

// nvmlBrandType_t of NVML's API reference.
constexpr std::array kDataCenterBrands{2, 4, 7, 8, 9, 10, 11, 14};
constexpr std::array kWorkstationBrands{1, 3, 12, 13};
constexpr std::array kConsumerBrands{5, 6, 15, 16};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

Version version_of(std::string_view text) {
  std::optional<Version> version = parse_version(text);
  if (!version.has_value()) {
    throw std::logic_error(fmt::format("facts/cuda_driver.csv: `{}` is no version", text));
  }
  return *version;
}

std::vector<DriverRow> parse_table(std::string_view table) {
  std::vector<DriverRow> rows;
  for (std::string_view line : split(table, '\n')) {
    std::vector<std::string_view> cells = split(line, ',');
    if (line.starts_with('#') || line.starts_with("cuda,") || cells.size() < 7) {
      continue;
    }
    DriverRow row{.cuda = version_of(cells[0]),
                  .update = std::string(cells[1]),
                  .toolkit_driver = version_of(cells[2]),
                  .minor_minimum = version_of(cells[4]),
                  .forward_package = std::string(cells[5]),
                  .forward_from = {}};
    for (std::string_view branch : split(cells[6], ';')) {
      if (std::optional<Version> version = parse_version(branch)) {
        row.forward_from.push_back(version->major());
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// The first release of that CUDA: what any update of it runs on, too.
const DriverRow* row_of(const Version& cuda) {
  const DriverRow* lowest = nullptr;
  for (const DriverRow& row : driver_table()) {
    bool same = row.cuda.major() == cuda.major() && row.cuda.minor() == cuda.minor();
    if (same && (lowest == nullptr || row.toolkit_driver < lowest->toolkit_driver)) {
      lowest = &row;
    }
  }
  return lowest;
}

std::optional<Version> minor_minimum(const Version& cuda) {
  for (const DriverRow& row : driver_table()) {
    if (row.cuda.major() == cuda.major()) {
      return row.minor_minimum;
    }
  }
  return std::nullopt;
}

std::string upgrade(const Version& to) {
  return fmt::format("upgrade the driver on the host to {} or newer", to.text());
}

DriverAnswer forward_answer(const DriverQuestion& question, const DriverRow& row,
                            const std::string& expected) {
  std::string short_of = fmt::format("driver {} is older than CUDA {} needs",
                                     question.driver.text(), question.cuda.text());
  std::string upgrade_fix = upgrade(row.minor_minimum);
  int branch = question.driver.major();
  bool listed =
      std::find(row.forward_from.begin(), row.forward_from.end(), branch) != row.forward_from.end();
  if (!listed) {
    return {Verdict::kFailure, "none",
            fmt::format("{}, and NVIDIA lists no forward compatibility from branch R{}", short_of,
                        branch),
            expected, upgrade_fix};
  }
  if (question.gpu == GpuClass::kConsumer) {
    return {Verdict::kFailure, "none",
            fmt::format("{}; forward compatibility exists on data-center GPUs only (elsewhere it "
                        "ends in CUDA error 804)",
                        short_of),
            expected, upgrade_fix};
  }
  if (!question.forward_compatibility) {
    return {Verdict::kFailure, "none", short_of, expected,
            fmt::format("{}{}", upgrade_fix,
                        question.gpu == GpuClass::kDataCenter
                            ? fmt::format(", or install {} and put its libcuda first on "
                                          "LD_LIBRARY_PATH",
                                          row.forward_package)
                            : "")};
  }
  bool sure = question.gpu == GpuClass::kDataCenter;
  return {sure ? Verdict::kOk : Verdict::kWarning, "forward",
          fmt::format("CUDA {} on driver {} by forward compatibility ({}){}", question.cuda.text(),
                      question.driver.text(), row.forward_package,
                      sure ? "" : ", which only data-center and some workstation GPUs have"),
          expected, sure ? "" : upgrade_fix + " to be sure"};
}

}  // namespace

const std::vector<DriverRow>& driver_table() {
  static const std::vector<DriverRow> rows = parse_table(embedded_driver_table());
  return rows;
}

GpuClass gpu_class(int brand, std::string_view name) {
  auto among = [brand](const auto& brands) {
    return std::find(brands.begin(), brands.end(), brand) != brands.end();
  };
  // The brand "NVIDIA" also stands on some RTX cards: there the name decides.
  if (name.find("GeForce") != std::string_view::npos ||
      name.find("TITAN") != std::string_view::npos || among(kConsumerBrands)) {
    return GpuClass::kConsumer;
  }
  if (name.find("RTX") != std::string_view::npos || name.find("Quadro") != std::string_view::npos ||
      among(kWorkstationBrands)) {
    return GpuClass::kWorkstation;
  }
  return among(kDataCenterBrands) ? GpuClass::kDataCenter : GpuClass::kUnknown;
}

DriverAnswer judge_driver(const DriverQuestion& question) {
  const Version& driver = question.driver;
  const Version& cuda = question.cuda;
  std::optional<Version> minimum = minor_minimum(cuda);
  const DriverRow* row = row_of(cuda);
  if (!minimum.has_value()) {
    return {Verdict::kWarning, "none",
            fmt::format("CUDA {} is not in the table of drivers", cuda.text()),
            "a CUDA whose driver is known",
            "look the driver up in the CUDA release notes; this program is older than that CUDA"};
  }
  std::string expected = fmt::format("{} or newer for CUDA {}.x", minimum->text(), cuda.major());
  if (row != nullptr && driver >= row->toolkit_driver) {
    return {Verdict::kOk, "toolkit",
            fmt::format("driver {} is at least the one of CUDA {}", driver.text(), cuda.text()),
            expected, ""};
  }
  if (driver >= *minimum) {
    return {Verdict::kOk, "minor",
            fmt::format("CUDA {} on driver {} by minor version compatibility", cuda.text(),
                        driver.text()),
            expected, ""};
  }
  // NVIDIA gives branch R580 for CUDA 13; that 580.65.06 is its first release is inferred.
  constexpr int kInferredMajor = 13;
  if (cuda.major() >= kInferredMajor && driver.major() == minimum->major()) {
    return {Verdict::kWarning, "minor",
            fmt::format("driver {} is of the right branch, but before its first release {}",
                        driver.text(), minimum->text()),
            expected, upgrade(*minimum)};
  }
  if (row == nullptr) {
    return {Verdict::kFailure, "none",
            fmt::format("driver {} is older than CUDA {} needs", driver.text(), cuda.text()),
            expected, upgrade(*minimum)};
  }
  return forward_answer(question, *row, expected);
}

DriverAnswer judge_driver(const DriverQuestion& question, const DriverPolicy& policy) {
  DriverAnswer answer = judge_driver(question);
  const Version& driver = question.driver;
  if (driver >= policy.minimum) {
    return answer;
  }
  bool listed = std::any_of(
      policy.data_center_also.begin(), policy.data_center_also.end(),
      [&](const Version& lowest) { return driver.major() == lowest.major() && driver >= lowest; });
  bool data_center = question.gpu == GpuClass::kDataCenter;
  bool to_upgrade = std::find(policy.must_upgrade.begin(), policy.must_upgrade.end(),
                              driver.major()) != policy.must_upgrade.end();
  answer.expected = fmt::format("{} or newer (the release asks for it)", policy.minimum.text());
  if (answer.verdict == Verdict::kFailure) {
    // A branch that NVIDIA's table no longer names but the release does, with its libcuda in place.
    if (data_center && listed && question.forward_compatibility) {
      answer.verdict = Verdict::kWarning;
      answer.rule = "policy";
      answer.why += fmt::format("; the release says R{} runs", driver.major());
    }
    return answer;
  }
  answer.verdict = Verdict::kWarning;
  answer.rule = "policy";
  answer.why = fmt::format("driver {} runs CUDA {}, but the release asks for {} or newer{}",
                           driver.text(), question.cuda.text(), policy.minimum.text(),
                           listed && data_center ? fmt::format(" (or this R{} on data-center "
                                                               "GPUs)",
                                                               driver.major())
                           : to_upgrade ? fmt::format(" and R{} to be upgraded", driver.major())
                                        : "");
  answer.fix = upgrade(policy.minimum) + " when you can";
  return answer;
}

DriverAnswer judge_halves(const DriverHalves& halves) {
  std::string both =
      fmt::format("kernel module {}, libcuda {}{}", halves.kernel.text(), halves.libcuda.text(),
                  halves.from_compat_package ? " of a cuda-compat package" : "");
  if (!halves.from_compat_package) {
    if (halves.kernel == halves.libcuda) {
      return {Verdict::kOk, "same", both, "the same version twice", ""};
    }
    return {Verdict::kFailure, "none", both + ": CUDA error 803, the halves of the driver differ",
            "the same version twice",
            "reboot, or reload the kernel module, after an upgrade of the driver; in a container "
            "start it anew, so that the host's libcuda is mounted"};
  }
  constexpr const char* kNewer = "a cuda-compat package newer than the driver, or none";
  if (halves.libcuda.major() <= halves.kernel.major()) {
    return {Verdict::kFailure, "none",
            both + ": not newer than the driver, which ends in CUDA error 803", kNewer,
            "take the cuda-compat folder off LD_LIBRARY_PATH: the driver itself is new enough"};
  }
  if (halves.gpu == GpuClass::kConsumer) {
    return {Verdict::kFailure, "none",
            both + ": CUDA error 804, forward compatibility exists on data-center GPUs only",
            kNewer,
            "take the cuda-compat folder off LD_LIBRARY_PATH and upgrade the driver instead"};
  }
  return {Verdict::kOk, "forward", both, kNewer, ""};
}

}  // namespace ljtrain::image
