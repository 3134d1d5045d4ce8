#include "catalogue/lookup.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

std::string failure(std::string_view reference) {
  try {
    find_model(reference);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Lookup, FindsEveryModelUnderEveryEngine) {
  for (std::string_view engine : engines()) {
    for (const CatalogueModel& model : catalogue_models()) {
      ModelReference found = find_model(std::string(engine) + "/" + std::string(model.id));
      EXPECT_EQ(found.engine, engine);
      EXPECT_EQ(found.model->id, model.id);
    }
  }
}

TEST(Lookup, UnknownModelShowsTheNearest) {
  EXPECT_TRUE(
      mentions(failure("deepspeed/llama3-8"), "no model `llama3-8`: did you mean llama3-8b"));
  EXPECT_TRUE(mentions(failure("deepspeed/lama3-8b"), "did you mean llama3-8b"));
  EXPECT_TRUE(mentions(failure("deepspeed/llama-3-70b"), "did you mean llama3-70b"));
  EXPECT_TRUE(mentions(failure("deepspeed/mixtral"), "did you mean mixtral-8x7b"));
  EXPECT_TRUE(mentions(failure("deepspeed/zzzzzzzzzzzzzzzz"), "there are: bert-large"));
  EXPECT_TRUE(mentions(failure("deepspeed/"), "there are: bert-large"));
  EXPECT_TRUE(mentions(failure("deepspeed/" + std::string(100000, 'x')), "there are:"));
}

TEST(Lookup, UnknownEngineShowsTheNearest) {
  EXPECT_TRUE(
      mentions(failure("deepsped/llama3-8b"), "no engine `deepsped`: did you mean deepspeed"));
  EXPECT_TRUE(mentions(failure("fsdp2/llama3-8b"), "did you mean fsdp"));
  EXPECT_TRUE(mentions(failure("/llama3-8b"), "there are: deepspeed, fsdp, ddp"));
  EXPECT_TRUE(mentions(failure("llama3-8b"), "as in deepspeed/llama3-8b"));
  EXPECT_TRUE(mentions(failure("llama3-9b"), "did you mean llama3-8b"));
}

TEST(Lookup, MegatronHasItsOwnSentence) {
  EXPECT_TRUE(mentions(failure("megatron/llama3-8b"), "docs/decisions/megatron-engine.md"));
}

TEST(Lookup, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
  EXPECT_EQ(edit_distance("abc", "acb"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);
}

}  // namespace
}  // namespace ljtrain::ljperf
