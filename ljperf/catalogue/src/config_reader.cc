#include "config_reader.h"

namespace ljtrain::ljperf {
namespace {

base::Json::json_pointer pointer_to(std::string_view key) {
  return base::Json::json_pointer() / std::string(key);
}

}  // namespace

std::string shown(const base::Json& value) {
  static constexpr std::size_t kMost = 40;
  if (value.is_array()) {
    return "a list";
  }
  if (value.is_object()) {
    return "an object";
  }
  // Strings of a user's file may hold any bytes: never throw over them.
  std::string text = value.dump(-1, ' ', true, base::Json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

const base::Json* ConfigReader::find(std::string_view key) const {
  const base::Json& root = document_.root();
  auto found = root.find(key);
  return found == root.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

std::string_view ConfigReader::present(std::initializer_list<std::string_view> names) const {
  for (std::string_view name : names) {
    if (document_.root().contains(name)) {
      return name;
    }
  }
  return "";
}

std::string ConfigReader::where(std::string_view key) const {
  return document_.where(pointer_to(key));
}

base::UserError ConfigReader::wrong_type(std::string_view key, std::string_view wanted) const {
  return base::user_error("{} is {}; write {}", where(key), shown(document_.root()[key]), wanted);
}

std::optional<std::int64_t> ConfigReader::integer(std::string_view key, std::int64_t least,
                                                  std::int64_t most) const {
  const base::Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  bool whole = value->is_number_integer();
  // Unsigned values above int64 would wrap: compare them before they are converted.
  bool too_large =
      value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  if (!whole || too_large || value->get<std::int64_t>() < least ||
      value->get<std::int64_t>() > most) {
    throw wrong_type(key, fmt::format("a whole number from {} to {}", least, most));
  }
  return value->get<std::int64_t>();
}

std::int64_t ConfigReader::required(std::string_view key, std::int64_t least,
                                    std::int64_t most) const {
  if (std::optional<std::int64_t> value = integer(key, least, most)) {
    return *value;
  }
  throw base::user_error("{} is absent; write a whole number from {} to {}", where(key), least,
                         most);
}

std::int64_t ConfigReader::integer_or(std::string_view key, std::int64_t least, std::int64_t most,
                                      std::int64_t otherwise) const {
  return integer(key, least, most).value_or(otherwise);
}

bool ConfigReader::boolean_or(std::string_view key, bool otherwise) const {
  const base::Json* value = find(key);
  if (value == nullptr) {
    return otherwise;
  }
  if (!value->is_boolean()) {
    throw wrong_type(key, "true or false");
  }
  return value->get<bool>();
}

std::string ConfigReader::string_or(std::string_view key, std::string_view otherwise) const {
  const base::Json* value = find(key);
  if (value == nullptr) {
    return std::string(otherwise);
  }
  if (!value->is_string()) {
    throw wrong_type(key, "a string");
  }
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> ConfigReader::strings(std::string_view key) const {
  const base::Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_array() || value->size() > Limit::kLayers) {
    throw wrong_type(key, "a list of strings");
  }
  std::vector<std::string> list;
  for (const base::Json& entry : *value) {
    if (!entry.is_string()) {
      throw wrong_type(key, "a list of strings and nothing else");
    }
    list.push_back(entry.get<std::string>());
  }
  return list;
}

std::optional<std::vector<std::int64_t>> ConfigReader::integers(std::string_view key) const {
  const base::Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_array() || value->size() > Limit::kLayers) {
    throw wrong_type(key, "a list of whole numbers");
  }
  std::vector<std::int64_t> list;
  for (const base::Json& entry : *value) {
    if (!entry.is_number_integer() ||
        (entry.is_number_unsigned() && entry.get<std::uint64_t>() > Limit::kSize)) {
      throw wrong_type(key, "a list of whole numbers and nothing else");
    }
    list.push_back(entry.get<std::int64_t>());
  }
  return list;
}

}  // namespace ljtrain::ljperf
