// For tests/test_record_schema.py.
//   cnp_record_tool samples   prints sample records, one a line
//   cnp_record_tool validate  reads documents, one a line; prints "ok" or what is wrong with each
//   cnp_record_tool write FOLDER COUNT  writes COUNT records into FOLDER, one after another
// For benchmarks/ljperf/a_a.py.
//   cnp_record_tool ratio  reads {"a": [...], "b": [...], "paired": bool}: a / b with its interval,
//   as JSON
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "cnp/record_file.h"
#include "cnp/record_schema.h"
#include "cnp/statistics.h"
#include "sample_records.h"

int main(int count, char** arguments) {
  using namespace ljtrain;
  std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "samples") {
    for (const cnp::Record& record : cnp::sample_records()) {
      std::cout << cnp::to_json(record).dump() << "\n";
    }
    return 0;
  }
  if (mode == "validate") {
    for (std::string line; std::getline(std::cin, line);) {
      auto wrong = cnp::validate(base::Json::parse(line));
      std::cout << (wrong.empty() ? "ok"
                                  : wrong.front().where.to_string() + " " + wrong.front().message)
                << "\n";
    }
    return 0;
  }
  if (mode == "write" && count == 4) {
    for (int i = std::stoi(arguments[3]); i > 0; --i) {
      cnp::Record record = cnp::full_record();
      record.record_id = cnp::new_record_id(record.model, std::chrono::system_clock::now());
      cnp::write_record(arguments[2], record);
    }
    return 0;
  }
  if (mode == "ratio") {
    base::Json request = base::Json::parse(std::cin);
    auto a = request.at("a").get<std::vector<double>>();
    auto b = request.at("b").get<std::vector<double>>();
    cnp::RatioEstimate ratio = request.at("paired").get<bool>() ? cnp::paired_ratio_interval95(a, b)
                                                                : cnp::ratio_interval95(a, b);
    std::cout << base::Json{{"ratio", ratio.ratio},
                            {"low", ratio.ci95.value().low},
                            {"high", ratio.ci95.value().high}}
                     .dump()
              << "\n";
    return 0;
  }
  std::cerr << "usage: cnp_record_tool ratio | samples | validate | write FOLDER COUNT\n";
  return 2;
}
