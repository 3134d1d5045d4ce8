// Records on disk: one JSON file each in one folder. The files are the truth; whatever else is kept
// about them can be rebuilt.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

#include "cnp/record.h"

namespace ljtrain::cnp {

// "2026-11-30T12:01:02Z".
std::string iso8601_utc(std::chrono::system_clock::time_point time);

// "20261130T120102Z-llama3-8b-5f0c2a91": sorts by time, unique through 32 random bits, and safe as
// a file name whatever the model is called.
std::string new_record_id(std::string_view model, std::chrono::system_clock::time_point created);

// UserError unless `id` can name a record's file: letters, digits, '.', '_' and '-', at most 200, no dot
// first.
void require_record_id(const std::string& id);

// $LJTRAIN_RECORDS, else $XDG_DATA_HOME/ljtrain/records, else ~/.local/share/ljtrain/records. An
// empty variable counts as unset, a relative XDG_DATA_HOME too (as its specification says).
// UserError when nothing names a home.
std::filesystem::path records_folder();

// Writes FOLDER/RECORD_ID.json, whole or not at all, and makes the folder when it is missing.
// Several writers at once are safe; one that is killed leaves at most a file that ends in .tmp.
// Returns the file. UserError when the folder cannot be written, the record is there already or its
// record_id cannot name a file; RunError when the record breaks the schema (a fault of whoever
// filled it).
std::filesystem::path write_record(const std::filesystem::path& folder, const Record& record);

// The document, checked. Throws what check_record throws, and UserError when the file cannot be read.
base::JsonDocument read_record_document(const std::filesystem::path& file);

// Throws what from_json throws, and UserError when the file cannot be read.
Record read_record(const std::filesystem::path& file);

}  // namespace ljtrain::cnp
