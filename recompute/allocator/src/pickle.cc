#include "pickle.h"

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

constexpr std::size_t kDeepest = 1000;  // open marks; a snapshot has fewer than 10

// Opcodes that build objects or call functions, or that only old protocols have.
std::string_view refused_opcode(unsigned char opcode) {
  switch (opcode) {
    case 'c':
      return "GLOBAL";
    case 0x93:
      return "STACK_GLOBAL";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 0x82:
    case 0x83:
    case 0x84:
      return "EXT";
    case 'P':
    case 'Q':
      return "PERSID";
    case 0x97:
    case 0x98:
      return "NEXT_BUFFER";
    default:
      return {};
  }
}

}  // namespace

class PickleMachine {
 public:
  PickleMachine(std::string bytes, std::string name) {
    document_.bytes_ = std::make_shared<const std::string>(std::move(bytes));
    document_.name_ = std::move(name);
    bytes_ = *document_.bytes_;
  }

  PickleDocument run() {
    check_start();
    while (step()) {
    }
    document_.root_ = pop();
    return std::move(document_);
  }

 private:
  using Kind = PickleValue::Kind;

  void check_start() {
    if (bytes_.starts_with("\x1f\x8b") || bytes_.starts_with("PK")) {
      throw base::user_error("{}: is compressed; unpack it first", document_.name_);
    }
    if (!bytes_.starts_with('\x80')) {
      throw base::user_error(
          "{}: is no pickle of protocol 2 or later; write it with "
          "torch.cuda.memory._dump_snapshot(FILE)",
          document_.name_);
    }
  }

  bool step() {
    start_ = at_;
    unsigned char opcode = byte();
    switch (opcode) {
      case 0x80:  // PROTO
        read_protocol();
        return true;
      case 0x95:  // FRAME: only says how far to read ahead
        skip(8);
        return true;
      case '.':  // STOP
        return false;
      case 'N':
        push({});
        return true;
      case 0x88:
      case 0x89:
        push({.kind = Kind::kBoolean, .integer = opcode == 0x88 ? 1 : 0});
        return true;
      case 'G':  // BINFLOAT, big-endian
        push({.kind = Kind::kReal, .integer = static_cast<std::int64_t>(big_endian())});
        return true;
      default:
        step_number(opcode) || step_text(opcode) || step_memo(opcode) || step_container(opcode) ||
            refuse(opcode);
        return true;
    }
  }

  bool step_number(unsigned char opcode) {
    switch (opcode) {
      case 'K':
        push_integer(static_cast<std::int64_t>(number(1)));
        return true;
      case 'M':
        push_integer(static_cast<std::int64_t>(number(2)));
        return true;
      case 'J':
        push_integer(static_cast<std::int32_t>(number(4)));
        return true;
      case 0x8a:  // LONG1
        push_long(number(1));
        return true;
      case 0x8b:  // LONG4
        push_long(number(4));
        return true;
      default:
        return false;
    }
  }

  bool step_text(unsigned char opcode) {
    switch (opcode) {
      case 0x8c:
        push_text(number(1), Kind::kText);
        return true;
      case 'X':
        push_text(number(4), Kind::kText);
        return true;
      case 0x8d:
        push_text(number(8), Kind::kText);
        return true;
      case 'U':
      case 'C':
        push_text(number(1), Kind::kBytes);
        return true;
      case 'T':
      case 'B':
        push_text(number(4), Kind::kBytes);
        return true;
      case 0x8e:
        push_text(number(8), Kind::kBytes);
        return true;
      default:
        return false;
    }
  }

  bool step_memo(unsigned char opcode) {
    switch (opcode) {
      case 0x94:  // MEMOIZE
        memo_.push_back(top());
        return true;
      case 'q':
        put(number(1));
        return true;
      case 'r':
        put(number(4));
        return true;
      case 'h':
        get(number(1));
        return true;
      case 'j':
        get(number(4));
        return true;
      default:
        return false;
    }
  }

