// Changes to the files of a store.
#include <fmt/format.h>

#include "annotation_file.h"
#include "base/errors.h"
#include "base/text.h"
#include "cnp/record.h"
#include "cnp/record_file.h"
#include "index_file.h"
#include "store/annotations.h"
#include "store/record_store.h"

namespace ljtrain::cnp {

namespace fs = std::filesystem;

fs::path add_document(const fs::path& folder, const base::OrderedJson& document) {
  std::string text =
      document.dump(2, ' ', false, base::OrderedJson::error_handler_t::replace) + "\n";
  base::JsonDocument checked = base::JsonDocument::parse(text, "the record");
  check_record(checked);
  std::string id = checked.root().at("record_id").get<std::string>();
  require_record_id(id);
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) {
    throw base::user_error("{}: cannot make this folder for records: {}",
                           base::printable(folder.string(), 1000), code.message());
  }
  fs::path file = folder / (id + ".json");
  if (fs::exists(file, code)) {
    throw base::user_error("{}: this record exists already", base::printable(file.string(), 1000));
  }
  base::write_file_atomically(file, text);
  return file;
}

bool remove_record(const fs::path& folder, std::string_view id) {
  bool spared = false;
  bool removed = false;
  change_annotation(folder, id, [&](Annotation& annotation) {
    spared = annotation != Annotation();
    if (spared) return;
    std::error_code code;
    fs::path file = folder / fmt::format("{}.json", id);
    removed = fs::remove(file, code);
    if (code) {
      throw base::user_error("{}: cannot be removed: {}", base::printable(file.string(), 1000),
                             code.message());
    }
  });
  return removed;
}

std::size_t remove_leftovers(const fs::path& folder) {
  std::size_t removed = 0;
  std::error_code code;
  auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const fs::path& place : {folder, folder / kAnnotationsFolder}) {
    for (const auto& entry : fs::directory_iterator(place, code)) {
      std::string name = entry.path().filename().string();
      bool ours = name.ends_with(".tmp") && name.find(".json.") != std::string::npos;
      if (ours && entry.last_write_time(code) < old && fs::remove(entry.path(), code)) ++removed;
    }
  }
  return removed;
}

}  // namespace ljtrain::cnp
