// `ljperf train` in a batch job, a container or pods.
#pragma once

#include "train/run_train.h"

namespace ljtrain::ljperf {

int train_elsewhere(const TrainOptions& options);

}  // namespace ljtrain::ljperf
