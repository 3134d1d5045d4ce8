#include <algorithm>

#include "base/errors.h"
#include "base/units.h"
#include "image/network_rules.h"
#include "image/release.h"
#include "launcher/elsewhere.h"
#include "launcher/yaml.h"

namespace ljtrain::ljperf {
namespace {

using base::OrderedJson;

constexpr const char* kHostLabel = "kubernetes.io/hostname";
constexpr const char* kZoneLabel = "topology.kubernetes.io/zone";
constexpr const char* kIndexAnnotation =
    "metadata.annotations['batch.kubernetes.io/job-completion-index']";
constexpr const char* kNodeRankVariable = "LJTRAIN_NODE_RANK";
constexpr int kProbePeriod = 60;  // seconds
constexpr int kProbeTimeout = 10;
constexpr int kProbeFailures = 3;

// Kubernetes replaces $(NAME) in arguments and variables; $$ is a $ to it.
std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    result += c == '$' ? "$$" : std::string(1, c);
  }
  return result;
}

OrderedJson labels(const ElsewhereJob& job) {
  return {{"app.kubernetes.io/name", job.name}, {"app.kubernetes.io/managed-by", "ljperf"}};
}

// The names by which the pods of each kind reach one another.
std::vector<std::string> pod_names(const LaunchOptions& options, const ElsewhereJob& job) {
  std::vector<std::string> names;
  for (int node = 0; node < options.node_count(); ++node) {
    names.push_back(options.kind == "job" ? fmt::format("{}-{}.{}", job.name, node, job.name)
                    : options.kind == "trainjob"
                        ? fmt::format("{}-node-0-{}.{}", job.name, node, job.name)
                    : node == 0 ? fmt::format("{}-master-0", job.name)
                                : fmt::format("{}-worker-{}", job.name, node - 1));
  }
  return names;
}

// What every pod runs: with one pod the command as it is, with several torchrun's part of the pod.
OrderedJson command_of(const LaunchOptions& options, const ElsewhereJob& job) {
  std::vector<std::string> words{"ljperf"};
  for (const std::string& argument : job.arguments) {
    words.push_back(escaped(argument));
  }
  if (options.node_count() > 1) {
    // The training operator counts pods in RANK, master first.
    std::string rank = options.kind == "pytorchjob" ? "RANK" : kNodeRankVariable;
    words.insert(words.end(), {"--launcher=torchrun",
                               fmt::format("--hosts={}", fmt::join(pod_names(options, job), ",")),
                               fmt::format("--node-rank=$({})", rank),
                               fmt::format("--rendezvous-port={}", options.rendezvous_port),
                               fmt::format("--job-name={}", job.name)});
  }
  for (const std::string& word : job.script) {
    words.push_back(escaped(word));
  }
  return words;
}

// The network interface by GPUs a pod, as the newest release that has such a rule says.
OrderedJson environment_of_pod(const LaunchOptions& options, const ElsewhereJob& job) {
  OrderedJson list = OrderedJson::array();
  if (options.kind != "pytorchjob" && options.node_count() > 1) {
    list.push_back({{"name", kNodeRankVariable},
                    {"valueFrom", {{"fieldRef", {{"fieldPath", kIndexAnnotation}}}}}});
  }
  const auto& releases = image::releases();
  auto with_rules = std::find_if(releases.rbegin(), releases.rend(), [](const auto& release) {
    return !release.interface_rules.empty();
  });
  bool given = job.environment.contains("NCCL_SOCKET_IFNAME");
  if (options.gpus_per_node.has_value() && !given && with_rules != releases.rend()) {
    const image::InterfaceRule* rule = image::interface_rule(*with_rules, *options.gpus_per_node);
    if (rule != nullptr) {
      list.push_back({{"name", "NCCL_SOCKET_IFNAME"}, {"value", rule->interface}});
    }
  }
  for (const auto& [name, value] : job.environment) {
    if (job.secrets.contains(name)) {
      list.push_back(
          {{"name", name}, {"valueFrom", {{"secretKeyRef", {{"name", job.name}, {"key", name}}}}}});
    } else {
      list.push_back({{"name", name}, {"value", escaped(value)}});
    }
  }
  return list;
}

