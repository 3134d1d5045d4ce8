#pragma once

namespace ljtrain::cnp {

// The texts of cnp/schema/record.schema.json and collectives.schema.json.
const char* record_schema_text();
const char* collectives_schema_text();

}  // namespace ljtrain::cnp
