#include "cnp/record_schema.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ljtrain::cnp {
namespace {

using base::Json;

// What violations() says of the first fault, with its place; "" when there is none.
std::string fault(const char* schema, const char* value) {
  auto wrong = violations(Json::parse(value), Json::parse(schema));
  return wrong.empty() ? "" : wrong.front().where.to_string() + ": " + wrong.front().message;
}

struct Case {
  const char* schema;
  const char* value;
  const char* fault;
};

class SchemaKeyword : public testing::TestWithParam<Case> {};

TEST_P(SchemaKeyword, AcceptsAndRefuses) {
  EXPECT_EQ(fault(GetParam().schema, GetParam().value), GetParam().fault) << GetParam().schema;
}

INSTANTIATE_TEST_SUITE_P(
    All, SchemaKeyword,
    testing::Values(
        Case{R"({"type": "integer"})", "1.0", ""}, Case{R"({"type": "integer"})", "1e300", ""},
        Case{R"({"type": "integer"})", "1.5", ": must be of type integer, and is number"},
        Case{R"({"type": "integer"})", "true", ": must be of type integer, and is boolean"},
        Case{R"({"type": ["number", "null"]})", "null", ""},
        Case{R"({"type": ["number", "null"]})", "\"1\"",
             ": must be of type number or null, and is string"},
        Case{R"({"enum": ["a", "b"]})", "\"b\"", ""},
        Case{R"({"enum": ["a", "b"]})", "\"c\"", ": must be \"a\" or \"b\", and is \"c\""},
        Case{R"({"const": 1})", "1.0", ""},
        Case{R"({"const": 1})", "true", ": must be 1, and is true"},
        Case{R"({"minimum": 0})", "0", ""}, Case{R"({"minimum": 0})", "\"text\"", ""},
        Case{R"({"minimum": 0})", "-0.5", ": must be at least 0, and is -0.5"},
        Case{R"({"maximum": 9007199254740991})", "18446744073709551615",
             ": must be at most 9007199254740991, and is 18446744073709551615"},
        Case{R"({"minItems": 2})", "[1]", ": must have at least 2 elements, and has 1"},
        Case{R"({"maxItems": 2})", "[1, 2]", ""},
        Case{R"({"maxItems": 1})", "[1, 2]", ": must have at most 1 elements, and has 2"},
        Case{R"({"items": {"type": "string"}})", "[\"a\", 1]",
             "/1: must be of type string, and is integer"},
        Case{R"({"required": ["a"]})", "{}", ": has no `a`"},
        Case{R"({"properties": {"a": {"type": "null"}}})", R"({"b": 1})", ""},
        Case{R"({"properties": {"a/b": {"type": "null"}}})", R"({"a/b": 1})",
             "/a~1b: must be of type null, and is integer"},
        Case{R"({"properties": {"a": {}}, "additionalProperties": {"type": "string"}})",
             R"({"a": 1, "b": 2})", "/b: must be of type string, and is integer"},
        Case{R"({"additionalProperties": false})", R"({"b": 2})", "/b: is not allowed here"},
        // The branch that got furthest speaks.
        Case{R"({"anyOf": [{"type": "null"}, {"items": {"type": "null"}}]})", "[1]",
             "/0: must be of type null, and is integer"},
        // Keywords beside $ref hold too, as they do since draft 2019-09.
        Case{R"({"$ref": "#/$defs/n", "maximum": 1, "$defs": {"n": {"type": "number"}}})", "2",
             ": must be at most 1, and is 2"}));

TEST(RecordSchema, IsTheFileInTheRepository) {
  std::ifstream file(std::string(LJTRAIN_SOURCE_DIR) + "/cnp/schema/record.schema.json");
  EXPECT_EQ(Json::parse(file), record_schema());
}

TEST(RecordSchema, UnknownKeywordIsNotPassedOver) {
  EXPECT_THROW(violations(Json(1), Json::parse(R"({"multipleOf": 2})")), std::logic_error);
  EXPECT_THROW(violations(Json(1), Json::parse(R"({"type": "float"})")), std::logic_error);
}

// A schema's keywords are looked at only where a document leads, so a rare branch could hide one
// that is not supported: walk them all.
TEST(RecordSchema, UsesOnlySupportedKeywords) {
  std::vector<Json> open = {record_schema()};
  while (!open.empty()) {
    Json schema = open.back();
    open.pop_back();
    Json alone = schema;
    alone["$defs"] = record_schema()["$defs"];  // for $ref
    EXPECT_NO_THROW(violations(Json(nullptr), alone));
    for (const char* named : {"properties", "$defs"}) {
      if (!schema.contains(named)) continue;
      for (const auto& [name, member] : schema[named].items()) open.push_back(member);
    }
    for (const char* single : {"items", "additionalProperties"}) {
      if (schema.contains(single)) open.push_back(schema[single]);
    }
    if (!schema.contains("anyOf")) continue;
    for (const Json& branch : schema["anyOf"]) open.push_back(branch);
  }
}

}  // namespace
}  // namespace ljtrain::cnp
