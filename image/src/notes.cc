#include "image/notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>

#include "base/errors.h"
#include "base/text.h"
#include "image/listing.h"

namespace ljtrain::image {
namespace {

using base::Json;
using Pointer = Json::json_pointer;

// A number, or null where a row failed; the key must be there if it is needed.
std::optional<double> number(const base::JsonDocument& document, const Pointer& pointer,
                             bool needed) {
  const Json& root = document.root();
  if (!root.contains(pointer)) {
    if (needed) {
      throw base::user_error("{}: is missing; `cnp ablate --json` writes it",
                             document.where(pointer));
    }
    return std::nullopt;
  }
  if (root[pointer].is_null()) {
    return std::nullopt;
  }
  if (!root[pointer].is_number() || !std::isfinite(root[pointer].get<double>())) {
    throw base::user_error("{}: must be a number", document.where(pointer));
  }
  return root[pointer].get<double>();
}

std::string text_at(const Json& root, const char* key) {
  auto found = root.find(key);
  return found != root.end() && found->is_string() ? found->get<std::string>() : "";
}

// Text inside a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string safe;
  for (char c : base::printable(text)) {
    if (c == '|' || c == '\\' || c == '`' || c == '*' || c == '_') {
      safe += '\\';
    }
    safe += c == '<' ? std::string("&lt;") : std::string(1, c);
  }
  return safe;
}

std::string ablation_line(const AblationRow& row) {
  std::string interval = row.low.has_value() && row.high.has_value()
                             ? fmt::format("{:.3f} to {:.3f}", *row.low, *row.high)
                             : "-";
  std::string contribution =
      row.contribution.has_value() ? fmt::format("{:+.1f} %", (*row.contribution - 1) * 100) : "-";
  return fmt::format(
      "| {}{} | {} | {} | {} | {} |\n", cell(row.configuration),
      row.other_loss ? " (other loss)" : "",
      row.tokens_per_s.has_value() ? fmt::format("{:.1f}", *row.tokens_per_s) : "failed",
      row.speedup.has_value() ? fmt::format("{:.3f}", *row.speedup) : "-", interval, contribution);
}

std::string ablation_table(const NotesInput& input) {
  if (!input.ablation.has_value()) {
    return "Not measured for this release.\n";
  }
  const Ablation& ablation = *input.ablation;
  std::string text;
  if (!ablation.model.empty()) {
    text += fmt::format("Model `{}`{}.\n\n", ablation.model,
                        ablation.proxy.empty() ? "" : ", as PROXY " + cell(ablation.proxy));
  }
  text +=
      "| configuration | tokens/s | speed-up over base | 95 % interval | contribution |\n"
      "|---|---|---|---|---|\n";
  bool other_loss = false;
  for (const AblationRow& row : ablation.rows) {
    text += ablation_line(row);
    other_loss = other_loss || row.other_loss;
  }
  text += fmt::format("\nFrom `{}`{}.\n",
                      cell(std::filesystem::path(input.ablation_source).filename().string()),
                      ablation.interrupted ? ", which was interrupted" : "");
  if (!ablation.proxy.empty()) {
    text += "\nNot the full model: shares of time on a proxy are not those of the model.\n";
  }
  if (other_loss) {
    text += "\nSpeed with another loss is no speed: rows marked so do not count.\n";
  }
  return text;
}

std::string changes_table(const Release& before, const Release& after) {
  std::string text = fmt::format("## Changes since {0}\n\n| | {0} | {1} |\n|---|---|---|\n",
                                 before.name, after.name);
  for (const Difference& difference : compare(before, after, "amd64")) {
    text += fmt::format("| {} | {} | {} |\n", cell(difference.key),
                        difference.before.empty() ? "not listed" : cell(difference.before),
                        difference.after.empty() ? "not listed" : cell(difference.after));
  }
  return text + "\n";
}

std::string driver_section(const Release& release) {
  if (!release.cuda.has_value()) {
    return "The image holds no CUDA and needs no driver.\n";
  }
  std::string text = fmt::format("CUDA {}", release.cuda->text());
  if (release.driver.has_value()) {
    text += fmt::format("; driver {} or newer", release.driver->minimum.text());
    if (!release.driver->note.empty()) {
      text += fmt::format(" ({})", release.driver->note);
    }
  }
  return text + ". `ljperf doctor` judges the driver at hand.\n";
}

}  // namespace

