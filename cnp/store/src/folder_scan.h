// A folder's files, cheaply: names and inode numbers only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>

namespace ljtrain::cnp {

// Changes when a file is added, removed or replaced by rename; "" for a folder that does not exist.
// Within the clock tick of the last change a further one could go unseen: `settled` is false then,
// and the fingerprint must not be trusted later.
struct FolderFingerprint {
  std::string value;
  bool settled = false;
};
FolderFingerprint fingerprint(const std::filesystem::path& folder);

using FolderListing = std::unordered_map<std::string, std::int64_t>;  // name -> inode

// The files whose names end in .json and do not begin with a dot. Empty for a folder that does not
// exist; UserError for one that cannot be read.
FolderListing list_json_files(const std::filesystem::path& folder);

}  // namespace ljtrain::cnp
