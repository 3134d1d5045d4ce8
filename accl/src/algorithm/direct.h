// The algorithms that read what peers have put into shared memory, without passing it on.
//
//   one-step  every rank puts its whole payload down and reads what it needs of the others': one
//             hand-over. For small payloads; up to kInlineBytes travel in the announcement itself.
//   staged    the same in chunks that stay in the caches: while a chunk is read, the next is put
//             down.
//   two-step  (reductions) each rank reduces its block of a chunk and puts the result down for the
//             others.
//   pull      where peers' buffers can be read directly (pull.h).
//
// Reductions combine in rank order, so all ranks get the same bits, whatever the chunk size, and
// wherever ranks run.
#pragma once

#include <functional>

#include "algorithm/session.h"

namespace ljtrain::accl::direct {

// Whether the payload is small enough for one step. All ranks answer alike.
bool is_one_step(const Collective& collective, int ranks, std::size_t limit_bytes);
void one_step(Session& session);

// Any collective but all_to_all.
void staged(Session& session);
// Small shares in one step, large ones staged: each rank announces how much it has for whom.
// `try_pull` may do it all once that is known; `place` comes before, to tell where the buffers lie.
void all_to_all(Session& session, const std::function<void()>& place,
                const std::function<bool()>& try_pull);

}  // namespace ljtrain::accl::direct
