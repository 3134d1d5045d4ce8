#include "base/json.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"

namespace ljtrain::base {
namespace {

// An input iterator over text that counts the lines it has passed, so that a SAX event knows where
// it is.
class LineCountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCountingIterator(const char* position, std::size_t* line)
      : position_(position), line_(line) {}
  reference operator*() const { return *position_; }
  LineCountingIterator& operator++() {
    if (*position_ == '\n') {
      ++*line_;
    }
    ++position_;
    return *this;
  }
  LineCountingIterator operator++(int) {
    LineCountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineCountingIterator& other) const { return position_ == other.position_; }
  bool operator!=(const LineCountingIterator& other) const { return position_ != other.position_; }

 private:
  const char* position_;
  std::size_t* line_;
};

// Follows the path of the value being parsed and remembers the line on which the wanted one starts.
class PathFinder : public nlohmann::json_sax<Json> {
 public:
  PathFinder(std::string wanted, const std::size_t* line)
      : wanted_(std::move(wanted)), line_(line) {}

  std::size_t found() const { return found_; }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return enter(false); }
  bool start_array(std::size_t) override { return enter(true); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    Json::json_pointer pointer = levels_.back().pointer / name;
    levels_.back().next = pointer;
    if (pointer.to_string() == wanted_) {
      found_ = *line_;
      return false;  // ends the parse
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  struct Level {
    Json::json_pointer pointer;
    Json::json_pointer next;
    bool is_array;
    std::size_t index;
  };

  // The pointer of the value that starts now.
  Json::json_pointer here() {
    if (levels_.empty()) {
      return Json::json_pointer();
    }
    Level& level = levels_.back();
    return level.is_array ? level.pointer / level.index++ : level.next;
  }
  bool value() { return !matches(here()); }
  bool enter(bool is_array) {
    Json::json_pointer pointer = here();
    if (matches(pointer)) {
      return false;
    }
    levels_.push_back({pointer, pointer, is_array, 0});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return true;
  }
  bool matches(const Json::json_pointer& pointer) {
    if (pointer.to_string() != wanted_) {
      return false;
    }
    found_ = *line_;
    return true;
  }

  std::string wanted_;
  const std::size_t* line_;
  std::size_t found_ = 0;
  std::vector<Level> levels_;
};

// nlohmann quotes what it read, which may be megabytes; and its codes mean nothing to a user.
std::string shortened(std::string what) {
  constexpr std::size_t kMost = 300;
  std::size_t code = what.find("] ");
  what = what.starts_with("[json.exception.") && code != std::string::npos ? what.substr(code + 2)
                                                                           : what;
  return printable(what, kMost);
}

// nlohmann's "[json.exception.parse_error.101] parse error at line 3, column 7: why" -> line,
// column and why.
std::string describe(const std::string& name, const Json::parse_error& error) {
  std::string what = error.what();
  std::size_t line = 0;
  std::size_t column = 0;
  constexpr std::string_view kLine = "at line ";
  constexpr std::string_view kColumn = ", column ";
  std::size_t at = what.find(kLine);
  if (at != std::string::npos) {
    char* rest = nullptr;
    line = std::strtoul(what.c_str() + at + kLine.size(), &rest, 10);
    column = std::strtoul(rest + kColumn.size(), nullptr, 10);
    std::size_t colon = what.find(": ", at);
    what = colon == std::string::npos ? what : what.substr(colon + 2);
  }
  return fmt::format("{}:{}:{}: not valid JSON: {}", name, line, column, shortened(what));
}

}  // namespace

JsonDocument::JsonDocument(Json root, std::string text, std::string name)
    : root_(std::move(root)), text_(std::move(text)), name_(std::move(name)) {}

JsonDocument JsonDocument::parse(std::string text, std::string name) {
  // nlohmann parses without recursion, but destroys and copies values recursively: bound the depth
  // first.
  static constexpr int kMaxDepth = 256;
  auto bounded = [&name](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw user_error("{}: nested deeper than {} levels; this is no configuration file", name,
                       kMaxDepth);
    }
    return true;
  };
  try {
    Json root = Json::parse(text, bounded);
    return JsonDocument(std::move(root), std::move(text), std::move(name));
  } catch (const Json::parse_error& error) {
    throw UserError(describe(name, error));
  } catch (const Json::exception& error) {  // a number beyond double's range
    throw user_error("{}: not usable JSON: {}", name, shortened(error.what()));
  }
}

JsonDocument JsonDocument::read(const std::filesystem::path& file, std::uintmax_t max_bytes) {
  std::error_code code;
  if (std::filesystem::is_directory(file, code)) {
    throw user_error("{}: is a directory, not a JSON file", file.string());
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw user_error("{}: cannot be read: {}", file.string(), std::strerror(errno));
  }
  std::string text;
  char buffer[1 << 16];
  while (stream.read(buffer, sizeof buffer) || stream.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(stream.gcount()));
    if (text.size() > max_bytes) {
      throw user_error("{}: larger than {} bytes; this is no configuration file", file.string(),
                       max_bytes);
    }
  }
  return parse(std::move(text), file.string());
}

std::string JsonDocument::where(const Json::json_pointer& pointer) const {
  std::string key;
  for (Json::json_pointer rest = pointer; !rest.empty(); rest = rest.parent_pointer()) {
    key = key.empty() ? rest.back() : rest.back() + "." + key;
  }
  std::size_t line = line_of(text_, pointer);
  return line == 0 ? fmt::format("{}: key `{}`", name_, key)
                   : fmt::format("{}:{}: key `{}`", name_, line, key);
}

std::size_t line_of(std::string_view text, const Json::json_pointer& pointer) {
  std::size_t line = 1;
  PathFinder finder(pointer.to_string(), &line);
  const char* end = text.data() + text.size();
  Json::sax_parse(LineCountingIterator(text.data(), &line), LineCountingIterator(end, &line),
                  &finder);
  return finder.found();
}

void write_file_atomically(const std::filesystem::path& file, std::string_view content) {
  // rename() would put a file in the place of a device such as /dev/stdout.
  std::error_code code;
  if (std::filesystem::exists(file, code) && !std::filesystem::is_regular_file(file, code)) {
    throw user_error("{}: cannot be written: it is there and is no regular file", file.string());
  }
  std::string temporary = fmt::format("{}.{}.tmp", file.string(), ::getpid());
  auto fail = [&](const char* step) {
    int reason = errno;
    ::unlink(temporary.c_str());
    return user_error("{}: cannot be written ({}: {}); choose a writable folder with free space",
                      file.string(), step, std::strerror(reason));
  };
  int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    throw fail("open");
  }
  for (std::size_t done = 0; done < content.size();) {
    ssize_t count = ::write(descriptor, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      int reason = errno;
      ::close(descriptor);
      errno = reason;
      throw fail("write");
    }
    done += static_cast<std::size_t>(count);
  }
  bool synced = ::fsync(descriptor) == 0;
  if (::close(descriptor) != 0 || !synced) {
    throw fail("sync");
  }
  if (::rename(temporary.c_str(), file.c_str()) != 0) {
    throw fail("rename");
  }
}

}  // namespace ljtrain::base
