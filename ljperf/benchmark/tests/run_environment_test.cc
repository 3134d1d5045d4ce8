#include "benchmark/run_environment.h"

#include <gtest/gtest.h>

namespace ljtrain::ljperf {
namespace {

TEST(Redact, HidesSecretsByNameAndByLook) {
  const std::vector<std::pair<std::string, std::string>> secrets{
      {"HF_TOKEN", "abc"},
      {"AWS_SECRET_ACCESS_KEY", "abc"},
      {"DB_PASSWORD", "x"},
      {"MY_apikey", "x"},
      {"PIP_INDEX_URL", "https://user:word@host/simple"},
      {"SOMETHING", "AKIAABCDEFGHIJKLMNOP"},
      {"NOTE", "hf_abcdefghijklmnopqrst"},
      {"HEADER", "Bearer abc.def"},
      {"CERT", "-----BEGIN RSA PRIVATE KEY-----"},
      {"JWT", "eyJhbGciOiJIUzI1NiJ9.e30.x"},
      {"HUGE", std::string(1 << 20, 'a')},
  };
  for (const auto& [name, value] : secrets) {
    EXPECT_EQ(redact(name, value), kRedacted) << name;
  }
}

TEST(Redact, LeavesWhatIsNoSecret) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"OMP_NUM_THREADS", "4"},
                                                        {"TOKENIZERS_PARALLELISM", "false"},
                                                        {"PWD", "/home/someone"},
                                                        {"URL", "https://host/simple"},
                                                        {"HF_TOKEN", ""}}) {
    EXPECT_EQ(redact(name, value), value) << name;
  }
}

TEST(RelevantVariables, KeepsWhatChangesARunAndRedacts) {
  auto kept = relevant_variables({{"OMP_NUM_THREADS", "2"},
                                  {"HF_TOKEN", "secret"},
                                  {"HOME", "/home/x"},
                                  {"LD_PRELOAD", "libjemalloc.so"}});
  EXPECT_EQ(kept, (std::map<std::string, std::string>{{"HF_TOKEN", kRedacted},
                                                      {"LD_PRELOAD", "libjemalloc.so"},
                                                      {"OMP_NUM_THREADS", "2"}}));
}

}  // namespace
}  // namespace ljtrain::ljperf
