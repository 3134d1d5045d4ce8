// JUnit XML as the CI systems read it: https://github.com/testmoapp/junitxml names what they agree on.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "cnp/gate.h"

namespace ljtrain::cnp {
namespace {

// Text for an attribute or an element. XML 1.0 has no way to write most control characters.
std::string escaped(std::string_view text) {
  // A round trip through JSON replaces what is no UTF-8.
  std::string clean =
      base::Json::parse(base::Json(text).dump(-1, ' ', false, base::Json::error_handler_t::replace))
          .get<std::string>();
  std::string result;
  for (std::size_t i = 0; i < clean.size(); ++i) {
    char c = clean[i];
    bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    // U+FFFE and U+FFFF are UTF-8 and no XML: EF BF BE, EF BF BF.
    bool no_character = clean.compare(i, 2, "\xEF\xBF") == 0 && i + 2 < clean.size() &&
                        static_cast<unsigned char>(clean[i + 2]) >= 0xBE;
    if (no_character) {
      result += "\xEF\xBF\xBD";
      i += 2;
    } else if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else if (c == '\n' || c == '\t') {
      result += fmt::format("&#{};", static_cast<int>(c));
    } else if (control) {
      result += "\xEF\xBF\xBD";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

std::string junit_xml(const GateVerdict& verdict, std::string_view suite) {
  auto count = [&](CheckResult result) {
    return std::count_if(verdict.checks.begin(), verdict.checks.end(),
                         [=](const Check& check) { return check.result == result; });
  };
  std::string counts = fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{:.3f}\"",
                                   verdict.checks.size(), count(CheckResult::kFail),
                                   count(CheckResult::kCannotTell), verdict.seconds);
  std::string xml = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuites name=\"cnp gate\" {0}>\n"
      "  <testsuite name=\"{1}\" {0}>\n",
      counts, escaped(suite));
  for (const Check& check : verdict.checks) {
    std::string sentence = escaped(check.sentence);
    xml += fmt::format("    <testcase classname=\"cnp.gate\" name=\"{}\"", escaped(check.id));
    if (check.result == CheckResult::kPass) {
      xml += fmt::format(">\n      <system-out>{}</system-out>\n    </testcase>\n", sentence);
      continue;
    }
    const char* element = check.result == CheckResult::kFail ? "failure" : "error";
    xml += fmt::format(">\n      <{0} message=\"{1}\">{1}</{0}>\n    </testcase>\n", element,
                       sentence);
  }
  return xml + "  </testsuite>\n</testsuites>\n";
}

}  // namespace ljtrain::cnp
