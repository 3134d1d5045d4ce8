#pragma once

namespace ljtrain::cnp {

// The text of cnp/schema/record.schema.json.
const char* record_schema_text();

}  // namespace ljtrain::cnp
