// One line that says what is missing, for each thing that can be.
#include "tensor/cuda/probe.h"

#include <gtest/gtest.h>

namespace levin::cuda {
namespace {

DriverFacts good_machine() {
  DriverFacts facts;
  facts.built_for_cuda = 13000;
  facts.driver_cuda = 13000;
  facts.n_devices = 1;
  facts.device = {0, "NVIDIA H200", 90, 132, int64_t{141} << 30, 13000};
  return facts;
}

struct Case {
  const char* name;
  void (*spoil)(DriverFacts&);
  int device;
  const char* says;
};

const Case kCases[] = {
    {"NoKernels", [](DriverFacts& f) { f.built_for_cuda = 0; }, 0, "this build has no CUDA kernels"},
    {"NoDriver", [](DriverFacts& f) { f.load_error = "libcuda.so.1: cannot open shared object file"; }, 0,
     "no NVIDIA driver found (libcuda.so.1"},
    {"OldDriver", [](DriverFacts& f) { f.driver_cuda = 12080; }, 0, "it supports CUDA 12.8, this build needs 13.0"},
    {"OldDriverForOldToolkit", [](DriverFacts& f) { f.built_for_cuda = 12060, f.driver_cuda = 12020; }, 0,
     "supports CUDA 12.2, this build needs 12.4"},
    {"BrokenDriver", [](DriverFacts& f) { f.init_error = 999, f.n_devices = 0; }, 0, "cuInit returned 999"},
    {"NoDevice", [](DriverFacts& f) { f.init_error = 100, f.n_devices = 0; }, 0, "sees no device"},
    {"WrongIndex", [](DriverFacts&) {}, 3, "device 3 does not exist; the driver sees 1"},
    {"NegativeIndex", [](DriverFacts&) {}, -1, "device -1 does not exist"},
    {"WrongArch", [](DriverFacts& f) { f.device.name = "NVIDIA A100", f.device.arch = 80; }, 0,
     "device 0 (NVIDIA A100) is sm_80"},
};

TEST(ProbeTest, NamesWhatIsMissing) {
  for (const Case& c : kCases) {
    DriverFacts facts = good_machine();
    c.spoil(facts);
    const Result<DeviceInfo> result = usable_device(facts, c.device);
    ASSERT_FALSE(result.ok()) << c.name;
    EXPECT_EQ(result.error().kind, ErrorKind::kNoDevice) << c.name;
    EXPECT_NE(result.error().message.find(c.says), std::string::npos) << c.name << ": " << result.error().message;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << c.name;
  }
}

TEST(ProbeTest, AcceptsHopper) {
  const Result<DeviceInfo> result = usable_device(good_machine(), 0);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value().n_sms, 132);
}

TEST(ProbeTest, ThePlainSetRunsOnOlderAndNewerCards) {
  DriverFacts facts = good_machine();
  for (const auto& [arch, usable] : {std::pair{75, false}, {80, true}, {89, true}, {90, true}, {120, true}}) {
    facts.device.arch = arch;
    const Result<DeviceInfo> result = usable_device(facts, 0, KernelSet::kPlain);
    EXPECT_EQ(result.ok(), usable) << arch;
    if (!usable) {
      EXPECT_NE(result.error().message.find("from sm_80 on"), std::string::npos) << result.error().message;
    }
  }
}

TEST(ProbeTest, AsksThisMachineWithoutFailing) {
  const DriverFacts facts = ask_driver(0);
  if (!facts.load_error.empty()) {
    EXPECT_EQ(facts.n_devices, 0);
    EXPECT_FALSE(usable_device(facts, 0).ok());
  }
}

}  // namespace
}  // namespace levin::cuda
