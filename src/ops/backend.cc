#include "ops/backend.h"

#include <string_view>

#include "base/check.h"

namespace levin {
namespace {

void has_no_kernel(const Backend& backend, std::string_view op) {
  LEVIN_CHECK(false, "{}: there is no kernel on {}", op, backend.device_id().kind == Device::kCpu ? "the CPU" : "CUDA");
}

}  // namespace

void Backend::delta_rule(const ops::DeltaRule&) { has_no_kernel(*this, "delta_rule"); }
void Backend::expand_picks(const ops::ExpandPicks&) { has_no_kernel(*this, "expand_picks"); }
void Backend::mean_streams(const ops::MeanStreams&) { has_no_kernel(*this, "mean_streams"); }
void Backend::short_conv(const ops::ShortConv&) { has_no_kernel(*this, "short_conv"); }
void Backend::sigmoid_mul(const ops::SigmoidMul&) { has_no_kernel(*this, "sigmoid_mul"); }

}  // namespace levin