  bool step_container(unsigned char opcode) {
    switch (opcode) {
      case '(':
        if (marks_.size() == kDeepest) {
          throw error("is nested more than 1000 levels deep");
        }
        marks_.push_back(stack_.size());
        return true;
      case ']':
      case ')':
        push_list({});
        return true;
      case '}':
        push_dictionary();
        return true;
      case 'l':
      case 't':
        push_list(take_marked());
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        push_list(take(opcode - 0x84U));
        return true;
      case 'd': {
        std::vector<PickleValue> items = take_marked();
        push_dictionary();
        set_items(items);
        return true;
      }
      case 'a':
        append(take(1));
        return true;
      case 'e':
        append(take_marked());
        return true;
      case 's':
        set_items(take(2));
        return true;
      case 'u':
        set_items(take_marked());
        return true;
      default:
        return false;
    }
  }

  bool refuse(unsigned char opcode) {
    std::string_view name = refused_opcode(opcode);
    if (name.empty()) {
      throw error(fmt::format("opcode 0x{:02x} has no place in a memory snapshot", opcode));
    }
    throw error(
        fmt::format("{}{} would build an object or run code, which is refused: a memory "
                    "snapshot holds numbers, texts, lists and dictionaries only",
                    name, named_object(opcode)));
  }

  // " `module name`" for the opcodes that name what they want.
  std::string named_object(unsigned char opcode) const {
    std::string module;
    std::string name;
    if (opcode == 'c' || opcode == 'i') {
      std::string_view rest = bytes_.substr(at_, 200);
      std::size_t end = rest.find('\n');
      module = rest.substr(0, end);
      if (end != std::string_view::npos) {
        rest.remove_prefix(end + 1);
        name = rest.substr(0, rest.find('\n'));
      }
    } else if (opcode == 0x93 && stack_.size() >= 2) {
      PickleValue first = stack_[stack_.size() - 2];
      PickleValue second = stack_.back();
      if (first.kind == Kind::kText && second.kind == Kind::kText) {
        module = document_.text(first).substr(0, 100);
        name = document_.text(second).substr(0, 100);
      }
    }
    std::string both = module + (name.empty() ? "" : " ") + name;
    for (char& c : both) {
      c = c >= ' ' && c <= '~' ? c : '?';
    }
    return both.empty() ? "" : fmt::format(" `{}`", both);
  }

  void read_protocol() {
    std::uint64_t protocol = number(1);
    if (protocol < 2 || protocol > 5) {
      throw error(fmt::format("protocol {} is none of 2 to 5", protocol));
    }
  }

  unsigned char byte() { return static_cast<unsigned char>(number(1)); }

  void need(std::uint64_t count) const {
    if (count > bytes_.size() - at_) {
      throw base::user_error(
          "{}: ends at byte {} in the middle of a value; it was not written whole", document_.name_,
          bytes_.size());
    }
  }

  void skip(std::uint64_t count) {
    need(count);
    at_ += count;
  }

