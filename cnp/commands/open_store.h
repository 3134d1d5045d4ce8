// What every command does with the store and with its own output.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "store/record_store.h"

namespace ljtrain::cnp {

// The store of records_folder(). Says on standard error, a line each, that the index was damaged or
// cannot be kept, and which files are no records.
RecordStore open_store();
// The same, its index made anew from the files.
RecordStore rebuild_store();

// The id of the one record of the store that `selector` names (store/resolve.h). UserError for a file
// outside its folder.
std::string stored_id(const RecordStore& store, std::string_view selector);

// [{"file", "problem"}]: the files that are no records.
base::OrderedJson problems_json(const RecordStore& store);

// One document on standard output; bytes that are no UTF-8 become U+FFFD. RunError when standard
// output does not take it (a full disk).
void print_document(const base::OrderedJson& document);
// The same for any text.
void print_text(std::string_view text);

// The random letters at the end of "20261130T120102Z-llama3-8b-5f0c2a91", which every selector takes;
// any other id unchanged.
std::string short_id(std::string_view id);

}  // namespace ljtrain::cnp
