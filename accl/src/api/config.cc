#include "api/config.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "accl/error.h"

namespace ljtrain::accl::api {
namespace {

struct IntegerField {
  std::string_view name;
  std::size_t offset;
  int least;
  int most;
  // The version of NCCL that brought it: `size` alone does not tell, since a shorter structure may
  // end in padding where a later one has a field.
  unsigned since;
};
constexpr int kMostChannels = 64;
#define ACCL_FIELD(name, least, most, minor) \
  {#name, offsetof(ncclConfig_t, name), least, most, NCCL_VERSION(2, minor, 0)}
constexpr std::array<IntegerField, 14> kFields = {
    {ACCL_FIELD(blocking, 0, 1, 14), ACCL_FIELD(cgaClusterSize, 0, INT_MAX, 17),
     ACCL_FIELD(minCTAs, 1, INT_MAX, 17), ACCL_FIELD(maxCTAs, 1, INT_MAX, 17),
     ACCL_FIELD(splitShare, 0, 1, 18), ACCL_FIELD(trafficClass, INT_MIN, INT_MAX, 25),
     ACCL_FIELD(collnetEnable, 0, 1, 27), ACCL_FIELD(CTAPolicy, 0, 3, 27),
     ACCL_FIELD(shrinkShare, 0, 1, 27), ACCL_FIELD(nvlsCTAs, 1, INT_MAX, 27),
     ACCL_FIELD(nChannelsPerNetPeer, 1, kMostChannels, 28),
     ACCL_FIELD(nvlinkCentricSched, 0, 1, 28), ACCL_FIELD(graphUsageMode, 0, 2, 29),
     ACCL_FIELD(numRmaCtx, 1, INT_MAX, 29)}};
#undef ACCL_FIELD

// The fields up to here are what the oldest configuration has (2.14).
constexpr std::size_t kLeastSize = offsetof(ncclConfig_t, blocking) + sizeof(int);

bool blocking_from_environment(bool otherwise) {
  const char* text = std::getenv("NCCL_COMM_BLOCKING");
  if (text == nullptr || (std::strcmp(text, "0") != 0 && std::strcmp(text, "1") != 0)) {
    return otherwise;
  }
  return *text == '1';
}

void store(ncclConfig_t& config, const IntegerField& field, int value) {
  std::memcpy(reinterpret_cast<char*>(&config) + field.offset, &value, sizeof(value));
}

int load(const ncclConfig_t& config, const IntegerField& field) {
  int value = 0;
  std::memcpy(&value, reinterpret_cast<const char*>(&config) + field.offset, sizeof(value));
  return value;
}

// A copy in today's layout. What the caller's structure does not have is unset.
ncclConfig_t widen(const ncclConfig_t& given) {
  ncclConfig_t whole = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&whole, &given, std::min(given.size, sizeof(whole)));
  for (const IntegerField& field : kFields) {
    if (given.version < field.since) {
      store(whole, field, NCCL_CONFIG_UNDEF_INT);
    }
  }
  return whole;
}

}  // namespace

CommSettings read_config(const ncclConfig_t* given, const CommSettings& defaults) {
  CommSettings settings = defaults;
  if (given != nullptr) {
    if (given->magic != NCCL_API_MAGIC) {
      throw error(ErrorCode::kInvalidArgument,
                  "config was not initialised: start it from NCCL_CONFIG_INITIALIZER");
    }
    if (given->size < kLeastSize) {
      throw error(ErrorCode::kInvalidArgument, "config of {} bytes: the smallest has {}",
                  given->size, kLeastSize);
    }
    const ncclConfig_t config = widen(*given);
    for (const IntegerField& field : kFields) {
      const int value = load(config, field);
      if (value != NCCL_CONFIG_UNDEF_INT && (value < field.least || value > field.most)) {
        const std::string limit = field.most == INT_MAX ? "more" : std::to_string(field.most);
        throw error(ErrorCode::kInvalidArgument, "config.{} is {}: it must be {} to {}", field.name,
                    value, field.least, limit);
      }
    }
    if (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
        config.minCTAs > config.maxCTAs) {
      throw error(ErrorCode::kInvalidArgument, "config.minCTAs is {}, more than maxCTAs, {}",
                  config.minCTAs, config.maxCTAs);
    }
    if (config.blocking != NCCL_CONFIG_UNDEF_INT) {
      settings.is_blocking = config.blocking == 1;
    }
    if (config.commName != nullptr) {
      settings.name = config.commName;
    }
  }
  // As in NCCL, the environment has the last word.
  settings.is_blocking = blocking_from_environment(settings.is_blocking);
  return settings;
}

}  // namespace ljtrain::accl::api
