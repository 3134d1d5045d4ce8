#include "libraries.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "benchmark/python_environment.h"
#include "driver_build.h"

namespace ljtrain::ljperf {
namespace {

using ljperf_comm::Op;
using ljperf_comm::Type;

constexpr std::chrono::seconds kPatience{30};

bool one_of(Op op, std::initializer_list<Op> ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

// Which operations NCCL defines in place, apart from those where nothing is gained.
bool has_in_place_form(Op op) {
  return one_of(op,
                {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kBroadcast, Op::kReduce});
}

std::filesystem::path own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

// Our own program as a rank of a library that is linked into it.
Library own_rank(const std::string& name) {
  Library library;
  library.name = name;
  library.argv = {own_program().string(), "comm", "--serve", name};
  return library;
}

Library memcpy_library() {
  Library library = own_rank("memcpy");
  library.supports = [](Op, Type, Variant variant) {
    return !variant.in_place && !variant.registered;
  };
  return library;
}

Library accl_library(bool in_place, bool registered) {
  Library library = own_rank("accl");
  library.supports = [=](Op op, Type, Variant variant) {
    if (op == Op::kBroadcast) {
      return variant.in_place && (registered || !variant.registered);
    }
    return (!variant.in_place || (in_place && has_in_place_form(op))) &&
           (!variant.registered || (registered && !variant.in_place));
  };
  return library;
}

// What a program says of its version.
std::string first_line_of(const std::filesystem::path& program, const std::string& argument) {
  base::SpawnOptions options;
  options.argv = {program.string(), argument};
  options.environment = base::current_environment();
  std::string output = base::run_captured(options, "", kPatience).output;
  return output.substr(0, output.find('\n'));
}

Library mpi_library(int ranks, bool in_place, const Hardware& hardware) {
  std::filesystem::path run = find_in_path("mpirun");
  std::filesystem::path compiler = find_in_path("mpicxx");
  if (run.empty() || compiler.empty()) {
    throw base::run_error("{} not found (apt-get install openmpi-bin libopenmpi-dev)",
                          run.empty() ? "mpirun" : "mpicxx");
  }
  Library library;
  library.name = "mpi";
  library.launcher = true;
  std::filesystem::path program =
      build_driver("mpi_driver.cc", {compiler.string(), "-std=c++17", "-O2"}, {});
  // The ranks bind themselves, as those of all libraries do.
  library.argv = {run.string(), "--bind-to", "none", "-n", std::to_string(ranks)};
  if (std::cmp_greater(ranks, hardware.cores.size())) {
    library.argv.emplace_back("--oversubscribe");
  }
  library.argv.push_back(program.string());
  library.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  library.detail = first_line_of(run, "--version");
  library.supports = [in_place](Op op, Type type, Variant variant) {
    bool half = type == Type::kFloat16 || type == Type::kBfloat16;
    if (variant.registered || (half && ljperf_comm::reduces(op))) {
      return false;  // MPI 3 has no 16-bit floating point
    }
    // MPI leaves the result of reduce_scatter in place elsewhere than NCCL.
    return op == Op::kBroadcast
               ? variant.in_place
               : !variant.in_place ||
                     (in_place && one_of(op, {Op::kAllReduce, Op::kAllGather, Op::kReduce}));
  };
  return library;
}

std::string compiler() {
  const char* named = std::getenv("CXX");
  if (named != nullptr && *named != '\0') {
    return named;
  }
  for (const char* name : {"c++", "g++", "clang++"}) {
    if (!find_in_path(name).empty()) {
      return name;
    }
  }
  throw base::run_error("no C++ compiler found (apt-get install g++)");
}

// Where the Python environment keeps what drivers are compiled against: {"prefix", "deepspeed",
// "torch"}.
base::Json ask_python(const CommPlan& plan) {
  base::SpawnOptions options;
  options.argv = {find_python(plan.options.python).string(), "-m", "ljtrain.comm_worker",
                  "--where"};
  options.environment = base::current_environment();
  options.environment["PYTHONSAFEPATH"] = "1";
  options.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0";
  base::Captured result = base::run_captured(options, "", kPatience);
  base::Json answer = base::Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  return answer.is_object() ? answer : base::Json::object();
}

std::string text_of(const base::Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

std::vector<std::filesystem::path> oneccl_roots(const CommPlan& plan, const base::Json& python) {
  if (!plan.options.oneccl_root.empty()) {
    return {plan.options.oneccl_root};
  }
  std::vector<std::filesystem::path> roots;
  for (const char* variable : {"LJPERF_ONECCL_ROOT", "CCL_ROOT"}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') {
      roots.emplace_back(value);
    }
  }
  roots.emplace_back(python.value("prefix", "/usr"));
  return roots;
}

Library oneccl_library(const CommPlan& plan, int ranks, const base::Json& python) {
  std::filesystem::path root;
  std::vector<std::string> looked_in;
  for (const std::filesystem::path& candidate : oneccl_roots(plan, python)) {
    looked_in.push_back(candidate.string());
    if (std::filesystem::exists(candidate / "include/oneapi/ccl.hpp") &&
        std::filesystem::exists(candidate / "lib/ccl/cpu/lib/libccl.a")) {
      root = std::filesystem::absolute(candidate);
      break;
    }
  }
  if (root.empty()) {
    throw base::run_error(
        "oneCCL for hosts not found in {} (pip install --no-deps oneccl-devel==2022.2.0 impi-rt "
        "intel-cmplr-lib-rt; or name its folder with --oneccl-root)",
        fmt::join(looked_in, ", "));
  }
  Library library;
  library.name = "oneccl";
  std::filesystem::path lib = root / "lib";
  // The static library for hosts: no SYCL. It wants Intel's compiler runtime and hwloc, and opens
  // libfabric by itself.
  std::filesystem::path program = build_driver(
      "oneccl_driver.cc", {compiler(), "-std=c++17", "-O2", "-I", (root / "include").string()},
      {(lib / "ccl/cpu/lib/libccl.a").string(), (lib / "libintlc.so.5").string(),
       "-Wl,-rpath," + lib.string(), "-l:libhwloc.so.15", "-lpthread", "-ldl", "-lrt"});
  // The fastest of the settings that were tried: the calling thread does the work (its worker
  // threads cost milliseconds where every core has a rank), and Intel MPI carries it where that is
  // installed, else libfabric with shared memory.
  library.environment = {{"CCL_WORKER_OFFLOAD", "0"}, {"CCL_LOG_LEVEL", "error"}};
  std::filesystem::path launcher = root / "bin/mpiexec.hydra";
  if (::access(launcher.c_str(), X_OK) == 0 && std::filesystem::exists(lib / "libmpi.so.12")) {
    library.launcher = true;
    library.argv = {launcher.string(), "-n", std::to_string(ranks), program.string()};
    library.environment.insert({{"CCL_ATL_TRANSPORT", "mpi"},
                                {"I_MPI_ROOT", root.string()},
                                {"LD_LIBRARY_PATH", lib.string()},
                                {"I_MPI_FABRICS", "shm"},
                                {"I_MPI_PIN", "off"},
                                {"I_MPI_HYDRA_BOOTSTRAP", "fork"}});
    library.detail = "over Intel MPI";
  } else {
    library.argv = {program.string()};
    library.environment.insert({{"CCL_ATL_TRANSPORT", "ofi"}, {"CCL_ATL_SHM", "1"}});
    library.detail =
        "over libfabric (with impi-rt beside it, it runs over Intel MPI, which is faster)";
  }
  library.supports = [](Op op, Type, Variant variant) {
    return !variant.registered && variant.in_place == (op == Op::kBroadcast) &&
           !one_of(op, {Op::kGather, Op::kScatter});
  };
  return library;
}

Library deepspeed_library(const base::Json& python) {
  if (!python.contains("deepspeed") || !python["deepspeed"].is_string()) {
    throw base::run_error(
        "DeepSpeed not found in the Python environment (choose another with --python)");
  }
  std::filesystem::path sources = python["deepspeed"].get<std::string>();
  sources /= "ops/csrc/cpu/comm";
  if (!std::filesystem::exists(sources / "shm.cpp")) {
    throw base::run_error("{}: not in this DeepSpeed", (sources / "shm.cpp").string());
  }
  Library library;
  library.name = "deepspeed_shm";
  // DeepSpeed's own flags.
  library.argv = {
      build_driver("deepspeed_driver.cc",
                   {compiler(), "-std=c++17", "-O2", "-fopenmp", "-w", "-I", sources.string()}, {})
          .string()};
  library.detail = "DeepSpeed " + text_of(python, "deepspeed_version");
  library.environment = {{"LJPERF_COMM_DEEPSPEED_ADDRESS", kDeepSpeedAddress},
                         {"LJPERF_COMM_DEEPSPEED_PORT", std::to_string(::getpid())}};
  library.supports = [](Op op, Type type, Variant variant) {
    bool known = type == Type::kFloat32 || type == Type::kFloat16 || type == Type::kBfloat16;
    return op == Op::kAllReduce && variant.in_place && !variant.registered && known;
  };
  return library;
}

Library c10d_library(const std::string& name, const CommPlan& plan, const base::Json& python) {
  if (!python.contains("torch") || !python["torch"].is_string()) {
    throw base::run_error(
        "PyTorch not found in the Python environment (choose another with --python)");
  }
  Library library;
  library.name = name;
  library.interface = Interface::kC10d;
  library.argv = {find_python(plan.options.python).string(), "-m", "ljtrain.comm_worker", name};
  library.detail = "PyTorch " + text_of(python, "torch_version");
  // Autoload off and no LJTRAIN_ACCL: what is called gloo must be Gloo.
  library.environment = {
      {"PYTHONSAFEPATH", "1"}, {"TORCH_DEVICE_BACKEND_AUTOLOAD", "0"}, {"LJTRAIN_ACCL", "0"}};
  library.supports = [](Op op, Type, Variant variant) {
    // As PyTorch defines them: the result replaces the input, or has a tensor of its own.
    return !variant.registered &&
           variant.in_place == one_of(op, {Op::kAllReduce, Op::kBroadcast, Op::kReduce});
  };
  return library;
}

Library find_library(const std::string& name, const CommPlan& plan, int ranks,
                     const Hardware& hardware, const base::Json& python) {
  if (name == "mpi") {
    return mpi_library(ranks, plan.options.in_place, hardware);
  }
  if (name == "oneccl") {
    return oneccl_library(plan, ranks, python);
  }
  if (name == "deepspeed_shm") {
    return deepspeed_library(python);
  }
  if (name == "nccl" && std::cmp_less(hardware.gpus.size(), ranks)) {
    throw base::run_error("NCCL wants a GPU a rank, and there are {} for {} ranks",
                          hardware.gpus.size(), ranks);
  }
  return c10d_library(name, plan, python);
}

}  // namespace

Found find_libraries(const CommPlan& plan, int ranks, const Hardware& hardware) {
  Found found;
  const std::vector<std::string>& peers = plan.options.peers;
  bool deepspeed = std::find(peers.begin(), peers.end(), "deepspeed_shm") != peers.end();
  std::vector<std::pair<std::string, Interface>> wanted;
  if (plan.c10d) {
    wanted.emplace_back("accl", Interface::kC10d);
  }
  for (const std::string& peer : peers) {
    bool c10d = peer == "gloo" || peer == "nccl";
    if (c10d ? plan.c10d : plan.c) {
      wanted.emplace_back(peer, c10d ? Interface::kC10d : Interface::kC);
    } else {
      found.skipped.push_back(
          {peer, fmt::format("it has no interface among those of --interface; add {}",
                             c10d ? "c10d" : "c")});
    }
  }
  found.libraries.push_back(memcpy_library());
  if (plan.c) {
    // DeepSpeed reduces in place, so ACCL has to beside it.
    found.libraries.push_back(
        accl_library(plan.options.in_place || deepspeed, plan.options.registered));
  }
  base::Json python;
  if (std::any_of(wanted.begin(), wanted.end(),
                  [](const auto& entry) { return entry.first != "mpi"; })) {
    try {
      python = ask_python(plan);
    } catch (const std::exception&) {
      python = base::Json::object();  // each library says what it misses
    }
  }
  for (const auto& [name, interface] : wanted) {
    try {
      found.libraries.push_back(find_library(name, plan, ranks, hardware, python));
    } catch (const base::RunError& missing) {
      found.skipped.push_back({interface == Interface::kC ? name : name + "/c10d", missing.what()});
    }
  }
  return found;
}

}  // namespace ljtrain::ljperf
