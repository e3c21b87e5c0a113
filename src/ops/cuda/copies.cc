// What lies between the ops of a model: copies, scalings, picks without scores, the status of rows. Of the plain kernels.
#include "ops/copies.h"

#include "base/check.h"
#include "kernels/cuda/plain/copies.h"
#include "kernels/cuda/plain/index.h"
#include "kernels/cuda/plain/rows.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/index_topk.h"
#include "ops/logits.h"

namespace levin {
namespace {

namespace plain = cuda::plain;

// Rows of four-byte elements, which a copy moves whatever they mean.
float* elements(std::string_view op, std::string_view name, const View& v) {
  return reinterpret_cast<float*>(device_bytes(op, name, v));
}

plain::TakeAll plain_picks(std::string_view op, const ops::TakeAll& a) {
  return {.visible = dense_data<int32_t>(op, "visible", a.visible),
          .first = a.first,
          .picks = dense_data<int32_t>(op, "picks", a.picks),
          .n_picks = a.picks.dim(1),
          .n_rows = a.picks.dim(0)};
}

}  // namespace

void OpsOnCuda::take_most_recent(const ops::TakeAll& a) {
  plain::take_most_recent(plain_picks("take_most_recent", a), stream_.handle());
}

void OpsOnCuda::extend_picks(const ops::TakeAll& a) {
  plain::extend_picks(plain_picks("extend_picks", a), stream_.handle());
}

void OpsOnCuda::copy_rows(const ops::CopyRows& a) {
  plain::copy_rows({.x = elements("copy_rows", "x", a.x),
                    .x_ld = a.x.stride(0),
                    .rows = a.rows.empty() ? nullptr : dense_data<int32_t>("copy_rows", "rows", a.rows),
                    .repeat = a.repeat,
                    .out = elements("copy_rows", "out", a.out),
                    .out_ld = a.out.stride(0),
                    .n_rows = a.out.dim(0),
                    .d = a.out.dim(1)},
                   stream_.handle());
}

void OpsOnCuda::scale_rows(const ops::ScaleRows& a) {
  plain::scale_rows({.x = elements("scale_rows", "x", a.x),
                     .x_ld = a.x.stride(0),
                     .factor = a.factor,
                     .scale = a.scale.empty() ? nullptr : dense_data<float>("scale_rows", "scale", a.scale),
                     .out = elements("scale_rows", "out", a.out),
                     .out_ld = a.out.stride(0),
                     .n_rows = a.out.dim(0),
                     .d = a.out.dim(1)},
                    stream_.handle());
}

void OpsOnCuda::mark_unusable(const ops::MarkUnusable& a) {
  plain::mark_unusable({.x = elements("mark_unusable", "x", a.x),
                        .x_ld = a.x.stride(0),
                        .fault = dense_data<int32_t>("mark_unusable", "faults", a.faults),
                        .n_rows = a.x.dim(0),
                        .d = a.x.dim(1)},
                       stream_.handle());
}

}  // namespace levin
