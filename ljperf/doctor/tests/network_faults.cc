#include "faults.h"

namespace ljtrain::ljperf {

std::vector<Fault> network_faults() {
  return {
      // aws/deep-learning-containers PR#6469.
      {"an interface that does not exist", "network.interface", kFail, "NCCL_SOCKET_IFNAME==eth0",
       [](F& m) { m.set("NCCL_SOCKET_IFNAME", "hpn0"); },
       [](F& m) { m.set("NCCL_SOCKET_IFNAME", "eth"); }},
      {"an interface that is down", "network.interface", kFail, "is down",
       [](F& m) {
         m.interface("eth1", 3, false, false);
         m.set("NCCL_SOCKET_IFNAME", "eth1");
       },
       [](F& m) {
         m.interface("eth1", 3, false, false);
         m.set("NCCL_SOCKET_IFNAME", "eth0");
       }},
      {"an interface without address", "network.interface", kFail, "no address",
       [](F& m) {
         m.interface("eth1", 3, true, false);
         m.set("NCCL_SOCKET_IFNAME", "eth1");
       },
       [](F& m) { m.interface("eth1", 3, true, false); }},
      // NVIDIA/nccl#913.
      {"docker chosen", "network.interface", kWarn, "docker0",
       [](F& m) {
         m.interface("docker0", 3);
         m.set("NCCL_SOCKET_IFNAME", "docker");
       },
       [](F& m) { m.interface("docker0", 3); }},
      {"loopback for several hosts", "network.interface", kFail, "no other host",
       [](F& m) {
         several_hosts(m);
         m.set("NCCL_SOCKET_IFNAME", "lo");
       },
       [](F& m) { m.set("NCCL_SOCKET_IFNAME", "lo"); }},
      {"^lo lets docker in", "network.interface", kWarn, "docker0",
       [](F& m) {
         m.interface("docker0", 3);
         m.set("NCCL_SOCKET_IFNAME", "^lo");
       },
       [](F& m) {
         m.interface("docker0", 3);
         m.set("NCCL_SOCKET_IFNAME", "^lo,docker");
       }},
      {"a prefix takes another interface", "network.interface", kWarn, "eth10",
       [](F& m) {
         m.interface("eth1", 3);
         m.interface("eth10", 4);
         m.set("NCCL_SOCKET_IFNAME", "eth1");
       },
       [](F& m) {
         m.interface("eth1", 3);
         m.interface("eth10", 4);
         m.set("NCCL_SOCKET_IFNAME", "=eth1");
       }},
      {"16 GPUs a pod on eth0", "network.rule", kWarn, "NCCL_SOCKET_IFNAME=hpn0",
       [](F& m) {
         for (int i = 8; i < 16; ++i) {
           m.write(fmt::format("/dev/nvidia{}", i), "");
           m.machine.gpus.gpus.push_back(gpu(m));
         }
         m.interface("hpn0", 3);
         m.release("0.1.0");
         m.set("NCCL_SOCKET_IFNAME", "eth0");
       },
       [](F& m) {
         for (int i = 8; i < 16; ++i) {
           m.write(fmt::format("/dev/nvidia{}", i), "");
           m.machine.gpus.gpus.push_back(gpu(m));
         }
         m.interface("hpn0", 3);
         m.release("0.1.0");
         m.set("NCCL_SOCKET_IFNAME", "hpn0");
       }},
      {"8 GPUs a pod on hpn0", "network.rule", kWarn, "NCCL_SOCKET_IFNAME=eth0",
       [](F& m) {
         m.interface("hpn0", 3);
         m.release("0.1.0");
         m.set("NCCL_SOCKET_IFNAME", "hpn0");
       },
       [](F& m) {
         m.interface("hpn0", 3);
         m.release("0.1.0");
         m.set("NCCL_SOCKET_IFNAME", "eth0");
       }},
      {"the rule of another network", "network.rule", kWarn, "has no eth0",
       [](F& m) {
         m.remove("/sys/class/net/eth0");
         m.interface("ens5", 3);
         m.release("0.1.0");
       },
       [](F& m) {
         m.remove("/sys/class/net/eth0");
         m.interface("ens5", 3);
       }},
      {"a release for the other task", "network.rule", kWarn, "not for inference",
       [](F& m) {
         m.release("0.1.0");
         m.machine.task = Purpose::kInference;
       },
       [](F& m) { m.release("0.1.0"); }},
      {"Gloo's interface by prefix", "network.gloo", kFail, "no interface eth",
       [](F& m) { m.set("GLOO_SOCKET_IFNAME", "eth"); },
       [](F& m) { m.set("GLOO_SOCKET_IFNAME", "eth0"); }},
      {"an RDMA port down", "network.rdma", kWarn, "mlx5_0:1", [](F& m) { rdma(m, "1: DOWN"); },
       [](F& m) { rdma(m); }},
      {"an HCA that does not exist", "network.rdma", kFail, "mlx5_9",
       [](F& m) {
         rdma(m);
         m.set("NCCL_IB_HCA", "mlx5_9");
       },
       [](F& m) {
         rdma(m);
         m.set("NCCL_IB_HCA", "=mlx5_0:1");
       }},
      {"RDMA without its devices", "network.rdma", kWarn, "/dev/infiniband",
       [](F& m) {
         rdma(m);
         m.remove("/dev/infiniband");
       },
       [](F& m) { rdma(m); }},
      {"RDMA switched off", "network.rdma", kWarn, "NCCL_IB_DISABLE",
       [](F& m) {
         several_hosts(m);
         rdma(m);
         m.set("NCCL_IB_DISABLE", "1");
       },
       [](F& m) {
         several_hosts(m);
         rdma(m);
         m.set("NCCL_IB_DISABLE", "0");
       }},
      {"RANK without WORLD_SIZE", "network.ranks", kFail, "WORLD_SIZE",
       [](F& m) {
         several_hosts(m);
         m.machine.environment.erase("WORLD_SIZE");
       },
       several_hosts},
      {"RANK beyond WORLD_SIZE", "network.ranks", kFail, "RANK=16",
       [](F& m) {
         several_hosts(m);
         m.set("RANK", "16");
       },
       [](F& m) {
         several_hosts(m);
         m.set("RANK", "15");
       }},
      {"more local ranks than GPUs", "network.ranks", kFail, "LOCAL_RANK=8",
       [](F& m) {
         several_hosts(m);
         m.set("LOCAL_RANK", "8");
       },
       [](F& m) {
         several_hosts(m);
         m.set("LOCAL_RANK", "7");
       }},
      // pytorch PR#26166.
      {"the master resolves to loopback", "network.master", kFail, "loopback",
       [](F& m) {
         several_hosts(m);
         m.set("MASTER_ADDR", "thishost");
       },
       [](F& m) { m.set("MASTER_ADDR", "thishost"); }},
      {"the master is 127.0.0.1", "network.master", kFail, "rank 0's host",
       [](F& m) {
         several_hosts(m);
         m.set("MASTER_ADDR", "127.0.0.1");
       },
       [](F& m) {
         several_hosts(m);
         m.set("MASTER_ADDR", "10.0.0.9");
       }},
      {"the master does not resolve", "network.master", kFail, "does not resolve",
       [](F& m) {
         several_hosts(m);
         m.set("MASTER_ADDR", "nowhere");
       },
       [](F& m) {
         several_hosts(m);
         m.set("MASTER_ADDR", "node1");
       }},
      {"a port that is none", "network.port", kFail, "65535",
       [](F& m) {
         several_hosts(m);
         m.set("MASTER_PORT", "65536");
       },
       [](F& m) {
         several_hosts(m);
         m.set("MASTER_PORT", "65535");
       }},
      {"the port is taken", "network.port", kWarn, "29500",
       [](F& m) {
         several_hosts(m);
         m.write("/proc/net/tcp", "  0: 00000000:733C 00000000:0000 0A 0\n");
       },
       [](F& m) {
         several_hosts(m);
         m.write("/proc/net/tcp", "  0: 00000000:733C 00000000:0000 06 0\n");
       }},
      {"a host that does not answer", "network.hosts", kFail, "no answer",
       [](F& m) {
         m.machine.hosts = {"node1"};
         m.machine.reach = [](const std::string&, const std::string&) {
           return std::string("no answer");
         };
       },
       [](F& m) { m.machine.hosts = {"node1"}; }},
  };
}

}  // namespace ljtrain::ljperf
