#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "doctor/run_doctor.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::size_t kColumns = 98;
constexpr std::size_t kIndent = 27;  // "warn  limits.address-space  "

// Columns that a text takes on a terminal: bytes that begin a UTF-8 character.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0U) != 0x80U; }));
}

// The text broken at blanks into lines that fit beside the indentation.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + width(word) > kColumns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += width(word);
  }
  return result;
}

std::size_t count_of(std::span<const Finding> findings, Status status) {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [status](const Finding& finding) { return finding.status == status; }));
}

std::string line(const Finding& finding) {
  std::string head = fmt::format("{:<5} {:<20} ", status_name(finding.status), finding.id);
  return head + wrapped(finding.found, std::max(width(head), kIndent)) + "\n";
}

std::string trouble(const Finding& finding) {
  std::string text = line(finding);
  for (const auto& [name, value] :
       {std::pair("expected", finding.expected), std::pair("fix", finding.fix)}) {
    if (!value.empty()) {
      std::string head = fmt::format("{:>{}}: ", name, kIndent - 2);
      text += head + wrapped(value, head.size()) + "\n";
    }
  }
  return text;
}

}  // namespace

base::OrderedJson findings_json(std::span<const Finding> findings) {
  base::OrderedJson checks = base::OrderedJson::array();
  for (const Finding& finding : findings) {
    checks.push_back({{"id", finding.id},
                      {"status", status_name(finding.status)},
                      {"found", finding.found},
                      {"expected", finding.expected},
                      {"fix", finding.fix}});
  }
  base::OrderedJson counts;
  for (Status status : {Status::kOk, Status::kWarn, Status::kFail, Status::kSkip}) {
    counts[std::string(status_name(status))] = count_of(findings, status);
  }
  const char* status = counts["fail"] > 0 ? "fail" : counts["warn"] > 0 ? "warn" : "ok";
  return {{"schema_version", 1}, {"status", status}, {"counts", counts}, {"checks", checks}};
}

std::string findings_text(std::span<const Finding> findings, bool brief) {
  std::string text;
  for (const Finding& finding : findings) {
    text += finding.status == Status::kOk && !brief ? line(finding) : "";
  }
  std::string skipped;
  for (const Finding& finding : findings) {
    if (finding.status == Status::kSkip && !brief) {
      skipped += (skipped.empty() ? "" : ", ") + finding.id;
    }
  }
  if (!skipped.empty()) {
    text += fmt::format("{:<{}}", "skip", kIndent) + wrapped(skipped, kIndent) + "\n";
  }
  // Last, where the eye is.
  for (Status status : {Status::kWarn, Status::kFail}) {
    for (const Finding& finding : findings) {
      text += finding.status == status ? (brief ? "" : "\n") + trouble(finding) : "";
    }
  }
  text += fmt::format("{}{} ok, {} warnings, {} failures, {} skipped (--json says why)\n",
                      brief ? "" : "\n", count_of(findings, Status::kOk),
                      count_of(findings, Status::kWarn), count_of(findings, Status::kFail),
                      count_of(findings, Status::kSkip));
  return text;
}

}  // namespace ljtrain::ljperf
