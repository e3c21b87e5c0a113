// Loaded before a program (LD_PRELOAD), this breaks the program's CUDA device as soon as the file that
// LEVIN_TEST_BREAK_DEVICE_AT names is there: a kernel traps in the context that all of a process shares. The driver's functions
// are looked up by name, so that no toolkit is needed to build it.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

constexpr char kTrap[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry break_device() { trap; }\n";

// Calls a function of the driver; ends the process if it fails, since the test would wait in vain.
template <class... Parameters, class... Arguments>
void call(void* driver, const char* name, int (*)(Parameters...), Arguments... arguments) {
  auto* function = reinterpret_cast<int (*)(Parameters...)>(dlsym(driver, name));
  const int code = function != nullptr ? function(arguments...) : -1;
  if (code == 0) return;
  std::fprintf(stderr, "break_device: %s gives %d\n", name, code);
  std::_Exit(EXIT_FAILURE);
}

template <class... Parameters>
constexpr int (*takes())(Parameters...) {
  return nullptr;
}

void break_device() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return;
  int device = 0;
  void *context = nullptr, *module = nullptr, *kernel = nullptr;
  call(driver, "cuInit", takes<unsigned>(), 0u);
  call(driver, "cuDeviceGet", takes<int*, int>(), &device, 0);
  call(driver, "cuDevicePrimaryCtxRetain", takes<void**, int>(), &context, device);
  call(driver, "cuCtxSetCurrent", takes<void*>(), context);
  call(driver, "cuModuleLoadData", takes<void**, const void*>(), &module, static_cast<const void*>(kTrap));
  call(driver, "cuModuleGetFunction", takes<void**, void*, const char*>(), &kernel, module, "break_device");
  using U = unsigned;
  call(driver, "cuLaunchKernel", takes<void*, U, U, U, U, U, U, U, void*, void**, void**>(), kernel, 1u, 1u, 1u, 1u, 1u,
       1u, 0u, static_cast<void*>(nullptr), static_cast<void**>(nullptr), static_cast<void**>(nullptr));
}

__attribute__((constructor)) void start() {
  const char* path = std::getenv("LEVIN_TEST_BREAK_DEVICE_AT");
  if (path == nullptr) return;
  std::thread([file = std::string(path)] {
    while (::access(file.c_str(), F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    break_device();
  }).detach();
}

}  // namespace
