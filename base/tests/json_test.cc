#include "base/json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/errors.h"

namespace ljtrain::base {
namespace {

std::string error_of(const std::string& text) {
  try {
    JsonDocument::parse(text, "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonDocument, ErrorNamesLineAndColumn) {
  EXPECT_EQ(error_of("{\n  \"a\": 1,\n  \"b\": oops\n}").find("config.json:3:8: not valid JSON: "),
            0U);
  EXPECT_EQ(error_of("").find("config.json:1:1: not valid JSON: "), 0U);
}

TEST(JsonDocument, AnErrorIsShortHoweverLongItsCause) {
  for (const std::string& text :
       {"[" + std::string(1'000'000, '9') + "]", "[\"" + std::string(1'000'000, 'x') + "\" oops]",
        std::string("[\"\x1b[31m")}) {
    std::string error = error_of(text);
    EXPECT_NE(error.find("JSON: "), std::string::npos);
    EXPECT_LT(error.size(), 400U);
    EXPECT_EQ(error.find('\x1b'), std::string::npos);
    EXPECT_EQ(error.find("json.exception"), std::string::npos);
  }
}

TEST(JsonDocument, WhereNamesTheLineOfAKey) {
  JsonDocument document = JsonDocument::parse(
      "{\n \"a\": {\n  \"hidden_size\": 3,\n  \"list\": [1,\n   {\"x\": 2}]\n }\n}", "ds.json");
  EXPECT_EQ(document.where("/a/hidden_size"_json_pointer), "ds.json:3: key `a.hidden_size`");
  EXPECT_EQ(document.where("/a/list/1/x"_json_pointer), "ds.json:5: key `a.list.1.x`");
  EXPECT_EQ(document.where("/a/absent"_json_pointer), "ds.json: key `a.absent`");
}

TEST(JsonDocument, DeepNestingIsRefusedNotCrashed) {
  EXPECT_NE(error_of(std::string(100000, '[') + std::string(100000, ']')).find("nested deeper"),
            std::string::npos);
}

TEST(JsonDocument, NumbersBeyondRangeAreAUserError) {
  for (const char* text : {"1e999", "{\"a\": -1e999}", "[1e400]"}) {
    EXPECT_NE(error_of(text).find("config.json: not usable JSON"), std::string::npos) << text;
  }
}

TEST(WriteFileAtomically, LeavesNothingBehindWhenItFails) {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / "ljtrain_json_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "taken");
  EXPECT_THROW(write_file_atomically(folder / "taken", "x"), UserError);
  EXPECT_THROW(write_file_atomically(folder / "no" / "such", "x"), UserError);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_file_atomically(folder / "pipe", "x"), UserError);
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  std::filesystem::remove(folder / "pipe");
  write_file_atomically(folder / "file", "old");
  write_file_atomically(folder / "file", "new");
  std::ifstream stream(folder / "file");
  std::stringstream content;
  content << stream.rdbuf();
  EXPECT_EQ(content.str(), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ljtrain::base
