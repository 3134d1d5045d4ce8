#include "fleet.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <sstream>
#include <utility>

#include "base/errors.h"
#include "base/process.h"
#include "launcher/rank_group.h"
#include "libraries.h"

namespace ljtrain::ljperf {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Importing PyTorch takes seconds, and all ranks do it at once.
constexpr std::chrono::seconds kStartPatience{180};
constexpr int kBacklog = 1024;
constexpr std::size_t kLongestGreeting = 256;

// A socket in the abstract namespace: no file, so nothing to remove.
base::UniqueFd listen_on(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    throw base::run_error("cannot listen on a Unix socket: {}", std::strerror(errno));
  }
  return fd;
}

bool is_ours(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

std::string random_name() {
  std::random_device random;
  return fmt::format("ljperf-comm-{}-{:08x}{:08x}", ::getpid(), random(), random());
}

// Each rank's cores. Libraries in C compute on one thread: one core, the first of the rank's share,
// where the ranks would otherwise wander over several.
std::vector<std::vector<int>> places(const Hardware& hardware, int ranks, Interface interface) {
  std::vector<std::vector<int>> cpus = place_ranks(hardware.cores, ranks, /*oversubscribe=*/true);
  if (interface == Interface::kC) {
    for (std::vector<int>& rank : cpus) {
      rank = rank.empty() ? rank : std::vector<int>{rank.front()};
    }
  }
  return cpus;
}

}  // namespace

Fleet::Fleet(const std::vector<Library>& libraries, int ranks, const Hardware& hardware,
             std::filesystem::path folder, const base::Interrupts& interrupts)
    : folder_(std::move(folder)),
      ranks_(ranks),
      neighbours_(base::descendants()),
      address_(random_name()) {
  base::become_subreaper();  // mpirun's ranks become ours when it is killed
  std::filesystem::create_directories(folder_);
  listener_ = listen_on(address_);
  for (const Library& library : libraries) {
    std::string log = fmt::format("{}-{}.log", library.name, name_of(library.interface));
    groups_.push_back(std::make_unique<PeerGroup>(library, ranks, folder_ / log));
  }
  start(hardware);
  await(interrupts);
}

Fleet::~Fleet() {
  for (const auto& group : groups_) {
    group->note_files(files_);
  }
  groups_.clear();
  base::end_descendants(milliseconds(3000), neighbours_);
  files_.remove();
  remove_deepspeed_shared_memory(kDeepSpeedAddress, ::getpid(), ranks_);
}

void Fleet::start(const Hardware& hardware) {
  for (std::size_t index = 0; index < groups_.size(); ++index) {
    PeerGroup& group = *groups_[index];
    std::vector<std::vector<int>> cpus = places(hardware, ranks_, group.library().interface);
    std::vector<std::string> lists;
    for (const std::vector<int>& rank : cpus) {
      lists.push_back(fmt::format("{}", fmt::join(rank, ",")));
    }
    base::Environment environment = base::current_environment();
    environment["LJPERF_COMM_SOCKET"] = address_;
    environment["LJPERF_COMM_GROUP"] = std::to_string(index);
    environment["LJPERF_COMM_SIZE"] = std::to_string(ranks_);
    environment["LJPERF_COMM_FOLDER"] = folder_.string();
    environment["TMPDIR"] = folder_.string();  // so that what a library leaves there goes, too
    environment["LJPERF_COMM_CPUS"] = fmt::format("{}", fmt::join(lists, ";"));
    environment["OMP_NUM_THREADS"] = std::to_string(std::max<std::size_t>(1, cpus[0].size()));
    group.start(environment, cpus);
  }
}

void Fleet::await(const base::Interrupts& interrupts) {
  Clock::time_point deadline = Clock::now() + kStartPatience;
  for (;;) {
    std::vector<pollfd> polled{{interrupts.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Greeting& greeting : greetings_) {
      polled.push_back({greeting.socket.get(), POLLIN, 0});
    }
    bool starting = false;
    for (const auto& group : groups_) {
      if (group->state() != PeerGroup::State::kStarting) {
        continue;
      }
      group->watch_start(files_);
      starting = starting || group->state() == PeerGroup::State::kStarting;
      for (int fd : group->fds()) {
        polled.push_back({fd, POLLIN, 0});
      }
    }
    if (!starting) {
      break;
    }
    constexpr int kTick = 200;
    ::poll(polled.data(), polled.size(), kTick);
    if (interrupts.arrived()) {
      throw Interrupted();
    }
    accept_rank();
    read_greetings();
    for (const auto& group : groups_) {
      if (Clock::now() > deadline && group->state() == PeerGroup::State::kStarting) {
        group->fail_start(
            fmt::format("its ranks did not start within {} s", kStartPatience.count()));
      }
    }
  }
  // All ranks have mapped it by now, so the names can go at once: DeepSpeed never removes them.
  remove_deepspeed_shared_memory(kDeepSpeedAddress, ::getpid(), ranks_);
}

void Fleet::accept_rank() {
  for (;;) {
    base::UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
      return;
    }
    if (is_ours(socket.get())) {
      greetings_.push_back({std::move(socket), ""});
    }
  }
}

// "hello GROUP RANK PID\n"
void Fleet::read_greetings() {
  for (Greeting& greeting : greetings_) {
    std::array<char, kLongestGreeting> buffer{};
    ssize_t count = ::recv(greeting.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      greeting.text.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      greeting.socket.reset();
      continue;
    }
    std::size_t end = greeting.text.find('\n');
    if (end == std::string::npos) {
      continue;
    }
    std::istringstream words(greeting.text.substr(0, end));
    std::string hello;
    std::size_t group = groups_.size();
    int rank = -1;
    int pid = 0;
    words >> hello >> group >> rank >> pid;
    if (hello == "hello" && group < groups_.size()) {
      groups_[group]->connect(rank, pid, std::move(greeting.socket), greeting.text.substr(end + 1));
    }
    greeting.socket.reset();
  }
  std::erase_if(greetings_, [](const Greeting& greeting) { return !greeting.socket; });
}

std::vector<PeerGroup*> Fleet::groups() {
  std::vector<PeerGroup*> ready;
  for (const auto& group : groups_) {
    if (group->state() == PeerGroup::State::kReady) {
      ready.push_back(group.get());
    }
  }
  return ready;
}

std::vector<Skipped> Fleet::skipped() const {
  std::vector<Skipped> result;
  for (const auto& group : groups_) {
    if (group->state() == PeerGroup::State::kSkipped) {
      result.push_back({group->library().title(), group->skip_reason(), group->start_failed()});
    }
  }
  return result;
}

void Fleet::quit() {
  for (const auto& group : groups_) {
    group->note_files(files_);
  }
  for (const auto& group : groups_) {
    group->quit();
  }
}

}  // namespace ljtrain::ljperf
