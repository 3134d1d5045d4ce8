#include "memory_model/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

constexpr std::size_t kMostTerms = 256;
constexpr std::size_t kMostFactors = 8;
constexpr double kLargestCoefficient = 1e15;
constexpr std::string_view kBetweenTerms = " + ";

constexpr std::array<std::int64_t Sizes::*, kSymbols> kFields{
    &Sizes::micro_batch, &Sizes::seq,        &Sizes::hidden,    &Sizes::ffn,     &Sizes::heads,
    &Sizes::kv_heads,    &Sizes::head_dim,   &Sizes::vocab,     &Sizes::experts, &Sizes::top_k,
    &Sizes::moe_ffn,     &Sizes::shared_ffn, &Sizes::lora_rank, &Sizes::window,  &Sizes::positions};

// Takes what comes before `separator`, or all, off the front of `text`.
std::string_view take(std::string_view& text, std::string_view separator) {
  std::size_t end = text.find(separator);
  std::string_view piece = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + separator.size());
  return piece;
}

// What a user's text looks like in an error: short, and nothing that a terminal acts on.
std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string shown(text.substr(0, kMost));
  std::ranges::replace_if(shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return fmt::format("\"{}{}\"", shown, text.size() > kMost ? "..." : "");
}

std::optional<std::uint8_t> symbol_number(std::string_view name) {
  auto found = std::ranges::find(symbol_names(), name);
  if (found == symbol_names().end()) {
    return std::nullopt;
  }
  return static_cast<std::uint8_t>(found - symbol_names().begin());
}

double parse_coefficient(std::string_view text, std::string_view whole) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      std::abs(value) >= kLargestCoefficient) {
    throw base::user_error(
        "expression {}: {} is no coefficient; each term starts with a number below 10^15",
        quoted(whole), quoted(text));
  }
  return value;
}

}  // namespace

const std::array<std::string_view, kSymbols>& symbol_names() {
  static constexpr std::array<std::string_view, kSymbols> kNames{
      "micro_batch", "seq",   "hidden",  "ffn",        "heads",     "kv_heads", "head_dim", "vocab",
      "experts",     "top_k", "moe_ffn", "shared_ffn", "lora_rank", "window",   "positions"};
  return kNames;
}

std::int64_t size_of_symbol(const Sizes& sizes, std::size_t symbol) {
  return sizes.*kFields.at(symbol);
}

void set_size_of_symbol(Sizes& sizes, std::size_t symbol, std::int64_t value) {
  sizes.*kFields.at(symbol) = value;
}

Expression Expression::constant(double value) {
  Expression expression;
  expression.terms_.push_back({.coefficient = value, .factors = {}});
  return expression;
}

Expression Expression::parse(std::string_view text) {
  Expression expression;
  std::string_view rest = text;
  do {
    std::string_view product = take(rest, kBetweenTerms);
    Term term;
    term.coefficient = parse_coefficient(take(product, "*"), text);
    while (!product.empty()) {
      std::string_view name = take(product, "*");
      std::optional<std::uint8_t> symbol = symbol_number(name);
      if (!symbol.has_value()) {
        throw base::user_error("expression {}: unknown symbol {}; known are {}", quoted(text),
                               quoted(name), fmt::join(symbol_names(), ", "));
      }
      term.factors.push_back(*symbol);
    }
    if (term.factors.size() > kMostFactors || expression.terms_.size() == kMostTerms) {
      throw base::user_error("expression {}: more than {} factors in a term or {} terms",
                             quoted(text), kMostFactors, kMostTerms);
    }
    std::ranges::sort(term.factors);
    expression.terms_.push_back(std::move(term));
  } while (!rest.empty());
  return expression;
}

double Expression::evaluate(const Sizes& sizes) const {
  double sum = 0;
  for (const Term& term : terms_) {
    double product = term.coefficient;
    for (std::uint8_t symbol : term.factors) {
      product *= static_cast<double>(sizes.*kFields[symbol]);
    }
    sum += product;
  }
  return sum;
}

std::size_t Expression::degree() const {
  std::size_t degree = 0;
  for (const Term& term : terms_) {
    degree = std::max(degree, term.factors.size());
  }
  return degree;
}

bool Expression::depends_on(std::size_t symbol) const {
  return std::ranges::any_of(terms_, [symbol](const Term& term) {
    return std::ranges::find(term.factors, symbol) != term.factors.end();
  });
}

std::string Expression::text() const {
  std::string text;
  for (const Term& term : terms_) {
    text +=
        fmt::format("{}{}", text.empty() ? std::string_view() : kBetweenTerms, term.coefficient);
    for (std::uint8_t symbol : term.factors) {
      text += fmt::format("*{}", symbol_names()[symbol]);
    }
  }
  return text;
}

}  // namespace ljtrain::recompute
