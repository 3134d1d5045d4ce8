// A healthy machine in a folder of its own, for a test to spoil.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "doctor/machine.h"

namespace ljtrain::ljperf {

// A pod with 8 H100 on a healthy host; everything that checks read is there.
class FakeMachine {
 public:
  FakeMachine();
  ~FakeMachine();
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  Machine machine;

  // Files below the root; folders are made. `text` replaces what was there.
  void write(std::string_view path, std::string_view text) const;
  void remove(std::string_view path) const;
  void link(std::string_view path, std::string_view target) const;
  void folder(std::string_view path) const;
  // Replaces `what` in a file, which must hold it.
  void edit(std::string_view path, std::string_view what, std::string_view with) const;
  void set(const std::string& name, const std::string& value);
  // An interface as the kernel shows it.
  void interface(const std::string& name, int index, bool up = true, bool address = true) const;
  // A Python package's dist-info with the one file `module`/__init__.py.
  void package(const std::string& folder, const std::string& name, const std::string& version,
               const std::string& tag = "py3-none-any") const;
  void release(const std::string& name);
  // The driver in both halves and in NVML's answer.
  void driver(const std::string& version);

 private:
  std::filesystem::path folder_;
};

}  // namespace ljtrain::ljperf
