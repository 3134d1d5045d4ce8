#include "importers/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record.h"
#include "cnp/record_file.h"
#include "cnp/record_schema.h"
#include "formats.h"

namespace ljtrain::cnp {
namespace {

using base::OrderedJson;

constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 30;

// Python's json writes NaN and Infinity, which JSON does not have; here they become null.
std::string without_python_numbers(const std::string& text) {
  std::string clean;
  clean.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      clean += c;
      clean += text[++i];
      continue;
    }
    if (c == '"') in_string = !in_string;
    if (!in_string && (c == 'N' || c == 'I' || c == '-')) {
      std::string_view rest = std::string_view(text).substr(i);
      for (std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (!rest.starts_with(word)) continue;
        clean += "null";
        i += word.size() - 1;
        c = '\0';
        break;
      }
      if (c == '\0') continue;
    }
    clean += c;
  }
  return clean;
}

base::JsonDocument parse(const ImportSource& source) {
  return base::JsonDocument::parse(without_python_numbers(source.text), source.name);
}

Source source_of(const ImportSource& source, const std::string& format) {
  return {.format = format,
          .file = source.name,
          .bytes = source.text.size(),
          .digest = digest_of(source.text),
          .imported = iso8601_utc(source.now),
          .notes = {}};
}

LoggedRun read_training(const ImportSource& source, const std::string& format,
                        const StatedFacts& facts) {
  if (format == "torchtitan") return read_torchtitan(source.text, facts, source.name);
  if (format == "megatron") return read_megatron(source.text, facts, source.name);
  return read_trainer_state(parse(source), facts);
}

OrderedJson import_training(const ImportSource& source, const std::string& format,
                            const StatedFacts& facts) {
  Record record = record_of(read_training(source, format, facts), source_of(source, format),
                            iso8601_utc(source.now));
  record.record_id = new_record_id(record.model.empty() ? format : record.model, source.now);
  return to_json(record);
}

OrderedJson import_collectives(const ImportSource& source) {
  OrderedJson record = read_nccl_tests(parse(source));
  Source from = source_of(source, "nccl-tests");
  record["record_id"] = new_record_id("nccl-tests", source.now);
  record["created"] = iso8601_utc(source.now);
  record["source"] = {{"format", from.format}, {"file", from.file},         {"bytes", from.bytes},
                      {"digest", from.digest}, {"imported", from.imported}, {"notes", from.notes}};
  return record;
}

}  // namespace

const std::vector<std::string_view>& import_formats() {
  static const std::vector<std::string_view> kFormats = {"auto", "torchtitan", "megatron",
                                                         "trainer_state", "nccl-tests"};
  return kFormats;
}

std::string detect_format(const ImportSource& source) {
  std::string_view text = source.text;
  std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') {
    base::JsonDocument document = parse(source);
    if (document.root().contains("log_history")) return "trainer_state";
    if (document.root().contains("results")) return "nccl-tests";
  } else if (text.find("elapsed time per iteration (") != std::string_view::npos) {
    return "megatron";
  } else if (text.find("tps:") != std::string_view::npos &&
             text.find("step:") != std::string_view::npos) {
    return "torchtitan";
  }
  throw base::user_error(
      "{}: is no result that can be imported (known are logs of torchtitan and Megatron-LM, "
      "trainer_state.json of transformers, the file of nccl-tests -J, and records); for another "
      "log of one of these name its --format",
      base::printable(source.name));
}

OrderedJson import_document(const ImportSource& source, const std::string& format,
                            const StatedFacts& facts) {
  const auto& known = import_formats();
  if (std::find(known.begin(), known.end(), format) == known.end()) {
    throw base::user_error("--format {}: must be one of {}", base::printable(format),
                           fmt::join(known, ", "));
  }
  std::string chosen = format == "auto" ? detect_format(source) : format;
  OrderedJson document =
      chosen == "nccl-tests" ? import_collectives(source) : import_training(source, chosen, facts);
  // As it will be written: text that is no UTF-8 is replaced.
  std::string text = document.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  check_record(base::JsonDocument::parse(std::move(text), source.name));
  return document;
}

ImportSource read_import_source(const std::filesystem::path& file) {
  std::string shown = base::printable(file.string(), 1000);
  std::error_code code;
  if (std::filesystem::is_directory(file, code)) {
    throw base::user_error("{}: is a folder; name a file", shown);
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw base::user_error("{}: cannot be read: {}", shown, std::strerror(errno));
  ImportSource source;
  source.name = file.filename().string();
  source.now = std::chrono::system_clock::now();
  std::vector<char> buffer(std::size_t{1} << 16);
  while (stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         stream.gcount() > 0) {
    source.text.append(buffer.data(), static_cast<std::size_t>(stream.gcount()));
    if (source.text.size() > kLargestFile) {
      throw base::user_error("{}: larger than 1 GiB; cut the log to the steps that count", shown);
    }
  }
  return source;
}

std::string digest_of(std::string_view content) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (char c : content) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace ljtrain::cnp