OrderedJson resources_of(const LaunchOptions& options) {
  OrderedJson limits = OrderedJson::object();
  if (options.cpus_per_node.has_value()) {
    limits["cpu"] = std::to_string(*options.cpus_per_node);
  }
  if (!options.memory_per_node.empty()) {
    limits["memory"] = std::to_string(base::parse_bytes(options.memory_per_node));
  }
  if (options.gpus_per_node.has_value()) {
    limits["nvidia.com/gpu"] = std::to_string(*options.gpus_per_node);
  }
  // The same for both: the pod gets whole cores, and is the last to be evicted.
  return limits.empty() ? OrderedJson::object()
                        : OrderedJson{{"requests", limits}, {"limits", limits}};
}

// The doctor as a probe: a pod whose GPU falls off the bus is ended, not waited for.
OrderedJson probe() {
  return {{"exec", {{"command", {"ljperf", "doctor", "--quick", "--only", "gpu,memory.shm"}}}},
          {"periodSeconds", kProbePeriod},
          {"timeoutSeconds", kProbeTimeout},
          {"failureThreshold", kProbeFailures}};
}

// Pods of one job on a host each, and near one another.
OrderedJson topology(const ElsewhereJob& job) {
  OrderedJson own = {{"matchLabels", {{"app.kubernetes.io/name", job.name}}}};
  return {{"topologySpreadConstraints",
           {{{"maxSkew", 1},
             {"topologyKey", kHostLabel},
             {"whenUnsatisfiable", "DoNotSchedule"},
             {"labelSelector", own}}}},
          {"affinity",
           {{"podAffinity",
             {{"preferredDuringSchedulingIgnoredDuringExecution",
               {{{"weight", 100},
                 {"podAffinityTerm", {{"topologyKey", kZoneLabel}, {"labelSelector", own}}}}}}}}}}};
}

OrderedJson pod_spec(const LaunchOptions& options, const ElsewhereJob& job,
                     const std::string& container) {
  OrderedJson main = {
      {"name", container},
      {"image", options.image},
      {"command", command_of(options, job)},
      {"env", environment_of_pod(options, job)},
      {"resources", resources_of(options)},
      {"securityContext",
       {{"allowPrivilegeEscalation", false}, {"capabilities", {{"drop", {"ALL"}}}}}},
      {"startupProbe", probe()},
      {"livenessProbe", probe()},
      {"volumeMounts", {{{"name", "shm"}, {"mountPath", "/dev/shm"}}}}};
  OrderedJson shm = {{"medium", "Memory"}};
  if (!options.memory_per_node.empty()) {
    // It counts as the pod's memory; without a bound it could take all of it.
    shm["sizeLimit"] = std::to_string(base::parse_bytes(options.memory_per_node) / 2);
  }
  OrderedJson spec = {{"restartPolicy", "Never"},
                      {"hostIPC", true},
                      {"containers", OrderedJson::array({main})},
                      {"volumes", {{{"name", "shm"}, {"emptyDir", shm}}}}};
  OrderedJson where = topology(job);
  for (const auto& [key, value] : where.items()) {
    spec[key] = value;
  }
  if (!options.hosts.empty()) {
    spec["affinity"]["nodeAffinity"] = {
        {"requiredDuringSchedulingIgnoredDuringExecution",
         {{"nodeSelectorTerms",
           {{{"matchExpressions",
              {{{"key", kHostLabel}, {"operator", "In"}, {"values", options.hosts}}}}}}}}}};
  }
  return spec;
}

OrderedJson meta(const LaunchOptions& options, const ElsewhereJob& job) {
  return {{"name", job.name}, {"namespace", options.name_space}, {"labels", labels(job)}};
}

OrderedJson pod_template(const LaunchOptions& options, const ElsewhereJob& job,
                         const std::string& container) {
  return {{"metadata", {{"labels", labels(job)}}}, {"spec", pod_spec(options, job, container)}};
}

OrderedJson job_spec(const LaunchOptions& options, const ElsewhereJob& job,
                     const std::string& container) {
  int nodes = options.node_count();
  return {{"completionMode", "Indexed"},
          {"completions", nodes},
          {"parallelism", nodes},
          {"backoffLimit", options.max_restarts * nodes},
          {"template", pod_template(options, job, container)}};
}

