#include "ops/backend.h"

#include <string_view>

#include "base/check.h"

namespace levin {
namespace {

void has_no_kernel(std::string_view op) { LEVIN_CHECK(false, "{}: this backend has no kernel for it", op); }

}  // namespace

void Backend::delta_rule(const ops::DeltaRule&) { has_no_kernel("delta_rule"); }
void Backend::expand_picks(const ops::ExpandPicks&) { has_no_kernel("expand_picks"); }
void Backend::mean_streams(const ops::MeanStreams&) { has_no_kernel("mean_streams"); }
void Backend::short_conv(const ops::ShortConv&) { has_no_kernel("short_conv"); }
void Backend::sigmoid_mul(const ops::SigmoidMul&) { has_no_kernel("sigmoid_mul"); }

}  // namespace levin