Ablation read_ablation(const base::JsonDocument& document) {
  const Json& root = document.root();
  Pointer rows("/rows");
  if (!root.is_object() || !root.contains("rows") || !root["rows"].is_array()) {
    throw base::user_error("{}: holds no list `rows`: is it what `cnp ablate --json` wrote?",
                           document.name());
  }
  Ablation ablation;
  ablation.model = text_at(root, "model");
  ablation.proxy = text_at(root, "proxy");
  ablation.interrupted = text_at(root, "status") == "interrupted";
  for (std::size_t i = 0; i < root["rows"].size(); ++i) {
    Pointer at = rows / i;
    const Json& row = root["rows"][i];
    if (!row.is_object() || !row.contains("configuration") || !row["configuration"].is_string()) {
      throw base::user_error("{}: must be text", document.where(at / "configuration"));
    }
    AblationRow read;
    read.configuration = row["configuration"].get<std::string>();
    read.tokens_per_s = number(document, at / "tokens_per_s", true);
    read.speedup = number(document, at / "speedup_vs_base", true);
    if (row.contains("ci95") && row["ci95"].is_array() && row["ci95"].size() == 2) {
      read.low = number(document, at / "ci95" / 0, false);
      read.high = number(document, at / "ci95" / 1, false);
    }
    read.contribution = number(document, at / "contribution", false);
    Pointer verdict("/loss_parity/verdict");
    read.other_loss = row.contains(verdict) && row[verdict] == "outside";
    ablation.rows.push_back(std::move(read));
  }
  return ablation;
}

std::string write_notes(const NotesInput& input) {
  const Release& release = *input.release;
  std::string text = fmt::format("# Release {}\n\n", release.name);
  text += fmt::format("Tag `{}`{}.\n\n", release.tag,
                      release.scenario.empty() ? "" : ", for " + release.scenario);
  text += fmt::format("    {}\n", release.public_address);
  if (!release.vpc_address.empty()) {
    text += fmt::format("    {}\n", release.vpc_address);
  }
  text += fmt::format("\n## Driver\n\n{}\n", driver_section(release));
  text += "## Network\n\n";
  for (const InterfaceRule& rule : release.interface_rules) {
    text += fmt::format("- `NCCL_SOCKET_IFNAME`: {}\n", describe(rule));
  }
  text += "\n## Use\n\n";
  for (const auto& [key, value] : release.usage) {
    text += fmt::format("- {}: `{}`\n", key, value);
  }
  text += "\n## What each part brings\n\n" + ablation_table(input) + "\n";
  if (input.since != nullptr) {
    text += changes_table(*input.since, release);
  }
  text += "## Components\n\n| component | version |\n|---|---|\n";
  for (const auto& [name, version] : release.components) {
    text += fmt::format("| {} | {} |\n", cell(name), cell(version));
  }
  for (const auto& [architecture, difference] : release.architecture_differences) {
    text += fmt::format("\nOn {} without {}", architecture, fmt::join(difference.first, ", "));
    for (const auto& [name, version] : difference.second) {
      text += fmt::format("; with {} {}", name, version);
    }
    text += ".\n";
  }
  text += "\n## Limits\n\n";
  if (!release.not_for.empty()) {
    text += fmt::format("- Not for {}.\n", release.not_for);
  }
  for (const std::string& issue : release.known_issues) {
    text += fmt::format("- {}\n", issue);
  }
  for (const auto& [key, value] : release.deepspeed_rules) {
    text += fmt::format("- DeepSpeed's `{}` must be {}.\n", key, value);
  }
  if (!release.do_not_reinstall.empty()) {
    text += fmt::format("- Do not reinstall {}.\n", fmt::join(release.do_not_reinstall, ", "));
  }
  if (!release.fixes.empty()) {
    text += fmt::format("\n## Fixes\n\n- {}\n", fmt::join(release.fixes, "\n- "));
  }
  return text;
}

}  // namespace ljtrain::image
