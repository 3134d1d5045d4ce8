#include "pickle.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "test_snapshots.h"

namespace ljtrain::recompute {
namespace {

using Kind = PickleValue::Kind;

std::string complaint(std::string bytes) {
  try {
    PickleDocument::parse(std::move(bytes), "x.pickle");
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

PickleValue only(const std::string& body) {
  return PickleDocument::parse("\x80\x04" + body + ".", "x").root();
}

TEST(Pickle, ReadsNumbers) {
  using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
  EXPECT_EQ(only("K\xff").integer, 255);
  EXPECT_EQ(only("M\x01\x02").integer, 513);
  EXPECT_EQ(only("J\xfe\xff\xff\xff").integer, -2);
  EXPECT_EQ(only("\x8a\x00"s).integer, 0);
  EXPECT_EQ(only("\x8a\x01\xff").integer, -1);
  EXPECT_EQ(only("\x8a\x02\xff\x00"s).integer, 255);
  EXPECT_EQ(only("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s).integer, INT64_MIN);
  EXPECT_EQ(only("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"s).kind, Kind::kBigInteger);
  EXPECT_EQ(only("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xff"s).integer, -1);
  EXPECT_EQ(only("G\x3f\xf8\x00\x00\x00\x00\x00\x00"s).real(), 1.5);
  EXPECT_EQ(only("\x88").integer, 1);
  EXPECT_EQ(only("N").kind, Kind::kNone);
}

TEST(Pickle, ReadsContainersOfBothStyles) {
  for (int protocol : {2, 4}) {
    PickleDocument document =
        PickleDocument::parse(pickled({{"a", {1, "x", nullptr}}, {"b", 2.5}}, protocol), "x");
    ASSERT_EQ(document.root().kind, Kind::kDictionary);
    const auto& entries = document.dictionary(document.root());
    ASSERT_EQ(entries.size(), 2U);
    EXPECT_EQ(document.text(entries[0].first), "a");
    ASSERT_EQ(document.list(entries[0].second).size(), 3U);
    EXPECT_EQ(document.text(document.list(entries[0].second)[1]), "x");
    EXPECT_EQ(entries[1].second.real(), 2.5);
  }
}

TEST(Pickle, SharedAndRecursiveListsAreFine) {
  PickleDocument document =
      PickleDocument::parse("\x80\x04]\x94h" + std::string(1, '\0') + "a.", "x");
  EXPECT_EQ(document.list(document.root()).size(), 1U);
  EXPECT_EQ(document.list(document.root())[0].index, document.root().index);
}

TEST(Pickle, RefusesCodeByName) {
  EXPECT_NE(complaint("\x80\x02"
                      "cos\nsystem\n.")
                .find("GLOBAL `os system`"),
            std::string::npos);
  EXPECT_NE(complaint("\x80\x04\x8c\x02os\x8c\x06system\x93.").find("STACK_GLOBAL `os system`"),
            std::string::npos);
  for (const char* body : {"R", "b", "o", "\x81", "\x92", "\x82\x01", "Q", "\x97"}) {
    EXPECT_NE(complaint(std::string("\x80\x04NN") + body).find("refused"), std::string::npos)
        << body;
  }
}

TEST(Pickle, RefusesWhatIsBroken) {
  for (std::string bad : {std::string(),
                          std::string("\x80"),
                          std::string("\x80\x04"),
                          std::string("\x80\x06N."),
                          std::string("\x80\x01N."),
                          std::string("(lp0\n."),
                          std::string("{\"a\":1}"),
                          std::string("\x1f\x8b\x08"),
                          std::string("PK\x03\x04"),
                          std::string("\x80\x04."),
                          std::string("\x80\x04K"),
                          std::string("\x80\x04X\xff\xff\xff\xff"),
                          std::string("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"),
                          std::string("\x80\x04h\x05."),
                          std::string("\x80\x04Nr\xff\xff\xff\xff."),
                          std::string("\x80\x04"
                                      "e."),
                          std::string("\x80\x04N(e."),
                          std::string("\x80\x04}(Nu."),
                          std::string("\x80\x04Na."),
                          std::string("\x80\x04NN(s."),
                          std::string("\x80\x04\x86."),
                          std::string("\x80\x04\xff."),
                          "\x80\x04" + std::string(5000, '(')}) {
    std::string text = complaint(bad);
    EXPECT_GT(text.size(), 15U) << bad;
    EXPECT_EQ(text.find('\n'), std::string::npos) << bad;
  }
}

TEST(Pickle, DeepNestingTakesNoStack) {
  std::string deep = "\x80\x04]\x94";
  for (int i = 0; i < 500'000; ++i) {
    deep += "]\x86";  // a pair of the value so far and a new list
  }
  EXPECT_EQ(PickleDocument::parse(deep + ".", "x").root().kind, Kind::kList);
}

}  // namespace
}  // namespace ljtrain::recompute
