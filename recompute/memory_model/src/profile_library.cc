#include <map>
#include <mutex>
#include <string>

#include "embedded_profiles.h"
#include "memory_model/profile.h"

namespace ljtrain::recompute {

const Profile* find_profile(std::string_view family) {
  static std::mutex mutex;
  static std::map<std::string, Profile, std::less<>> read;
  const std::scoped_lock guard(mutex);
  auto found = read.find(family);
  if (found != read.end()) {
    return &found->second;
  }
  for (const EmbeddedProfile& embedded : embedded_profiles()) {
    if (embedded.family == family) {
      std::string name = std::string(family) + ".json";
      Profile profile = read_profile(base::JsonDocument::parse(std::string(embedded.json), name));
      return &read.emplace(std::string(family), std::move(profile)).first->second;
    }
  }
  return nullptr;
}

std::vector<std::string> profile_families() {
  std::vector<std::string> families;
  for (const EmbeddedProfile& embedded : embedded_profiles()) {
    families.emplace_back(embedded.family);
  }
  return families;
}

}  // namespace ljtrain::recompute