  std::uint64_t number(int bytes) {
    need(static_cast<std::uint64_t>(bytes));
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes_[at_ + i])} << (8 * i);
    }
    at_ += bytes;
    return value;
  }

  std::uint64_t big_endian() {
    std::uint64_t value = number(8);
    std::uint64_t swapped = 0;
    for (int i = 0; i < 8; ++i) {
      swapped = swapped << 8 | (value >> (8 * i) & 0xff);
    }
    return swapped;
  }

  void push(PickleValue value) { stack_.push_back(value); }

  void push_integer(std::int64_t value) { push({.kind = Kind::kInteger, .integer = value}); }

  // Two's complement, little-endian, of any length.
  void push_long(std::uint64_t bytes) {
    need(bytes);
    const auto* digits = reinterpret_cast<const unsigned char*>(bytes_.data()) + at_;
    at_ += bytes;
    bool negative = bytes > 0 && (digits[bytes - 1] & 0x80) != 0;
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (i < 8) {
        value = (value & ~(std::uint64_t{0xff} << (8 * i))) | std::uint64_t{digits[i]} << (8 * i);
      } else if (digits[i] != (negative ? 0xff : 0)) {
        push({.kind = Kind::kBigInteger});
        return;
      }
    }
    auto number = static_cast<std::int64_t>(value);
    push(
        {.kind = (number < 0) == negative ? Kind::kInteger : Kind::kBigInteger, .integer = number});
  }

  void push_text(std::uint64_t bytes, Kind kind) {
    need(bytes);
    std::uint32_t index = next_index(document_.texts_.size());
    document_.texts_.push_back(bytes_.substr(at_, bytes));
    at_ += bytes;
    push({.kind = kind, .index = index});
  }

  void push_list(std::vector<PickleValue> items) {
    std::uint32_t index = next_index(document_.lists_.size());
    document_.lists_.push_back(std::move(items));
    push({.kind = Kind::kList, .index = index});
  }

  void push_dictionary() {
    std::uint32_t index = next_index(document_.dictionaries_.size());
    document_.dictionaries_.emplace_back();
    push({.kind = Kind::kDictionary, .index = index});
  }

  std::uint32_t next_index(std::size_t size) const {
    if (size >= UINT32_MAX) {
      throw error("has more than 4 billion values");
    }
    return static_cast<std::uint32_t>(size);
  }

  PickleValue top() const {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
      throw error("a value is missing");
    }
    return stack_.back();
  }

  PickleValue pop() {
    PickleValue value = top();
    stack_.pop_back();
    return value;
  }

  std::vector<PickleValue> take(std::size_t count) {
    std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) {
      throw error("a value is missing");
    }
    std::vector<PickleValue> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }

  std::vector<PickleValue> take_marked() {
    if (marks_.empty()) {
      throw error("a mark is missing");
    }
    std::vector<PickleValue> items = take(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }

  void append(const std::vector<PickleValue>& items) {
    PickleValue list = top();
    if (list.kind != Kind::kList) {
      throw error(fmt::format("appends to {}", kind_name(list.kind)));
    }
    auto& values = document_.lists_[list.index];
    values.insert(values.end(), items.begin(), items.end());
  }

  void set_items(const std::vector<PickleValue>& items) {
    PickleValue dictionary = top();
    if (dictionary.kind != Kind::kDictionary || items.size() % 2 != 0) {
      throw error(dictionary.kind == Kind::kDictionary
                      ? "a key has no value"
                      : fmt::format("sets keys of {}", kind_name(dictionary.kind)));
    }
    auto& entries = document_.dictionaries_[dictionary.index];
    for (std::size_t i = 0; i < items.size(); i += 2) {
      entries.emplace_back(items[i], items[i + 1]);
    }
  }

  // Python numbers its memo without gaps, so a far index is no pickle of Python's.
  void put(std::uint64_t index) {
    if (index > memo_.size()) {
      throw error(fmt::format("memo {} is written before memo {}", index, memo_.size()));
    }
    if (index == memo_.size()) {
      memo_.push_back(top());
    } else {
      memo_[index] = top();
    }
  }

  void get(std::uint64_t index) {
    if (index >= memo_.size()) {
      throw error(fmt::format("memo {} is read and was never written", index));
    }
    push(memo_[index]);
  }

  base::UserError error(std::string_view what) const {
    return base::user_error("{}: at byte {}: {}", document_.name_, start_, what);
  }

  PickleDocument document_;
  std::string_view bytes_;
  std::size_t at_ = 0;
  std::size_t start_ = 0;  // of the opcode being read
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleValue> memo_;
};

PickleDocument PickleDocument::parse(std::string bytes, std::string name) {
  return PickleMachine(std::move(bytes), std::move(name)).run();
}

std::string_view kind_name(PickleValue::Kind kind) {
  switch (kind) {
    case PickleValue::Kind::kNone:
      return "None";
    case PickleValue::Kind::kBoolean:
      return "a boolean";
    case PickleValue::Kind::kInteger:
      return "a whole number";
    case PickleValue::Kind::kBigInteger:
      return "a number beyond 64 bits";
    case PickleValue::Kind::kReal:
      return "a real number";
    case PickleValue::Kind::kText:
      return "a text";
    case PickleValue::Kind::kBytes:
      return "bytes";
    case PickleValue::Kind::kList:
      return "a list";
    case PickleValue::Kind::kDictionary:
      return "a dictionary";
  }
  return "nothing";
}

}  // namespace ljtrain::recompute
