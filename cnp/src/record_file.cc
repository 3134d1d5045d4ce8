#include "cnp/record_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record_schema.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestModelName = 60;
constexpr std::size_t kLongestRecordId = 200;  // file systems allow 255 bytes
// A record has at most some thousand steps of some dozen ranks.
constexpr std::uintmax_t kLargestRecord = std::uintmax_t{256} << 20;

std::tm utc(std::chrono::system_clock::time_point time) {
  return fmt::gmtime(std::chrono::system_clock::to_time_t(time));
}

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

// "deepspeed/llama3 8b" -> "deepspeed-llama3-8b"; nothing usable -> "model".
std::string as_file_name(std::string_view model) {
  std::string name;
  for (char c : model) {
    if (is_plain(c) && !(name.empty() && c == '.')) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
    if (name.size() == kLongestModelName) break;
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "model" : name;
}

bool is_file_name(const std::string& id) {
  if (id.empty() || id.front() == '.' || id.size() > kLongestRecordId) return false;
  for (char c : id) {
    if (!is_plain(c)) return false;
  }
  return true;
}

// From the kernel. std::random_device asks the processor, and there are processors that answer with
// the same number more than once in a thousand.
std::uint32_t random_bits() {
  std::uint32_t bits = 0;
  if (::getentropy(&bits, sizeof bits) != 0) {
    throw base::run_error("the kernel gives no random numbers: {}", std::strerror(errno));
  }
  return bits;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string iso8601_utc(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", utc(time));
}

std::string new_record_id(std::string_view model, std::chrono::system_clock::time_point created) {
  return fmt::format("{:%Y%m%dT%H%M%SZ}-{}-{:08x}", utc(created), as_file_name(model),
                     random_bits());
}

void require_record_id(const std::string& id) {
  if (is_file_name(id)) return;
  throw base::user_error("record_id `{}` cannot name a file: use letters, digits, '.', '_' and '-'",
                         base::printable(id));
}

fs::path records_folder() {
  if (std::string chosen = environment("LJTRAIN_RECORDS"); !chosen.empty()) return chosen;
  fs::path data = environment("XDG_DATA_HOME");
  if (data.is_relative()) {
    std::string home = environment("HOME");
    if (home.empty()) {
      throw base::UserError(
          "no folder for records: HOME is not set; set LJTRAIN_RECORDS to a writable folder");
    }
    data = fs::path(home) / ".local" / "share";
  }
  return data / "ljtrain" / "records";
}

fs::path write_record(const fs::path& folder, const Record& record) {
  require_record_id(record.record_id);
  base::OrderedJson json = to_json(record);
  if (std::vector<Violation> wrong = validate(base::Json(json)); !wrong.empty()) {
    throw base::run_error("record {} breaks its schema: {} {}", record.record_id,
                          wrong.front().where.to_string(), wrong.front().message);
  }
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) {
    throw base::user_error("{}: cannot make this folder for records: {}", folder.string(),
                           code.message());
  }
  fs::path file = folder / (record.record_id + ".json");
  if (fs::exists(file, code)) {
    throw base::user_error("{}: this record exists already", file.string());
  }
  base::write_file_atomically(file, json.dump(2) + "\n");
  return file;
}

base::JsonDocument read_record_document(const fs::path& file) {
  base::JsonDocument document = base::JsonDocument::read(file, kLargestRecord);
  check_record(document);
  return document;
}

Record read_record(const fs::path& file) {
  return from_json(base::JsonDocument::read(file, kLargestRecord));
}

}  // namespace ljtrain::cnp
