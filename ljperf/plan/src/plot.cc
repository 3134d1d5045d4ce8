#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "answer.h"
#include "base/units.h"

namespace ljtrain::ljperf {
namespace {

using recompute::Component;
using recompute::Phase;
using recompute::TimelinePoint;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kLeft = 64;
constexpr double kTop = 34;
constexpr double kWidth = 1000;
constexpr double kHeight = 420;

struct Band {
  Component component;
  std::string_view name;
  std::string_view color;
};
// From bottom to top: what stays through the step first.
constexpr std::array kBands{
    Band{Component::kFramework, "framework", "#9aa0a6"},
    Band{Component::kWeights, "weights", "#1f5fa8"},
    Band{Component::kMasterWeights, "master weights", "#5b9bd5"},
    Band{Component::kOptimizer, "optimizer", "#2a9d8f"},
    Band{Component::kGradients, "gradients", "#8ab17d"},
    Band{Component::kLayerInputs, "layer inputs", "#f4d06f"},
    Band{Component::kActivations, "activations", "#f4a261"},
    Band{Component::kWorkingSet, "working set", "#e76f51"},
    Band{Component::kLogits, "logits and loss", "#b5179e"},
    Band{Component::kCommunication, "communication", "#6a4c93"},
    Band{Component::kFragmentation, "fragmentation", "#444444"},
};

std::string escaped(std::string_view text) {
  std::string safe;
  for (char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

double bytes_of(const TimelinePoint& point, Component component) {
  return point.bytes[static_cast<std::size_t>(component)];
}

struct Scale {
  double most = 1;  // bytes at the top
  double points = 1;

  double x(std::size_t i) const {
    return kLeft + kWidth * static_cast<double>(i) / std::max(1.0, points - 1);
  }
  double y(double bytes) const { return kTop + kHeight * (1 - bytes / most); }
};

// Steps of 1, 2 or 5 times a power of ten, about five of them.
double tick_of(double most_gib) {
  double rough = most_gib / 5;
  double power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      return factor * power;
    }
  }
  return 10 * power;
}

std::string axis(const Scale& scale) {
  std::string svg;
  double tick = tick_of(scale.most / kGiB);
  for (double gib = 0; gib * kGiB <= scale.most; gib += tick) {
    double y = scale.y(gib * kGiB);
    svg += fmt::format(
        "<line x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}' class='grid'/>"
        "<text x='{:.1f}' y='{:.1f}' class='tick'>{:g}</text>\n",
        kLeft, kLeft + kWidth, y, y, kLeft - 8, y + 4, gib);
  }
  return svg +
         fmt::format("<text x='{:.1f}' y='{:.1f}' class='tick'>GiB</text>\n", kLeft - 8, kTop - 12);
}

std::string_view phase_title(Phase phase) {
  constexpr std::array<std::string_view, 4> kTitles{"forward", "backward", "reduction",
                                                    "optimizer"};
  return kTitles[static_cast<std::size_t>(phase)];
}

std::string phases(const std::vector<TimelinePoint>& timeline, const Scale& scale) {
  std::string svg;
  for (std::size_t i = 0; i < timeline.size();) {
    std::size_t end = i;
    while (end < timeline.size() && timeline[end].phase == timeline[i].phase) {
      ++end;
    }
    double from = scale.x(i);
    double to = scale.x(std::min(end, timeline.size() - 1));
    svg += fmt::format("<line x1='{0:.1f}' x2='{0:.1f}' y1='{1:.1f}' y2='{2:.1f}' class='phase'/>",
                       from, kTop, kTop + kHeight);
    if (to - from > 60) {
      svg += fmt::format("<text x='{:.1f}' y='{:.1f}' class='label'>{}</text>\n", (from + to) / 2,
                         kTop + kHeight + 20, phase_title(timeline[i].phase));
    }
    i = end;
  }
  return svg;
}

std::string bands(const std::vector<TimelinePoint>& timeline, const Scale& scale) {
  std::string svg;
  std::vector<double> below(timeline.size());
  for (const Band& band : kBands) {
    std::string up;
    std::string down;
    for (std::size_t i = 0; i < timeline.size(); ++i) {
      down = fmt::format("{:.1f},{:.1f} ", scale.x(i), scale.y(below[i])) + down;
      below[i] += bytes_of(timeline[i], band.component);
      up += fmt::format("{:.1f},{:.1f} ", scale.x(i), scale.y(below[i]));
    }
    svg += fmt::format("<polygon points='{}{}' fill='{}'><title>{}</title></polygon>\n", up, down,
                       band.color, band.name);
  }
  return svg;
}

std::string limit_line(const Subject& subject, const Scale& scale) {
  double y = scale.y(subject.limit.bytes);
  return fmt::format(
      "<line x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}' class='limit'/>"
      "<text x='{:.1f}' y='{:.1f}' class='limit-text'>limit {} ({})</text>\n",
      kLeft, kLeft + kWidth, y, y, kLeft + 6, y - 6, base::format_bytes(subject.limit.bytes),
      escaped(subject.limit.source));
}

std::string legend(const recompute::Prediction& prediction) {
  std::string html = "<table><tr><th></th><th>at the peak</th><th>GiB</th></tr>\n";
  for (std::size_t i = kBands.size(); i-- > 0;) {
    double bytes = prediction.peak_components[static_cast<std::size_t>(kBands[i].component)];
    html += fmt::format(
        "<tr><td><span style='background:{}'></span></td><td>{}</td><td class='n' "
        "data-band='{}'>{:.2f}</td></tr>\n",
        kBands[i].color, kBands[i].name, i, bytes / kGiB);
  }
  return html + fmt::format(
                    "<tr><td></td><td><b>total</b></td><td class='n' "
                    "data-band='total'><b>{:.2f}</b></td></tr></table>\n",
                    prediction.peak_bytes / kGiB);
}

// The values of each moment, for the pointer: [phase, layer, GiB of each band].
std::string moments(const std::vector<TimelinePoint>& timeline) {
  std::vector<std::string> rows;
  for (const TimelinePoint& point : timeline) {
    std::vector<std::string> values;
    for (const Band& band : kBands) {
      values.push_back(fmt::format("{:.3f}", bytes_of(point, band.component) / kGiB));
    }
    rows.push_back(fmt::format("[\"{}\",{},[{}]]", phase_title(point.phase), point.layer,
                               fmt::join(values, ",")));
  }
  return fmt::format("[{}]", fmt::join(rows, ",\n"));
}

constexpr std::string_view kStyle = R"(
body{font:14px system-ui,sans-serif;margin:24px;color:#202124;max-width:1120px}
h1{font-size:19px;margin:0 0 4px}p{margin:2px 0 8px;color:#444}
svg{width:100%;height:auto}.grid{stroke:#e3e3e3}.tick{font-size:12px;text-anchor:end;fill:#555}
.phase{stroke:#888;stroke-dasharray:2 3}.label{font-size:13px;text-anchor:middle;fill:#333}
.limit{stroke:#c1121f;stroke-width:2;stroke-dasharray:8 5}
.limit-text{font-size:13px;fill:#c1121f}#cursor{stroke:#111}
table{border-collapse:collapse;margin:6px 0}td,th{padding:1px 10px 1px 0;text-align:left}
.n{text-align:right;font-variant-numeric:tabular-nums}
td span{display:inline-block;width:14px;height:14px;border-radius:3px}
)";

constexpr std::string_view kScript = R"(
const svg = document.querySelector('svg'), cursor = document.getElementById('cursor');
const where = document.querySelector('th:nth-child(2)');
svg.addEventListener('pointermove', event => {
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
  const i = Math.round((x - left) / width * (moments.length - 1));
  if (i < 0 || i >= moments.length) return;
  const [phase, layer, values] = moments[i];
  const at = left + width * i / Math.max(1, moments.length - 1);
  cursor.setAttribute('x1', at); cursor.setAttribute('x2', at);
  cursor.setAttribute('visibility', 'visible');
  const place = layer < 0 ? 'embedding' : layer >= layers ? 'head and loss' : 'layer ' + layer;
  where.textContent = phase === 'forward' || phase === 'backward' ? phase + ', ' + place : phase;
  let total = 0;
  values.forEach((value, band) => {
    total += value;
    document.querySelector(`[data-band="${band}"]`).textContent = value.toFixed(2);
  });
  document.querySelector('[data-band="total"]').textContent = total.toFixed(2);
});
)";

}  // namespace

std::string to_page(const Subject& subject, const Answer& answer) {
  const recompute::Prediction& prediction = answer.plan.prediction;
  const std::vector<TimelinePoint>& timeline = prediction.timeline;
  Scale scale{.most = 1.08 * std::max(prediction.peak_bytes, subject.limit.bytes),
              .points = static_cast<double>(timeline.size())};
  std::string title = fmt::format("{}: memory over one training step", escaped(subject.name));
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{0}</title>\n"
      "<style>{1}</style></head><body>\n<h1>{0}</h1>\n<p>{2}<br>{3}. Predicted peak {4}; {5}.</p>\n"
      "<svg viewBox='0 0 {6:.0f} {7:.0f}' role='img' aria-label='memory by component over the "
      "step'>\n{8}{9}{10}{11}"
      "<line id='cursor' y1='{12:.0f}' y2='{13:.0f}' visibility='hidden'/>\n</svg>\n{14}"
      "<script>\nconst left = {15:.0f}, width = {16:.0f}, layers = {17}, moments = {18};\n{19}"
      "</script>\n</body></html>\n",
      title, kStyle, escaped(describe_setup(subject)), escaped(describe_policy(answer.plan.policy)),
      base::format_bytes(prediction.peak_bytes), answer.plan.fits ? "it fits" : "it does not fit",
      kLeft + kWidth + 16, kTop + kHeight + 34, axis(scale), bands(timeline, scale),
      phases(timeline, scale), limit_line(subject, scale), kTop, kTop + kHeight, legend(prediction),
      kLeft, kWidth, subject.config.layer_count(), moments(timeline), kScript);
}

}  // namespace ljtrain::ljperf
