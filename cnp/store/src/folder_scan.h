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

using FolderListing = std::unordered_map<std::string, std::int64_t>;  // name -> which file it is

// By what a file is told from the one that had its name before. A file that is replaced again and
// again gets the inode number of the last but one; its time of change tells them apart, but has to
// be asked for, file by file.
enum class FileIdentity { kInode, kInodeAndTime };

// The files whose names end in .json and do not begin with a dot. Empty for a folder that does not
// exist; UserError for one that cannot be read.
FolderListing list_json_files(const std::filesystem::path& folder, FileIdentity identity);

}  // namespace ljtrain::cnp
