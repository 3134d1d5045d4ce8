// Reads Python pickles of plain data: numbers, texts, lists, tuples, dictionaries. It is a machine
// with a stack and nothing else: no class is looked up, nothing is called, and every opcode that
// would ask for it is refused by name. Source: CPython's Lib/pickletools.py.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ljtrain::recompute {

struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBoolean,
    kInteger,
    kBigInteger,  // beyond 64 bits; its value is not kept
    kReal,
    kText,
    kBytes,
    kList,  // and tuple
    kDictionary
  };
  Kind kind = Kind::kNone;
  std::uint32_t index = 0;   // of a text, list or dictionary in its document
  std::int64_t integer = 0;  // also a boolean; of a real number its bits

  double real() const { return std::bit_cast<double>(integer); }
};

// A document owns its values; lists and dictionaries may be shared, and may contain themselves.
class PickleDocument {
 public:
  // Protocols 2 to 5. Throws UserError: "NAME: at byte N: what is wrong". Time and memory are
  // linear in the size of the text (at most 120 bytes a byte).
  static PickleDocument parse(std::string bytes, std::string name);

  PickleValue root() const { return root_; }
  // Bytes that were read: a bound on the values that a document can really hold.
  std::size_t size() const { return bytes_->size(); }
  const std::string& name() const { return name_; }
  std::string_view text(PickleValue value) const { return texts_[value.index]; }
  const std::vector<PickleValue>& list(PickleValue value) const { return lists_[value.index]; }
  const std::vector<std::pair<PickleValue, PickleValue>>& dictionary(PickleValue value) const {
    return dictionaries_[value.index];
  }

 private:
  friend class PickleMachine;
  std::shared_ptr<const std::string> bytes_;
  std::string name_;
  PickleValue root_;
  std::vector<std::string_view> texts_;  // in bytes_
  std::vector<std::vector<PickleValue>> lists_;
  std::vector<std::vector<std::pair<PickleValue, PickleValue>>> dictionaries_;
};

// "a number", "a text", ... for messages.
std::string_view kind_name(PickleValue::Kind kind);

}  // namespace ljtrain::recompute
