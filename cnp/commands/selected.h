// Records that a selector on the command line means, read.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "cnp/comparison.h"
#include "store/record_store.h"

namespace ljtrain::cnp {

// What every command that takes a side of a comparison says in its help.
inline constexpr const char* kSideHelp =
    "A tag (all its records are repeats), an id, latest, latest~1, a file, or several with commas";

// The records of `selectors`, each a selector or several with commas between; none twice. UserError
// when one names nothing, or what is no benchmark of training.
std::vector<Record> selected(const RecordStore& store, const std::vector<std::string>& selectors);

// UserError when a record stands on both sides.
void require_apart(const std::vector<Record>& a, const std::vector<Record>& b);

// "PROXY: ..." when the sides ran a proxy, which the first and the last line of a report say; "" when
// none did.
std::string proxy_line(const Side& a, const Side& b);

// Members that `cnp compare --json` and `cnp gate --json` share.
base::OrderedJson to_json(const Side& side);
base::OrderedJson to_json(const Comparison& comparison);

}  // namespace ljtrain::cnp
