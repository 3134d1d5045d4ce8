#include "cnp/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/errors.h"
#include "cnp/record_schema.h"
#include "sample_records.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using base::JsonDocument;
using base::OrderedJson;

Record reread(const OrderedJson& json) {
  return from_json(JsonDocument::parse(json.dump(2), "run.json"));
}

std::string complaint(const OrderedJson& json) {
  try {
    reread(json);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

// Every leaf of the full sample differs from a default-made record's, or is listed here: so a
// member that reading or writing forgets shows up in the round trip below.
TEST(Record, RoundTripKeepsEveryMember) {
  for (const Record& record : sample_records()) {
    OrderedJson json = to_json(record);
    EXPECT_EQ(to_json(reread(json)).dump(2), json.dump(2));
    EXPECT_TRUE(validate(Json(json)).empty());
  }
}

TEST(Record, EveryKeyOfTheSchemaIsWritten) {
  Json written = Json(to_json(full_record()));
  const Json& schema = record_schema();
  std::vector<std::pair<const Json*, const Json*>> open = {{&schema, &written}};
  while (!open.empty()) {
    auto [rule, value] = open.back();
    open.pop_back();
    if (rule->contains("$ref")) {
      std::string target = rule->at("$ref").get<std::string>().substr(1);
      open.emplace_back(&schema.at(Json::json_pointer(target)), value);
    }
    // The first branch of each anyOf is the one that is not null.
    if (rule->contains("anyOf") && value->is_object() && rule != &schema) {
      open.emplace_back(&rule->at("anyOf").at(0), value);
    }
    if (rule->contains("items") && value->is_array() && !value->empty()) {
      open.emplace_back(&rule->at("items"), &value->at(0));
    }
    if (!rule->contains("properties")) continue;
    for (const auto& [name, member] : rule->at("properties").items()) {
      ASSERT_TRUE(value->contains(name)) << name;
      open.emplace_back(&member, &value->at(name));
    }
    EXPECT_EQ(rule->at("properties").size(), value->size()) << *value;
  }
}

TEST(Record, KeepsUnknownKeysAtEveryLevel) {
  OrderedJson json = to_json(full_record());
  json["later"] = {{"deep", 1}};
  json["proxy"]["ffn"] = 1792;
  json["runs"][1]["steps"][2]["temperature"] = 61.5;
  Record record = reread(json);
  EXPECT_EQ(Json(to_json(record)), Json(json));
  EXPECT_EQ(record.runs[1].steps[2].extra["temperature"], 61.5);
  EXPECT_TRUE(record.runs[1].steps[1].extra.is_null());
}

TEST(Record, AdditionsNeverDisplaceAKey) {
  Record record = full_record();
  record.extra = {{"model", "other"}, {"note", "mine"}};
  OrderedJson json = to_json(record);
  EXPECT_EQ(json["model"], "llama3-8b");
  EXPECT_EQ(json["note"], "mine");
}

TEST(Record, NotFiniteBecomesNullAndFailure) {
  for (double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    Record record = full_record();
    record.loss[1] = value;
    record.configuration.training_arguments["learning_rate"] = value;
    OrderedJson json = to_json(record);
    EXPECT_TRUE(json["loss"][1].is_null());
    EXPECT_EQ(json["status"], "failed");
    EXPECT_EQ(json["failure"]["sentence"], "loss.1 is not a finite number");
    EXPECT_TRUE(validate(Json(json)).empty());
    EXPECT_TRUE(std::isnan(reread(json).loss[1]));
  }
}

TEST(Record, NotFiniteKeepsTheFailureThatIsThere) {
  Record record = full_record();
  record.status = Status::kFailed;
  record.failure = Failure{.sentence = "loss is not finite at step 1", .rank = 1, .last_lines = {}};
  record.loss[1] = kNotFinite;
  EXPECT_EQ(to_json(record)["failure"]["sentence"], "loss is not finite at step 1");
}

TEST(Record, HostileTextPrintsAndReturns) {
  Record record = full_record();
  record.status = Status::kFailed;
  record.failure = Failure{.sentence = "<script>'; --\n\u202e",
                           .rank = 0,
                           .last_lines = {"bad \xff\xc3( bytes", std::string(1, '\0')}};
  record.configuration.environment["K\xff"] = "v\xfe";
  OrderedJson json = to_json(record);
  EXPECT_EQ(reread(json).failure->sentence, record.failure->sentence);
  EXPECT_EQ(reread(json).failure->last_lines[0], "bad \ufffd\ufffd( bytes");
  EXPECT_EQ(reread(json).failure->last_lines[1], std::string(1, '\0'));
  EXPECT_EQ(reread(json).configuration.environment.at("K\ufffd"), "v\ufffd");
}

TEST(Record, RefusesTheFutureInOneSentence) {
  OrderedJson json = to_json(full_record());
  json["schema_version"] = 2;
  json.erase("model");
  EXPECT_EQ(complaint(json),
            "run.json:2: key `schema_version`: this record has schema 2, and this version of "
            "ljtrain reads up to 1: upgrade it");
}

TEST(Record, NamesFileLineAndKey) {
  OrderedJson json = to_json(full_record());
  json["ranks"] = 0;
  std::string sentence = complaint(json);
  EXPECT_NE(sentence.find(": key `ranks`: must be at least 1, and is 0"), std::string::npos)
      << sentence;
  EXPECT_EQ(sentence.rfind("run.json:", 0), 0U) << sentence;

  json = to_json(full_record());
  json["proxy"].erase("rule");
  sentence = complaint(json);
  EXPECT_NE(sentence.find("key `proxy`: has no `rule`"), std::string::npos) << sentence;
}

TEST(Record, RefusesWhatIsNoRecord) {
  EXPECT_EQ(
      complaint(OrderedJson::array()),
      "run.json: must be of type object, and is array; this is no record of ljperf benchmark");
  EXPECT_NE(complaint(OrderedJson::object()), "");
  EXPECT_NE(complaint(OrderedJson{{"schema_version", "1"}}), "");
}

TEST(Record, CompletedNeedsItsNumbers) {
  Record record = full_record();
  record.step_time_s.median.reset();
  EXPECT_NE(complaint(to_json(record)).find("key `step_time_s.median`"), std::string::npos);
  record = full_record();
  record.failure = Failure{.sentence = "but it failed", .rank = 0, .last_lines = {}};
  EXPECT_NE(complaint(to_json(record)), "");
  record = full_record();
  record.mfu = 1.01;
  EXPECT_NE(complaint(to_json(record)).find("key `mfu`: must be at most 1"), std::string::npos);
}

}  // namespace
}  // namespace ljtrain::cnp
