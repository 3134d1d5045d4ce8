#include "image/release.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "image/compare.h"
#include "image/listing.h"
#include "image/network_rules.h"
#include "image/notes.h"

namespace ljtrain::image {
namespace {

std::string manifest(const std::string& name) {
  std::ifstream stream(std::string(LJTRAIN_SOURCE_DIR) + "/image/releases/" + name + ".json");
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string error_of(const std::string& text) {
  try {
    read_release(base::JsonDocument::parse(text, "release.json"));
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(Version, ComparesWholeNumbers) {
  EXPECT_LT(parse_version("575.9"), parse_version("575.57.08"));
  EXPECT_EQ(parse_version("12.8"), parse_version("12.8.0"));
  EXPECT_EQ(parse_version("535.104.05")->minor(), 104);
  for (const char* text : {"", ".", "1.", "1..2", "a", "1.2a", "1234567890", "1.2.3.4.5.6.7"}) {
    EXPECT_FALSE(parse_version(text).has_value()) << text;
  }
  EXPECT_EQ(find_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun")->text(),
            "580.65.6");
  EXPECT_EQ(find_version("Open Kernel Module for x86_64  570.124.06  Release")->text(),
            "570.124.6");
  EXPECT_FALSE(find_version("x86_64 GCC").has_value());
}

TEST(Releases, AreThereOldestFirstAndOursLast) {
  std::vector<std::string> names;
  for (const Release& release : releases()) {
    names.push_back(release.name);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"25.05", "25.07", "25.08", "25.10", "26.05", "0.1.0"}));
  EXPECT_EQ(find_release("25.07-serverless").name, "25.07");
  EXPECT_THROW(find_release("25.09"), base::UserError);
  EXPECT_THROW(find_release("/no/such/manifest.json"), base::UserError);
}

TEST(Releases, ArchitecturesDiffer) {
  Release release = find_release("25.10");
  EXPECT_EQ(release.components_on("amd64").at("triton"), "3.4.0");
  EXPECT_FALSE(release.components_on("aarch64").contains("triton"));
  EXPECT_FALSE(release.components_on("aarch64").contains("perf"));
  EXPECT_EQ(release.components_on("aarch64").at("pytorch-triton"), "3.4.0");
}

// Cut anywhere, a manifest gives one line that names the file; it never passes and never crashes.
TEST(ReadRelease, RefusesEveryTruncation) {
  std::string whole = manifest("25.07");
  ASSERT_EQ(error_of(whole), "");
  for (std::size_t length = 0; length + 2 < whole.size(); ++length) {
    std::string error = error_of(whole.substr(0, length));
    ASSERT_TRUE(error.starts_with("release.json:")) << length << ": " << error;
    ASSERT_EQ(error.find('\n'), std::string::npos) << length;
  }
}

TEST(ReadRelease, NamesTheKeyThatIsWrong) {
  std::string whole = manifest("25.07");
  struct Case {
    const char* what;
    const char* with;
    const char* names;
  };
  for (const Case& c : {
           Case{"\"schema_version\": 1", "\"schema_version\": 2", "`schema_version`"},
           Case{"\"schema_version\": 1", "\"schema_version\": \"1\"", "`schema_version`"},
           Case{"\"release\": \"25.07\"", "\"release\": 25.07", "`release`"},
           Case{"\"tag\": \"25.07-serverless\"", "\"tag\": \"25.07; rm -rf /\"", "`tag`"},
           Case{"\"tag\": \"25.07-serverless\"", "\"tag\": \"25.08-serverless\"", "`image.public`"},
           Case{"\"cuda\": \"12.8.0\"", "\"cuda\": \"twelve\"", "`cuda`"},
           Case{"\"minimum\": \"575\"", "\"minimum\": 575", "`driver.minimum`"},
           Case{"\"470.57\"", "\"470.x\"", "`driver.data_center_also`"},
           Case{"\"R418\"", "\"R\"", "`driver.must_upgrade`"},
           Case{"\"ubuntu\": \"24.04\"", "\"ubuntu\": [24]", "`components.ubuntu`"},
           Case{"\"ubuntu\": \"24.04\"", "\"ubuntu\": \"\\u001b[2J\"", "`components.ubuntu`"},
           Case{"\"value\": \"eth0\"", "\"valu\": \"eth0\"", "nccl_socket_ifname.0.value`"},
           Case{"{region-id}", "cn-beijing", "`image.vpc`"},
           Case{"          16", "          -16", "gpus_per_pod"},
       }) {
    std::string error = error_of(replaced(whole, c.what, c.with));
    EXPECT_NE(error.find(c.names), std::string::npos) << c.with << " gave: " << error;
  }
  EXPECT_NE(error_of("[]").find("JSON object"), std::string::npos);
}

TEST(Address, KnowsTagAndRegion) {
  Release release = find_release("25.07");
  EXPECT_TRUE(address(release, "", false).ends_with("training-nv-pytorch:25.07-serverless"));
  EXPECT_TRUE(address(release, "cn-beijing", true)
                  .starts_with("acs-registry-vpc.cn-beijing.cr.aliyuncs.com/"));
  for (const char* region : {"", "cn beijing", "CN-BEIJING", "a;b", "../x", "cn-", "{region-id}"}) {
    EXPECT_THROW(address(release, region, true), base::UserError) << region;
  }
  EXPECT_THROW(address(release, "cn-beijing", false), base::UserError);
  EXPECT_THROW(address(find_release("0.1.0"), "cn-beijing", true), base::UserError);
}

TEST(Compare, ShowsWhatChanged) {
  std::vector<Difference> differences =
      compare(find_release("25.07"), find_release("25.08"), "amd64");
  std::vector<std::string> keys;
  for (const Difference& difference : differences) {
    keys.push_back(difference.key);
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"tag", "gdb", "ray", "timm", "transformers", "vllm"}));
  EXPECT_TRUE(compare(find_release("25.10"), find_release("25.10"), "aarch64").empty());
  auto across = compare(find_release("25.07"), find_release("26.05"), "amd64");
  auto torch = std::find_if(across.begin(), across.end(),
                            [](const Difference& d) { return d.key == "torch"; });
  ASSERT_NE(torch, across.end());
  EXPECT_EQ(torch->after, "2.11.0");
}

TEST(Listing, FitsATerminal) {
  std::string text = list_text(releases());
  for (const Release& release : releases()) {
    text += show_text(release, "aarch64") + caveats_text(release);
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // An address cannot be wrapped.
    EXPECT_TRUE(line.size() <= 100 || line.find(".com/") != std::string::npos) << line;
  }
}

TEST(NetworkRules, NcclsSemantics) {
  std::vector<std::string> interfaces{"lo", "docker0", "eth0", "eth1", "eth10", "hpn0"};
  auto selected = [&](const char* filter) {
    return select_interfaces(parse_interface_filter(filter), interfaces);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(selected("eth1"), (Names{"eth1", "eth10"}));
  EXPECT_EQ(selected("=eth1"), (Names{"eth1"}));
  EXPECT_EQ(selected("eth0,hpn"), (Names{"eth0", "hpn0"}));
  EXPECT_EQ(selected("^lo,docker"), (Names{"eth0", "eth1", "eth10", "hpn0"}));
  EXPECT_EQ(selected("^=lo,eth1"), (Names{"docker0", "eth0", "eth10", "hpn0"}));
  EXPECT_EQ(selected("bond"), Names{});
  EXPECT_EQ(default_interfaces(interfaces), (Names{"eth0", "eth1", "eth10", "hpn0"}));
  EXPECT_EQ(default_interfaces(Names{"lo", "docker0"}), (Names{"docker0"}));
  EXPECT_EQ(default_interfaces(Names{"lo", "eth0", "ib0"}), (Names{"ib0"}));
  EXPECT_EQ(default_interfaces(Names{"lo"}), (Names{"lo"}));
}

TEST(NetworkRules, ReleaseRuleByGpusOfAPod) {
  Release release = find_release("25.07");
  for (int gpus : {0, 1, 2, 4, 8, 3}) {
    EXPECT_EQ(interface_rule(release, gpus)->interface, "eth0") << gpus;
  }
  EXPECT_EQ(interface_rule(release, 16)->interface, "hpn0");
}

TEST(Notes, HoldManifestAndAblation) {
  Release release = find_release("25.10");
  Release before = find_release("25.08");
  base::JsonDocument document = base::JsonDocument::parse(
      R"({"schema_version": 1, "model": "deepspeed/llama3-8b", "proxy": "1/8 of llama3-8b", "rows": [
        {"configuration": "base", "record_ids": ["a"], "tokens_per_s": 1000,
         "speedup_vs_base": 1, "ci95": null, "contribution": null, "loss_parity": null},
        {"configuration": "accl|compile", "record_ids": ["b"], "tokens_per_s": 1500,
         "speedup_vs_base": 1.5, "ci95": [1.45, 1.55], "contribution": 1.25,
         "loss_parity": {"verdict": "outside"}},
        {"configuration": "plus recompute", "record_ids": ["c"], "tokens_per_s": 1600,
         "speedup_vs_base": 1.6, "ci95": [1.5, 1.7], "contribution": 0.95,
         "loss_parity": {"verdict": "within"}},
        {"configuration": "limit", "record_ids": [], "tokens_per_s": null,
         "speedup_vs_base": null, "ci95": null, "contribution": null}]})",
      "ablation.json");
  NotesInput input{&release, &before, read_ablation(document), "folder/ablation.json"};
  std::string notes = write_notes(input);
  for (const char* part :
       {"# Release 25.10", "25.10-serverless", "| base | 1000.0 | 1.000 | - | - |",
        "| accl\\|compile (other loss) | 1500.0 | 1.500 | 1.450 to 1.550 | +25.0 % |",
        "| plus recompute | 1600.0 | 1.600 | 1.500 to 1.700 | -5.0 % |",
        "| limit | failed | - | - | - |", "Model `deepspeed/llama3-8b`, as PROXY 1/8 of llama3-8b.",
        "Not the full model", "Speed with another loss is no speed",
        "Not for Lingjun single-tenant", "From `ablation.json`", "## Changes since 25.08",
        "eth0 for 1, 2, 4, 8 GPUs", "Do not reinstall torch, deepspeed", "On aarch64 without"}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part << "\nin\n" << notes;
  }
}

TEST(Notes, RefuseWhatIsNoAblation) {
  for (const char* text :
       {"{}", "[]", R"({"rows": {}})", R"({"rows": [1]})", R"({"rows": [{"configuration": 1}]})",
        R"({"rows": [{"configuration": "base"}]})",
        R"({"rows": [{"configuration": "b", "tokens_per_s": "x", "speedup_vs_base": 1}]})"}) {
    EXPECT_THROW(read_ablation(base::JsonDocument::parse(text, "a.json")), base::UserError) << text;
  }
}

}  // namespace
}  // namespace ljtrain::image
