#include <boost/math/distributions/students_t.hpp>

#include "base/errors.h"
#include "cnp/statistics.h"

namespace ljtrain::cnp {
namespace {

boost::math::students_t distribution(double degrees) {
  if (!(degrees > 0)) {
    throw base::user_error("Student's t needs degrees of freedom above 0, not {}", degrees);
  }
  return boost::math::students_t{degrees};
}

}  // namespace

double student_t_cdf(double t, double degrees) {
  boost::math::students_t law = distribution(degrees);
  if (std::isnan(t)) {
    throw base::UserError("Student's t: the value is not a number");
  }
  if (std::isinf(t)) {
    return t < 0 ? 0 : 1;
  }
  return boost::math::cdf(law, t);
}

double student_t_quantile(double p, double degrees) {
  boost::math::students_t law = distribution(degrees);
  if (!(p > 0 && p < 1)) {
    throw base::user_error("a quantile needs a probability between 0 and 1, not {}", p);
  }
  return boost::math::quantile(law, p);
}

}  // namespace ljtrain::cnp
