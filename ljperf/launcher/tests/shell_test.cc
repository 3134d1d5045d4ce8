#include "launcher/shell.h"

#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "base/process.h"

namespace ljtrain::ljperf {
namespace {

// What a real shell makes of the line: its arguments, each ended by a NUL.
std::string read_back(const std::string& words) {
  base::SpawnOptions options;
  options.argv = {"sh", "-c", "printf '%s\\0' " + words};
  options.environment = base::current_environment();
  base::Captured captured = base::run_captured(options, "", std::chrono::seconds(20));
  EXPECT_TRUE(captured.status.ok()) << captured.errors;
  return captured.output;
}

std::string with_ends(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += word + '\0';
  }
  return text;
}

TEST(Shell, PlainWordsStayReadable) {
  EXPECT_EQ(shell_join({"ljperf", "benchmark", "--model", "deepspeed/llama3-8b", "--set=a"}),
            "ljperf benchmark --model deepspeed/llama3-8b --set=a");
  EXPECT_EQ(shell_quote(""), "''");
}

TEST(Shell, HostileWordsAreReadBackAsTheyWere) {
  const std::vector<std::string> words{"",
                                       "a b",
                                       "$(touch /tmp/x)",
                                       "`id`",
                                       "'; rm -rf / #",
                                       "a'b''c\"d",
                                       "\\",
                                       "\\'",
                                       "line\nbreak",
                                       "~",
                                       "~root",
                                       "*",
                                       "[a-z]?",
                                       "{a,b}",
                                       "a=b",
                                       "-n",
                                       "!history",
                                       "tab\there",
                                       "$HOME",
                                       "&& true",
                                       "\x7f\x01",
                                       "\xc3\xa9\xff"};
  EXPECT_EQ(read_back(shell_join(words)), with_ends(words));
}

TEST(Shell, RandomBytesAreReadBackAsTheyWere) {
  std::mt19937 random(20260105);
  const std::string special = "'\"\\$`!*?[]{}()<>|&;#~=\n\t -";
  for (int batch = 0; batch < 20; ++batch) {
    std::vector<std::string> words;
    for (int i = 0; i < 50; ++i) {
      std::string word(random() % 12, ' ');
      for (char& c : word) {
        c = random() % 2 == 0 ? special[random() % special.size()]
                              : static_cast<char>(1 + random() % 255);
      }
      words.push_back(word);
    }
    ASSERT_EQ(read_back(shell_join(words)), with_ends(words));
  }
}

TEST(Shell, NulIsRefused) {
  EXPECT_THROW(shell_quote(std::string_view("a\0b", 3)), base::UserError);
}

}  // namespace
}  // namespace ljtrain::ljperf
