// What the backend's methods check of their arguments, with Gloo's words where programs may look
// for them.
#pragma once

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <vector>

namespace ljtrain {

using Tensors = std::vector<at::Tensor>;

// ValueErrors that begin with the method's name.
inline auto complain(const char* method) {
  return [method](const std::string& what) {
    C10_THROW_ERROR(ValueError, fmt::format("ProcessGroupAccl::{}: {}", method, what));
  };
}

using Complaint = std::function<void(const std::string&)>;

inline void check_alike(const Complaint& invalid, const Tensors& tensors) {
  c10d::assertNonEmpty(invalid, tensors);
  c10d::assertDense(invalid, tensors);
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    c10d::assertTypeMatch(invalid, tensors[0].options(), tensors, i);
    c10d::assertSizesMatch(invalid, tensors[0].sizes(), tensors, i);
  }
}

inline void check_same_type(const Complaint& invalid, const Tensors& tensors,
                            const at::Tensor& as) {
  c10d::assertDense(invalid, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    c10d::assertTypeMatch(invalid, as.options(), tensors, i);
  }
}

// Rank r's share may have any size, but here we know our own.
inline void check_own_share(const Complaint& invalid, const at::Tensor& share,
                            const at::Tensor& own, int rank) {
  if (share.numel() != own.numel()) {
    invalid(fmt::format("invalid tensor size at index {} (expected {}, got {})", rank,
                        c10d::toString(own.sizes()), c10d::toString(share.sizes())));
  }
}

// Where only the root sees all shares, they are of one size.
inline void check_shares(const Complaint& invalid, const Tensors& shares, const at::Tensor& own) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    check_own_share(invalid, shares[i], own, static_cast<int>(i));
  }
}

}  // namespace ljtrain
