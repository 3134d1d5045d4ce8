#include "cnp/record_schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "record_schema_text.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using Pointer = Json::json_pointer;

// Keywords that describe and do not constrain.
constexpr std::array kAnnotations = {"$schema", "$id", "$defs", "title", "description"};

bool is_annotation(const std::string& keyword) {
  for (const char* known : kAnnotations) {
    if (keyword == known) return true;
  }
  return false;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
  }
  throw std::logic_error("schema: no such type: " + type);
}

std::string type_of(const Json& value) {
  return value.is_number_integer() ? "integer" : value.type_name();
}

// "text" cut to what fits a message.
std::string shown(const Json& value) {
  static constexpr std::size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

class Validator {
 public:
  explicit Validator(const Json& document) : document_(document) {}

  std::vector<Violation> check(const Json& value, const Json& schema, const Pointer& at) const {
    std::vector<Violation> found;
    if (schema == false) return {{at, "is not allowed here"}};
    if (schema == true) return found;
    for (const auto& [keyword, rule] : schema.items()) {
      if (!is_annotation(keyword)) apply(keyword, rule, value, schema, at, found);
    }
    return found;
  }

 private:
  using Found = std::vector<Violation>;

  void apply(const std::string& keyword, const Json& rule, const Json& value, const Json& schema,
             const Pointer& at, Found& found) const {
    if (keyword == "$ref") {
      add(check(value, document_.at(Pointer(rule.get<std::string>().substr(1))), at), found);
    } else if (keyword == "type") {
      check_type(rule, value, at, found);
    } else if (keyword == "enum" || keyword == "const") {
      check_choice(keyword == "enum" ? rule : Json::array({rule}), value, at, found);
    } else if (keyword == "minimum" || keyword == "maximum") {
      check_range(keyword, rule, value, at, found);
    } else if (keyword == "minItems" || keyword == "maxItems") {
      check_length(keyword, rule, value, at, found);
    } else if (keyword == "items") {
      for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
        add(check(value[i], rule, at / i), found);
      }
    } else if (keyword == "properties" || keyword == "additionalProperties") {
      check_members(keyword, rule, value, schema, at, found);
    } else if (keyword == "required") {
      for (const Json& name : rule) {
        if (value.is_object() && !value.contains(name.get<std::string>())) {
          found.push_back({at, fmt::format("has no `{}`", name.get<std::string>())});
        }
      }
    } else if (keyword == "allOf") {
      for (const Json& branch : rule) add(check(value, branch, at), found);
    } else if (keyword == "anyOf") {
      check_any(rule, value, at, found);
    } else {
      throw std::logic_error("schema: unsupported keyword: " + keyword);
    }
  }

  static void add(Found&& more, Found& found) {
    found.insert(found.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  }

  static void check_type(const Json& rule, const Json& value, const Pointer& at, Found& found) {
    std::vector<std::string> types;
    for (const Json& type : rule.is_array() ? rule : Json::array({rule})) {
      types.push_back(type.get<std::string>());
      if (has_type(value, types.back())) return;
    }
    found.push_back({at, fmt::format("must be of type {}, and is {}", fmt::join(types, " or "),
                                     type_of(value))});
  }

  static void check_choice(const Json& choices, const Json& value, const Pointer& at,
                           Found& found) {
    std::vector<std::string> names;
    for (const Json& choice : choices) {
      if (choice == value) return;
      names.push_back(choice.dump());
    }
    found.push_back(
        {at, fmt::format("must be {}, and is {}", fmt::join(names, " or "), shown(value))});
  }

  static void check_range(const std::string& keyword, const Json& bound, const Json& value,
                          const Pointer& at, Found& found) {
    if (!value.is_number()) return;
    bool low = keyword == "minimum";
    if (low ? value < bound : bound < value) {
      found.push_back({at, fmt::format("must be at {} {}, and is {}", low ? "least" : "most",
                                       bound.dump(), value.dump())});
    }
  }

  static void check_length(const std::string& keyword, const Json& bound, const Json& value,
                           const Pointer& at, Found& found) {
    if (!value.is_array()) return;
    bool low = keyword == "minItems";
    if (auto limit = bound.get<std::size_t>(); low ? value.size() < limit : value.size() > limit) {
      found.push_back({at, fmt::format("must have at {} {} elements, and has {}",
                                       low ? "least" : "most", limit, value.size())});
    }
  }

  void check_members(const std::string& keyword, const Json& rule, const Json& value,
                     const Json& schema, const Pointer& at, Found& found) const {
    if (!value.is_object()) return;
    static const Json kNone = Json::object();
    const Json& named = schema.contains("properties") ? schema.at("properties") : kNone;
    for (const auto& [name, member] : value.items()) {
      if (keyword == "properties" && rule.contains(name)) {
        add(check(member, rule.at(name), at / name), found);
      } else if (keyword == "additionalProperties" && !named.contains(name)) {
        add(check(member, rule, at / name), found);
      }
    }
  }

  // When no branch fits, the complaint is that of the branch that got furthest into the value.
  void check_any(const Json& branches, const Json& value, const Pointer& at, Found& found) const {
    Found best;
    std::size_t best_depth = 0;
    for (const Json& branch : branches) {
      Found wrong = check(value, branch, at);
      if (wrong.empty()) return;
      std::size_t deepest = depth(wrong.front().where);
      if (best.empty() || deepest > best_depth) {
        best = std::move(wrong);
        best_depth = deepest;
      }
    }
    add(std::move(best), found);
  }

  static std::size_t depth(Pointer pointer) {
    std::size_t levels = 0;
    for (; !pointer.empty(); pointer.pop_back()) ++levels;
    return levels;
  }

  const Json& document_;
};

}  // namespace

const Json& record_schema() {
  static const Json schema = Json::parse(record_schema_text());
  return schema;
}

const Json& collectives_schema() {
  static const Json schema = Json::parse(collectives_schema_text());
  return schema;
}

std::vector<Violation> violations(const Json& value, const Json& schema) {
  return Validator(schema).check(value, schema, Pointer());
}

std::vector<Violation> validate(const Json& record) { return violations(record, record_schema()); }

}  // namespace ljtrain::cnp
