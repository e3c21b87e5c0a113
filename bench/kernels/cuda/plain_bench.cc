// The plain kernels at the shapes of DeepSeek-V3.2: whether they are fast enough for what they are for, tests at real widths
// and small models at reading speed.
//
//   bench_plain        CSV to stdout: call, rows, us
#include <fmt/format.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device_timing.h"
#include "kernels/cuda/plain/attention.h"
#include "kernels/cuda/plain/index.h"
#include "kernels/cuda/plain/moe.h"
#include "kernels/cuda/plain/products.h"
#include "kernels/cuda/plain/rows.h"
#include "kernels/cuda/plain/sampling.h"
#include "tensor/formats.h"

namespace levin::bench {
namespace {

using cuda::DeviceArray;
using cuda::Stream;
namespace plain = cuda::plain;

constexpr int64_t kContext = 65536;

// Device memory of ordinary values: whatever type reads it.
DeviceArray<uint8_t> filled(const Stream& stream, int64_t n_bytes) {
  DeviceArray<uint8_t> array(stream, n_bytes);
  array.fill(0x3A);
  return array;
}

template <class T>
T* as(const DeviceArray<uint8_t>& array) {
  return reinterpret_cast<T*>(array.data());
}

void report(const Stream& stream, const std::string& call, int64_t n_rows, const std::function<void()>& launch) {
  const double us = time_in_graph(stream, {.n_launches = 4, .n_replays = 5}, [&](int) { launch(); });
  fmt::print("{},{},{:.1f}\n", call, n_rows, us);
}

void time_products(const Stream& stream, DType dtype, int64_t n, int64_t k) {
  const auto weights = filled(stream, n * k * dtype_bytes(dtype)),
             scales = filled(stream, (n / 128 + 1) * (k / 128) * 4);
  for (const int64_t n_rows : {1, 64, 512}) {
    const auto x = filled(stream, n_rows * k * 4), out = filled(stream, n_rows * n * 4);
    const plain::Weights w{.data = weights.data(),
                           .dtype = dtype,
                           .scales = dtype == DType::kF8E4M3 ? as<float>(scales) : nullptr,
                           .n = n,
                           .k = k};
    report(stream, fmt::format("matmul {} {}x{}", dtype_name(dtype), n, k), n_rows, [&] {
      plain::matmul({.x = {.x = x.data(), .ld = k}, .w = w, .out = as<float>(out), .out_ld = n, .n_rows = n_rows},
                    stream.handle());
    });
  }
}

void time_experts(const Stream& stream) {
  constexpr int64_t kExperts = 256, kActive = 8, kD = 7168, kF = 2048;
  const auto gate = filled(stream, kExperts * kF * kD), up = filled(stream, kExperts * kF * kD);
  const auto down = filled(stream, kExperts * kF * kD), scales = filled(stream, kExperts * kF / 128 * kD / 128 * 4);
  const auto weights = [&](const DeviceArray<uint8_t>& data, int64_t n, int64_t k) {
    return plain::Weights{.data = data.data(), .dtype = DType::kF8E4M3, .scales = as<float>(scales), .n = n, .k = k};
  };
  for (const int64_t n_rows : {1, 8, 512}) {
    std::vector<int32_t> topk;
    std::mt19937 generator(1);
    for (int64_t i = 0; i < n_rows * kActive; ++i) {
      topk.push_back(static_cast<int32_t>(i % kActive * (kExperts / kActive) + generator() % (kExperts / kActive)));
    }
    const DeviceArray<int32_t> device_topk(stream, topk);
    const auto x = filled(stream, n_rows * kD * 4), out = filled(stream, n_rows * kD * 4);
    const auto pick_weights = filled(stream, n_rows * kActive * 4);
    plain::ExpertFfn call{.x = as<float>(x),
                          .x_ld = kD,
                          .topk = device_topk.data(),
                          .weights = as<float>(pick_weights),
                          .n_active = kActive,
                          .experts = {.gate = weights(gate, kF, kD),
                                      .up = weights(up, kF, kD),
                                      .down = weights(down, kD, kF),
                                      .input = plain::Operand::kFp8,
                                      .hidden = plain::Operand::kFp8},
                          .n_experts = kExperts,
                          .out = as<float>(out),
                          .out_ld = kD,
                          .n_rows = n_rows};
    const auto scratch = filled(stream, plain::expert_ffn_scratch_bytes(call));
    call.scratch = as<std::byte>(scratch);
    report(stream, "expert_ffn", n_rows, [&] { plain::expert_ffn(call, stream.handle()); });
  }
}

// Page tables of one sequence in order.
DeviceArray<int32_t> pages_in_order(const Stream& stream) {
  std::vector<int32_t> table(kContext / kPageTokens);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  return DeviceArray<int32_t>(stream, table);
}

void time_index(const Stream& stream) {
  const IndexKeyFormat format = index_key_format(CacheDType::kFp8, 128);
  const auto pages = filled(stream, kContext / kPageTokens * format.page_bytes());
  const auto table = pages_in_order(stream);
  for (const int64_t n_rows : {1, 16}) {
    const auto q = filled(stream, n_rows * 64 * 128), w = filled(stream, n_rows * 64 * 4);
    const auto score = filled(stream, n_rows * kContext * 4), topk = filled(stream, n_rows * 2048 * 4);
    const DeviceArray<int32_t> seq(stream, std::vector<int32_t>(static_cast<size_t>(n_rows), 0));
    const DeviceArray<int32_t> visible(stream, std::vector<int32_t>(static_cast<size_t>(n_rows), kContext));
    report(stream, "index_topk of 64K keys", n_rows, [&] {
      plain::index_topk({.query = {.q = q.data(),
                                   .q_dtype = DType::kF8E4M3,
                                   .q_ld = 64 * 128,
                                   .q_head_ld = 128,
                                   .w = as<float>(w),
                                   .w_ld = 64,
                                   .seq = seq.data(),
                                   .visible = visible.data(),
                                   .format = format,
                                   .cache = {as<std::byte>(pages), format.page_bytes(), table.data(), table.size()},
                                   .n_rows = n_rows,
                                   .n_heads = 64},
                         .score = as<float>(score),
                         .n_slots = kContext,
                         .topk = as<int32_t>(topk),
                         .n_topk = 2048},
                        stream.handle());
    });
  }
}

void time_attention(const Stream& stream) {
  const LatentFormat format = latent_format(CacheDType::kFp8, 512, 64);
  const auto pages = filled(stream, kContext / kPageTokens * format.page_bytes());
  const auto table = pages_in_order(stream);
  for (const int64_t n_rows : {1, 8, 64}) {
    std::vector<int32_t> topk;
    for (int64_t i = 0; i < n_rows * 2048; ++i) topk.push_back(static_cast<int32_t>(i % 2048 * (kContext / 2048)));
    const DeviceArray<int32_t> device_topk(stream, topk);
    const DeviceArray<int32_t> seq(stream, std::vector<int32_t>(static_cast<size_t>(n_rows), 0));
    const auto q = filled(stream, n_rows * 128 * 576 * 4), out = filled(stream, n_rows * 128 * 512 * 4);
    report(stream, "sparse_attention of 2048 top-k indices", n_rows, [&] {
      plain::sparse_attention(
          {.q_latent = as<float>(q),
           .q_rope = as<float>(q) + 512,
           .q_latent_ld = 128 * 576,
           .q_latent_head_ld = 576,
           .q_rope_ld = 128 * 576,
           .q_rope_head_ld = 576,
           .seq = seq.data(),
           .scale = 0.01f,
           .format = format,
           .rows = {.cache = {as<std::byte>(pages), format.page_bytes(), table.data(), table.size()},
                    .topk = device_topk.data(),
                    .n_topk = 2048},
           .out = as<float>(out),
           .out_ld = 128 * 512,
           .out_head_ld = 512,
           .n_rows = n_rows,
           .n_heads = 128},
          stream.handle());
    });
  }
}

void time_rows(const Stream& stream) {
  const auto x = filled(stream, 8 * 129280 * 4), weight = filled(stream, 28672 * 4), out = filled(stream, 28672 * 4);
  for (const int64_t d : {384, 7168, 28672}) {
    report(stream, fmt::format("rms_norm of {}", d), 1, [&] {
      plain::rms_norm({.x = as<float>(x),
                       .x_ld = d,
                       .weight = as<float>(weight),
                       .out = as<float>(out),
                       .out_ld = d,
                       .n_rows = 1,
                       .d = d},
                      stream.handle());
    });
  }
  const DeviceArray<ChoiceRule> rules(stream, std::vector<ChoiceRule>(8, {.seed = 1, .temperature = 1}));
  const DeviceArray<plain::ChoicePart> parts(stream, 8 * plain::kChoiceParts);
  for (const int64_t n_rows : {1, 8}) {
    const plain::Logits logits{.x = as<float>(x), .ld = 129280, .n_rows = n_rows, .n_vocab = 129280};
    report(stream, "choice of 129280", n_rows, [&] {
      plain::choose_tokens(
          {.logits = logits, .rules = rules.data(), .out = as<ChosenToken>(out), .parts = parts.data()},
          stream.handle());
    });
  }
}

}  // namespace
}  // namespace levin::bench

int main() {
  using namespace levin;
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    fmt::print(stderr, "bench_plain: {}\n", why);
    return 1;
  }
  const cuda::Stream stream = cuda::must(cuda::Stream::create());
  fmt::print("call,rows,us\n");
  bench::time_rows(stream);
  bench::time_products(stream, DType::kBF16, 384, 384);
  bench::time_products(stream, DType::kF8E4M3, 2112, 7168);
  bench::time_products(stream, DType::kF8E4M3, 24576, 1536);
  bench::time_products(stream, DType::kBF16, 129280, 7168);
  bench::time_experts(stream);
  bench::time_index(stream);
  bench::time_attention(stream);
}