std::vector<OrderedJson> indexed_job(const LaunchOptions& options, const ElsewhereJob& job) {
  // Names of pods before they are ready: they find each other to become so.
  OrderedJson service = {{"apiVersion", "v1"},
                         {"kind", "Service"},
                         {"metadata", meta(options, job)},
                         {"spec",
                          {{"clusterIP", "None"},
                           {"publishNotReadyAddresses", true},
                           {"selector", {{"app.kubernetes.io/name", job.name}}}}}};
  OrderedJson spec = job_spec(options, job, "train");
  spec["template"]["spec"]["subdomain"] = job.name;
  return {service,
          {{"apiVersion", "batch/v1"},
           {"kind", "Job"},
           {"metadata", meta(options, job)},
           {"spec", spec}}};
}

// Its own runtime, because a TrainJob alone cannot give its pods shared memory, host IPC or probes.
std::vector<OrderedJson> train_job(const LaunchOptions& options, const ElsewhereJob& job) {
  OrderedJson node = {
      {"name", "node"},
      {"template",
       {{"metadata", {{"labels", {{"trainer.kubeflow.org/trainjob-ancestor-step", "trainer"}}}}},
        {"spec", {{"backoffLimit", 0}, {"template", pod_template(options, job, "node")}}}}}};
  OrderedJson template_spec = {{"replicatedJobs", OrderedJson::array({node})},
                               {"failurePolicy", {{"maxRestarts", options.max_restarts}}},
                               {"network", {{"publishNotReadyAddresses", true}}}};
  OrderedJson runtime = {
      {"apiVersion", "trainer.kubeflow.org/v1alpha1"},
      {"kind", "TrainingRuntime"},
      {"metadata", meta(options, job)},
      {"spec",
       {{"mlPolicy", {{"numNodes", options.node_count()}, {"torch", OrderedJson::object()}}},
        {"template", {{"spec", template_spec}}}}}};
  return {
      runtime,
      {{"apiVersion", "trainer.kubeflow.org/v1alpha1"},
       {"kind", "TrainJob"},
       {"metadata", meta(options, job)},
       {"spec",
        {{"runtimeRef",
          {{"apiGroup", "trainer.kubeflow.org"}, {"kind", "TrainingRuntime"}, {"name", job.name}}},
         {"trainer",
          {{"numNodes", options.node_count()},
           {"image", options.image},
           {"command", command_of(options, job)}}}}}}};
}

std::vector<OrderedJson> pytorch_job(const LaunchOptions& options, const ElsewhereJob& job) {
  OrderedJson replicas = OrderedJson::object();
  auto replica = [&](int count) {
    return OrderedJson{{"replicas", count},
                       {"restartPolicy", options.max_restarts > 0 ? "OnFailure" : "Never"},
                       {"template", pod_template(options, job, "pytorch")}};
  };
  replicas["Master"] = replica(1);
  if (options.node_count() > 1) {
    replicas["Worker"] = replica(options.node_count() - 1);
  }
  return {{{"apiVersion", "kubeflow.org/v1"},
           {"kind", "PyTorchJob"},
           {"metadata", meta(options, job)},
           {"spec",
            {{"runPolicy", {{"backoffLimit", options.max_restarts}, {"cleanPodPolicy", "None"}}},
             {"pytorchReplicaSpecs", replicas}}}}};
}

}  // namespace

Launch kubernetes_launch(const LaunchOptions& options, const ElsewhereJob& job) {
  Launch launch;
  launch.form = "manifest";
  launch.argv = {"kubectl", "apply", "-f", "-"};
  std::vector<OrderedJson> documents = options.kind == "job"          ? indexed_job(options, job)
                                       : options.kind == "pytorchjob" ? pytorch_job(options, job)
                                                                      : train_job(options, job);
  launch.text = to_yaml(documents);
  launch.input = launch.text;
  launch.notes = {
      fmt::format("{} must hold ljperf, and every file that the command names", options.image),
      "hostIPC needs a namespace whose Pod Security level is `privileged`",
      fmt::format("kubectl logs --namespace {} --selector app.kubernetes.io/name={} --follow",
                  options.name_space, job.name)};
  for (const std::string& name : job.secrets) {
    launch.notes.push_back(
        fmt::format("{} is taken from a secret: kubectl create secret generic {} --namespace {} "
                    "--from-literal={}=\"${}\"",
                    name, job.name, options.name_space, name, name));
  }
  if (options.gpus_per_node.value_or(0) == 0) {
    launch.notes.emplace_back("no --gpus-per-node: the pods train on their hosts' cores");
  }
  return launch;
}

}  // namespace ljtrain::ljperf
