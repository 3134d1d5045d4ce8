#include "store/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <string>

#include "base/errors.h"
#include "base/text.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamedInErrors = 4;
constexpr std::string_view kLatest = "latest";

// N of "latest~N", 0 of "latest"; nullopt for anything else.
std::optional<std::size_t> latest_offset(std::string_view selector) {
  if (!selector.starts_with(kLatest)) return std::nullopt;
  selector.remove_prefix(kLatest.size());
  if (selector.empty()) return 0;
  if (selector.front() != '~') return std::nullopt;
  selector.remove_prefix(1);
  std::size_t offset = 0;
  auto [end, error] = std::from_chars(selector.data(), selector.data() + selector.size(), offset);
  constexpr std::size_t kMost = 1'000'000;
  if (error != std::errc() || end != selector.data() + selector.size() || offset > kMost) {
    return std::nullopt;
  }
  return offset;
}

fs::path existing(fs::path file, std::string_view selector) {
  std::error_code code;
  if (!fs::exists(file, code)) {
    throw base::user_error("record {}: {} is not there any more", base::printable(selector),
                           base::printable(file.string(), 1000));
  }
  return file;
}

fs::path latest(const RecordStore& store, std::size_t offset) {
  Filter filter;
  filter.kind = "benchmark";
  std::vector<Summary> newest = store.list(filter, offset + 1);
  if (newest.size() <= offset) {
    throw base::user_error("latest~{}: {} has {} records of a benchmark", offset,
                           base::printable(store.folder().string(), 1000), newest.size());
  }
  return store.file_of(newest[offset].id);
}

std::vector<fs::path> matching(const RecordStore& store, std::string_view selector) {
  std::vector<std::string> ids = store.ids_matching(selector, kNamedInErrors + 1);
  if (ids.size() == 1) return {store.file_of(ids.front())};
  if (ids.empty()) {
    throw base::user_error("there is no record or tag `{}` in {}; `cnp list` shows them",
                           base::printable(selector),
                           base::printable(store.folder().string(), 1000));
  }
  bool more = ids.size() > kNamedInErrors;
  if (more) ids.resize(kNamedInErrors);
  throw base::user_error("`{}` fits more than one record: {}{}", base::printable(selector),
                         fmt::join(ids, ", "), more ? ", ..." : "");
}

}  // namespace

std::vector<fs::path> resolve_records(const RecordStore& store, std::string_view selector) {
  if (selector.empty()) {
    throw base::UserError("an empty string names no record; `cnp list` shows them");
  }
  if (selector.find('/') != std::string_view::npos || selector.ends_with(".json")) {
    return {existing(fs::path(selector), selector)};
  }
  if (auto offset = latest_offset(selector)) return {latest(store, *offset)};
  if (store.find(selector)) return {store.file_of(selector)};
  Filter filter;
  filter.tag = std::string(selector);
  std::vector<fs::path> files;
  for (const Summary& summary : store.list(filter)) files.push_back(store.file_of(summary.id));
  return files.empty() ? matching(store, selector) : files;
}

fs::path resolve_record(const RecordStore& store, std::string_view selector) {
  return resolve_records(store, selector).front();
}

}  // namespace ljtrain::cnp
