// Plays one training step: the segments' events in order, and the engine's beside them.
#pragma once

#include "engine.h"
#include "ledger.h"
#include "prepared.h"

namespace ljtrain::recompute {

// What is there between steps: the engine's state, and on devices context and libraries.
ComponentBytes resting_state(const PreparedModel& model, const EngineMemory& engine);

// Throws UserError when `policy` has another number of layers than the model.
void play_step(const PreparedModel& model, const Policy& policy, EngineMemory& engine,
               Ledger& ledger);

}  // namespace ljtrain::recompute
