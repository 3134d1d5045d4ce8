// What the tuner measures on the machine, once per process, in about 20 ms.
#pragma once

namespace ljtrain::accl::tuner {

struct Machine {
  double hand_over_s;             // a store on one core seen on another
  double switch_s;                // a rank that waits lets another run on the same core
  double copy_s_per_byte;         // within the caches
  double memory_copy_s_per_byte;  // beyond them
  double reduce_s_per_byte;       // two float32 sources, one result, within the caches
  double
      process_read_s_per_byte;  // process_vm_readv of large buffers; 0: not allowed, even on itself
};

const Machine& machine();

}  // namespace ljtrain::accl::tuner
