// Sizes of tensors as polynomials in the sizes of a model and its batch, so that one trace serves
// every model of a family.
//
// Text form: terms joined by " + ", factors of a term by "*", the numeric coefficient first, powers
// by repetition: `2*micro_batch*seq*hidden + 4*micro_batch*heads*seq`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::recompute {

// What the symbols of an expression stand for, under their names. Unused ones are 0.
struct Sizes {
  std::int64_t micro_batch = 0;  // sequences a rank computes at once
  std::int64_t seq = 0;          // tokens in a sequence
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;  // of the dense MLP
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab = 0;
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t moe_ffn = 0;     // of one routed expert
  std::int64_t shared_ffn = 0;  // summed over the experts that see every token
  std::int64_t lora_rank = 0;
  std::int64_t window = 0;     // tokens a query may look at in windowed layers
  std::int64_t positions = 0;  // rows of a learned position embedding

  bool operator==(const Sizes&) const = default;
};

inline constexpr std::size_t kSymbols = 15;
// The number of `vocab`, counted as in symbol_names().
inline constexpr std::size_t kSymbolVocab = 7;

// Names in the order of the struct's fields.
const std::array<std::string_view, kSymbols>& symbol_names();
// The value of symbol number `symbol`, counted as in symbol_names().
std::int64_t size_of_symbol(const Sizes& sizes, std::size_t symbol);
void set_size_of_symbol(Sizes& sizes, std::size_t symbol, std::int64_t value);

class Expression {
 public:
  // Throws UserError on anything but the text form: an unknown symbol, a coefficient that is not a
  // finite number below 10^15, more than 8 factors in a term or 256 terms.
  static Expression parse(std::string_view text);
  // A constant.
  static Expression constant(double value);

  double evaluate(const Sizes& sizes) const;
  // The canonical text; parse(text()) is the same expression.
  std::string text() const;
  // Factors of the longest term: 2 for a matrix.
  std::size_t degree() const;
  // True when a term has the symbol of this number.
  bool depends_on(std::size_t symbol) const;

  bool operator==(const Expression&) const = default;

 private:
  struct Term {
    double coefficient = 0;
    std::vector<std::uint8_t> factors;  // numbers of symbols, ascending

    bool operator==(const Term&) const = default;
  };

  std::vector<Term> terms_;
};

}  // namespace ljtrain::recompute
