#include "benchmark/options.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

std::string complaint(const std::function<void(BenchmarkOptions&)>& change) {
  BenchmarkOptions options;
  options.model = "deepspeed/llama3-8b";
  change(options);
  try {
    check(options);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Options, TheDefaultsAreGood) {
  EXPECT_EQ(complaint([](BenchmarkOptions&) {}), "");
}

TEST(Options, ImpossibleValuesAreNamed) {
  const std::vector<std::pair<std::function<void(BenchmarkOptions&)>, std::string>> cases{
      {[](auto& o) { o.steps = 0; }, "--steps 0"},
      {[](auto& o) { o.steps = -5; }, "--steps -5"},
      {[](auto& o) { o.repeat = 0; }, "--repeat 0"},
      {[](auto& o) { o.seq = 1; }, "--seq 1"},
      {[](auto& o) { o.micro_batch = 0; }, "--micro-batch 0"},
      {[](auto& o) { o.zero = 4; }, "--zero 4"},
      {[](auto& o) { o.zero = -1; }, "--zero -1"},
      {[](auto& o) { o.ranks = 0; }, "--ranks 0"},
      {[](auto& o) { o.step_timeout = 0; }, "--step-timeout 0"},
      {[](auto& o) { o.step_timeout = std::numeric_limits<double>::quiet_NaN(); },
       "--step-timeout"},
      {[](auto& o) { o.step_timeout = 1e300; }, "--step-timeout"},
      {[](auto& o) { o.seed = -1; }, "--seed -1"},
      {[](auto& o) { o.warmup = "three"; }, "--warmup three"},
      {[](auto& o) { o.warmup = "-1"; }, "--warmup -1"},
      {[](auto& o) { o.warmup = ""; }, "--warmup "},
      {[](auto& o) { o.allocator = "mimalloc"; }, "--allocator mimalloc"},
      {[](auto& o) { o.memory_limit = "much"; }, "--memory-limit"},
      {[](auto& o) {
         o.with = {"compile"};
         o.stock_compile = "full";
       },
       "--with compile and --stock-compile full"},
      {[](auto& o) { o.with = o.without = {"accl"}; }, "--with accl and --without accl"},
      {[](auto& o) { o.with = {"speed"}; }, "`speed` is no part"},
      {[](auto& o) { o.without = {"sped"}; }, "`sped` is no part"},
      {[](auto& o) { o.set = {"novalue"}; }, "--set novalue"},
      {[](auto& o) { o.set = {"=3"}; }, "--set =3"},
      {[](auto& o) { o.set = {"max_steps=3"}; }, "--set max_steps: use --steps"},
      {[](auto& o) { o.config = "/no/such/config.json"; }, "--config /no/such/config.json"},
      {[](auto& o) { o.data = "/no/such"; }, "--data /no/such"},
      {[](auto& o) { o.deepspeed_config = "/"; }, "--deepspeed-config /"},
      {[](auto& o) { o.tokenizer = "/tmp"; }, "--tokenizer: has no effect without --data"},
      {[](auto& o) { o.model = ""; }, "--model is missing"},
  };
  for (const auto& [change, expected] : cases) {
    EXPECT_EQ(complaint(change).find(expected), 0U) << expected << " / " << complaint(change);
  }
}

TEST(Options, WithAcclAndCompileIsFine) {
  EXPECT_EQ(complaint([](auto& o) { o.with = {"accl", "compile"}; }), "");
}

TEST(Options, WithoutAPartThatIsNotThereYetIsFine) {
  EXPECT_EQ(complaint([](auto& o) { o.without = {"accl", "compile"}; }), "");
}

TEST(Options, SettingsSplitAtTheFirstEquals) {
  EXPECT_EQ(split_setting("a=b=c"), (std::pair<std::string, std::string>{"a", "b=c"}));
  EXPECT_EQ(split_setting("a="), (std::pair<std::string, std::string>{"a", ""}));
}

}  // namespace
}  // namespace ljtrain::ljperf
