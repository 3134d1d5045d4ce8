// Where annotations lie.
#pragma once

namespace ljtrain::cnp {

// The folder of annotations within the folder of records.
inline constexpr const char* kAnnotationsFolder = "annotations";

}  // namespace ljtrain::cnp
