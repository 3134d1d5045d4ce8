// The schema of records, built into the library, and the part of JSON Schema that it uses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ljtrain::cnp {

// cnp/schema/record.schema.json as it was at build time.
const base::Json& record_schema();
// The same of cnp/schema/collectives.schema.json, for records whose `kind` is "collectives".
const base::Json& collectives_schema();

struct Violation {
  base::Json::json_pointer where;
  std::string message;  // "must be a number or null, not a string"
};

// What in `value` breaks `schema`; empty when nothing does. Knows the keywords of draft 2020-12
// that record.schema.json uses: type, enum, const, properties, required, additionalProperties,
// items, minItems, maxItems, minimum, maximum, allOf, anyOf, $ref within the document. Any other keyword
// that constrains throws std::logic_error rather than passing unchecked. As the standard says, 1.0
// is an integer, and a keyword about one type lets other types pass.
//
// (valijson, the one C++ validator in both Debian 12 and Ubuntu 24.04, draws in Qt and Poco there.)
std::vector<Violation> violations(const base::Json& value, const base::Json& schema);

// violations() of a record.
std::vector<Violation> validate(const base::Json& record);

}  // namespace ljtrain::cnp
