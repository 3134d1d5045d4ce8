// The one check all estimators share.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "base/errors.h"

namespace ljtrain::cnp {

// Throws UserError that names the position of the first value that is NaN or infinite.
inline void require_finite(std::span<const double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      throw base::user_error("value {} of {} is not a finite number", i, values.size());
    }
  }
}

// The same, and for an empty list.
inline void require_some(std::span<const double> values) {
  if (values.empty()) throw base::UserError("statistics need at least one value");
  require_finite(values);
}

}  // namespace ljtrain::cnp
