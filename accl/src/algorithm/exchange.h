// Moving a share of its own from each giver to each taker through the stages.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "algorithm/session.h"

namespace ljtrain::accl::direct {

// `count(giver, taker)` in elements; `longest` is the largest of them that goes through the stages.
void exchange(Session& session, bool gives, std::span<const int> givers, std::size_t longest,
              const std::function<std::size_t(int giver, int taker)>& count);

}  // namespace ljtrain::accl::direct
