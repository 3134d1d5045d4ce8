// NVIDIA's management library, found at run time: nothing of it is needed to build.
#pragma once

#include <string>

namespace ljtrain::ljperf {

class NvmlLibrary {
 public:
  // Loads libnvidia-ml.so.1 and starts it. Never throws: why() says what went wrong.
  NvmlLibrary();
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  bool loaded() const { return library_ != nullptr; }  // the library is there
  bool started() const { return started_; }            // and nvmlInit succeeded
  int error() const { return error_; }                 // nvmlReturn_t of nvmlInit
  const std::string& why() const { return why_; }      // why it did not start; else empty

  // The function of that name, null where this version of the library has none.
  template <typename Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  void* library_ = nullptr;
  bool started_ = false;
  int error_ = 0;
  std::string why_;
};

}  // namespace ljtrain::ljperf
