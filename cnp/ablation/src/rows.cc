#include "rows.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/errors.h"

namespace ljtrain::cnp {
namespace {

constexpr std::size_t kMostPoints = 200;
constexpr const char* kBase = "base";

// The parts in the order of the ladder, as `ljperf benchmark --with` knows them.
struct Part {
  const char* id;
  const char* with;
  const char* name;
};
constexpr Part kAccl{"accl", "accl", "ACCL"};
constexpr Part kStack{"stack", "stack", "stack"};
constexpr Part kCompiler{"compiler", "compile", "CompilerOpt"};
constexpr Part kCheckpoint{"ckpt", "recompute", "CkptOpt"};
constexpr std::array kParts{kAccl, kStack, kCompiler, kCheckpoint};

std::string with_parts(const std::vector<Part>& parts) {
  std::vector<std::string> names;
  for (const Part& part : parts) {
    names.emplace_back(part.with);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

bool holds(const std::vector<Part>& parts, const Part& wanted) {
  return std::ranges::any_of(
      parts, [&](const Part& part) { return part.with == std::string(wanted.with); });
}

Row row_of(std::string id, std::string name, const std::vector<Part>& parts) {
  Row row;
  row.id = std::move(id);
  row.name = std::move(name);
  if (!parts.empty()) {
    row.arguments = {"--with", with_parts(parts)};
  }
  row.limited = holds(parts, kCheckpoint);
  row.stock = !holds(parts, kCompiler);
  return row;
}

// Base | + ACCL | stack + ACCL | + CompilerOpt | + CkptOpt.
std::vector<Row> ladder(bool base_elsewhere) {
  std::vector<Row> rows{row_of(kBase, "Base", {})};
  rows.front().environment = base_elsewhere ? kBase : "";
  auto add = [&](const std::string& id, const std::string& name, const std::vector<Part>& parts) {
    Row row = row_of(id, name, parts);
    row.against = rows.back().id;
    rows.push_back(row);
    rows.back().adds = parts.back().name;
  };
  add("accl", "Base + ACCL", {kAccl});
  add("stack", "stack + ACCL", {kAccl, kStack});
  add("compiler", "stack + ACCL + CompilerOpt", {kAccl, kStack, kCompiler});
  add("ckpt", "stack + ACCL + CompilerOpt + CkptOpt", {kAccl, kStack, kCompiler, kCheckpoint});
  return rows;
}

void add_leave_one_out(std::vector<Row>& rows) {
  for (const Part& left_out : kParts) {
    if (left_out.id == kCheckpoint.id) {
      continue;  // that is the row before the last
    }
    std::vector<Part> parts;
    std::ranges::copy_if(kParts, std::back_inserter(parts),
                         [&](const Part& part) { return part.id != std::string(left_out.id); });
    Row row = row_of(fmt::format("without-{}", left_out.id),
                     fmt::format("all but {}", left_out.name), parts);
    row.adds = left_out.name;
    row.against = kCheckpoint.id;
    row.inverse = true;
    rows.push_back(row);
  }
}

void add_limit(std::vector<Row>& rows) {
  Row free = row_of("no-limit", "all, no memory limit", {kAccl, kStack, kCompiler, kCheckpoint});
  free.limited = false;
  free.against = kCheckpoint.id;
  free.adds = "memory";
  rows.push_back(free);
  Row limit = row_of("limit", "limit: no communication, no recompute", {kAccl, kStack, kCompiler});
  limit.arguments.insert(limit.arguments.end(),
                         {"--set", "gradient_checkpointing=false", "--collectives", "none"});
  limit.against = free.id;
  limit.adds = "distance to the limit";
  limit.same_loss = false;
  limit.why_not_same = "ranks exchange nothing";
  rows.push_back(limit);
}

void add_environments(std::vector<Row>& rows, const AblationOptions& options) {
  for (const auto& [name, where] : options.environments) {
    if (name == kBase) {
      continue;
    }
    Row row = row_of("env-" + name, fmt::format("all, in {}", name),
                     {kAccl, kStack, kCompiler, kCheckpoint});
    row.environment = name;
    row.adds = fmt::format("since {}", name);
    row.against = kCheckpoint.id;
    row.inverse = true;
    rows.push_back(row);
  }
}

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

Axis parse_axis(const std::string& text) {
  std::size_t equals = text.find('=');
  Axis axis;
  axis.key = text.substr(0, equals);
  if (equals != std::string::npos) {
    std::istringstream list(text.substr(equals + 1));
    for (std::string value; std::getline(list, value, ',');) {
      if (value.empty() || std::ranges::find(axis.values, value) != axis.values.end()) {
        throw base::user_error("--axis {}: an empty value, or one twice", text);
      }
      axis.values.push_back(value);
    }
  }
  bool plain = !axis.key.empty() && std::ranges::all_of(axis.key, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
  if (!plain || axis.key.front() == '-' || axis.values.empty()) {
    throw base::user_error(
        "--axis {}: write KEY=VALUE,VALUE,... with KEY an option of ljperf benchmark (zero), a "
        "TrainingArgument (learning_rate) or a variable (NCCL_ALGO)",
        text);
  }
  return axis;
}

// zero=1 is an option, weight_decay=0.1 a TrainingArgument, NCCL_ALGO=Ring a variable.
void apply(Row& row, const std::string& key, const std::string& value) {
  bool lower = std::ranges::any_of(key, [](unsigned char c) { return std::islower(c) != 0; });
  if (!lower) {
    row.variables[key] = value;
  } else if (key.find('_') != std::string::npos) {
    row.arguments.insert(row.arguments.end(), {"--set", fmt::format("{}={}", key, value)});
  } else {
    row.arguments.insert(row.arguments.end(), {"--" + key, value});
  }
}

std::vector<Row> grid(const AblationOptions& options) {
  std::vector<Row> rows{Row{}};
  rows.front().environment = options.environments.contains(kBase) ? kBase : "";
  for (const std::string& text : options.axes) {
    Axis axis = parse_axis(text);
    std::vector<Row> more;
    for (const Row& row : rows) {
      for (const std::string& value : axis.values) {
        Row point = row;
        point.name += fmt::format("{}{}={}", row.name.empty() ? "" : ", ", axis.key, value);
        apply(point, axis.key, value);
        more.push_back(point);
      }
    }
    rows = std::move(more);
    if (rows.size() > kMostPoints) {
      throw base::user_error("--axis: the axes span more than {} points; give fewer values",
                             kMostPoints);
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].id = fmt::format("point-{}", i);
  }
  return rows;
}

}  // namespace

std::vector<Row> plan_rows(const AblationOptions& options) {
  if (!options.axes.empty()) {
    return grid(options);
  }
  std::vector<Row> rows = ladder(options.environments.contains(kBase));
  if (options.leave_one_out) {
    add_leave_one_out(rows);
  }
  if (options.limit_row) {
    add_limit(rows);
  }
  add_environments(rows, options);
  return rows;
}

std::optional<std::pair<Row, Row>> peak_rows(const std::vector<Row>& rows) {
  if (std::ranges::none_of(rows, &Row::limited)) {
    return std::nullopt;
  }
  Row full = row_of("peak-full", "peak, everything checkpointed", {kAccl, kStack, kCompiler});
  Row none = row_of("peak-none", "peak, nothing checkpointed", {kAccl, kStack, kCompiler});
  none.arguments.insert(none.arguments.end(), {"--set", "gradient_checkpointing=false"});
  return std::pair{full, none};
}

std::uint64_t memory_limit(std::uint64_t full_bytes, std::uint64_t none_bytes, double share) {
  if (none_bytes <= full_bytes) {
    return full_bytes;
  }
  return full_bytes +
         static_cast<std::uint64_t>(share * static_cast<double>(none_bytes - full_bytes));
}

}  // namespace ljtrain::cnp
