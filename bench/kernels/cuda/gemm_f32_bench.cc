// Products of f32 rows on one device: time, share of the floor, the plain kernel, and cuBLASLt with both operands in bf16.
//
//   bench_gemm_f32 [--cublaslt LIBRARY] [--product NAME] [--rows N] [--all-plans]      CSV to stdout
//
// Shapes are DeepSeek-V3.2's and, of the halves of kv_b, GLM-5's. Up to 16 copies of the weights take turns; large ones are cold. The
// floor is the larger of the weights' bytes and the multiply-adds at the rates of the card's clocks.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cublaslt_opponent.h"
#include "device_data.h"
#include "device_timing.h"
#include "kernels/cuda/gemm/gemm_f32.h"
#include "kernels/cuda/plain/products.h"

namespace levin::bench {
namespace {

struct Product {
  const char* name;
  DType w_type;
  int n_heads, n, k;
  int most_rows;
};
constexpr Product kProducts[] = {{"head", DType::kBF16, 1, 129280, 7168, 64},
                                 {"MTP join", DType::kBF16, 1, 7168, 14336, 4096},
                                 {"router", DType::kBF16, 1, 256, 7168, 4096},
                                 {"index head weights", DType::kBF16, 1, 64, 7168, 4096},
                                 {"keys per head", DType::kF8E4M3, 128, 512, 128, 4096},
                                 {"values per head", DType::kF8E4M3, 128, 128, 512, 4096},
                                 {"GLM keys per head", DType::kBF16, 64, 512, 192, 4096},
                                 {"GLM values per head", DType::kBF16, 64, 256, 512, 4096}};
constexpr int kRows[] = {1, 2, 4, 8, 16, 32, 64, 512, 4096};

struct Options {
  std::string library;  // cuBLASLt's
  std::string product;  // all
  int rows = 0;         // all
  bool all_plans = false;
};

struct CardRates {
  double bytes_per_second = 0;
  double fma_per_second = 0;
};
CardRates rates_of_card() {
  int memory_khz = 0, bus_bits = 0, sm_khz = 0, n_sms = 0;
  cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, 0);
  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, 0);
  cudaDeviceGetAttribute(&sm_khz, cudaDevAttrClockRate, 0);
  cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0);
  return {2e3 * memory_khz * bus_bits / 8, 128e3 * sm_khz * n_sms};
}

class Bench {
 public:
  Bench(const cuda::Stream& stream, const Product& p, CublasLt* opponent)
      : stream_(stream),
        p_(p),
        opponent_(opponent),
        w_bytes_(int64_t{p.n_heads} * p.n * p.k * dtype_bytes(p.w_type)),
        n_copies_(std::clamp<int64_t>(200'000'000 / w_bytes_, 1, 16)),
        w_(stream, n_copies_ * w_bytes_),
        bf16_w_(stream, p.w_type == DType::kBF16 ? 1 : n_copies_ * w_bytes_ * 2),
        scale_(stream, std::vector<float>(static_cast<size_t>(p.n_heads * blocks(p.n) * blocks(p.k)), 0.01f)),
        x_(stream, int64_t{p.most_rows} * p.n_heads * p.k),
        out_(stream, int64_t{p.most_rows} * p.n_heads * p.n) {
    // Ordinary values, which draw ordinary power.
    std::mt19937_64 generator(1);
    std::normal_distribution<float> normal;
    std::vector<uint8_t> pattern(1 << 22);
    for (size_t i = 0; i < pattern.size(); i += 2) {
      const auto bits = static_cast<uint16_t>(0x3C00 | (generator() & 0x81FF));
      std::memcpy(&pattern[i], &bits, 2);
    }
    repeat(stream, w_, pattern);
    if (p.w_type != DType::kBF16) repeat(stream, bf16_w_, pattern);
    std::vector<float> rows(1 << 20);
    for (float& v : rows) v = normal(generator);
    for (int64_t at = 0; at < x_.size(); at += std::ssize(rows))
      cuda::copy_to_device(stream, reinterpret_cast<std::byte*>(x_.data() + at), rows.data(),
                           std::min<int64_t>(std::ssize(rows), x_.size() - at) * 4);
    cuda::must(stream.synchronize());
  }

  static int64_t blocks(int64_t n) { return (n + 127) / 128; }

  double tuned_us(int rows, const cuda::GemmF32Plan& plan) {
    cuda::GemmF32 a{.x = x_.data(),
                    .x_ld = int64_t{p_.n_heads} * p_.k,
                    .x_head_ld = p_.k,
                    .w_type = p_.w_type,
                    .w_scale = p_.w_type == DType::kF8E4M3 ? scale_.data() : nullptr,
                    .out = out_.data(),
                    .out_ld = int64_t{p_.n_heads} * p_.n,
                    .out_head_ld = p_.n,
                    .n_tokens = rows,
                    .n_heads = p_.n_heads,
                    .n = p_.n,
                    .k = p_.k,
                    .pdl = true};
    return time_in_graph(stream_, timing(rows), [&](int i) {
      a.w = w_.data() + i % n_copies_ * w_bytes_;
      cuda::gemm_f32(a, plan, stream_.handle());
    });
  }
  double plain_us(int rows) {
    cuda::plain::MatmulPerHead a{.x = {.x = x_.data(), .ld = int64_t{p_.n_heads} * p_.k},
                                 .x_head_ld = p_.k,
                                 .w = {.dtype = p_.w_type, .n = p_.n, .k = p_.k},
                                 .out = out_.data(),
                                 .out_ld = int64_t{p_.n_heads} * p_.n,
                                 .out_head_ld = p_.n,
                                 .n_rows = rows,
                                 .n_heads = p_.n_heads};
    if (p_.w_type == DType::kF8E4M3) a.w.scales = scale_.data();
    GraphTiming few = timing(rows);
    few.n_launches = 2, few.n_replays = 3;
    return time_in_graph(stream_, few, [&](int i) {
      a.w.data = w_.data() + i % n_copies_ * w_bytes_;
      cuda::plain::matmul_per_head(a, stream_.handle());
    });
  }
  // NaN where the library has none.
  double opponent_us(int rows) {
    if (opponent_ == nullptr || !opponent_->prepare({p_.n_heads, rows, p_.n, p_.k})) return NAN;
    const bool own = p_.w_type == DType::kBF16;
    const int64_t step = own ? w_bytes_ : w_bytes_ * 2;
    return time_in_graph(stream_, timing(rows), [&](int i) {
      const uint8_t* w = (own ? w_ : bf16_w_).data() + i % n_copies_ * step;
      opponent_->run(Bf16Product{x_.data(), w, out_.data()}, stream_.handle());
    });
  }

  void run(const CardRates& rates, const Options& options) {
    for (const int rows : kRows) {
      if (rows > p_.most_rows || (options.rows != 0 && rows != options.rows)) continue;
      const cuda::GemmF32Shape shape{.n_rows = rows, .w_type = p_.w_type, .n = p_.n, .k = p_.k, .n_heads = p_.n_heads};
      const cuda::GemmF32Plan plan = cuda::plan_gemm_f32(shape);
      const double fma = double{1} * p_.n_heads * p_.n * p_.k * rows;
      const double floor_us =
          1e6 * std::max(static_cast<double>(w_bytes_) / rates.bytes_per_second, fma / rates.fma_per_second);
      const double us = tuned_us(rows, plan);
      fmt::print("{},{},{} x {} x {},{},\"{}\",{:.1f},{:.1f},{:.0f},{:.0f},{:.1f},{:.1f}\n", p_.name,
                 dtype_name(p_.w_type), p_.n_heads, p_.n, p_.k, rows, plan.describe(), us, floor_us,
                 100 * floor_us / us, 100e6 * fma / rates.fma_per_second / us, plain_us(rows), opponent_us(rows));
      std::fflush(stdout);
      if (!options.all_plans) continue;
      for (const cuda::GemmF32Plan& other : cuda::gemm_f32_plans(shape))
        fmt::print("{},,,{},\"{}\",{:.1f},,,,,\n", p_.name, rows, other.describe(), tuned_us(rows, other));
    }
  }

 private:
  GraphTiming timing(int rows) const {
    const bool is_long = static_cast<double>(w_bytes_) * rows > 1e9;
    return {.n_launches = is_long ? 2 : 16, .n_replays = is_long ? 5 : 11};
  }

  const cuda::Stream& stream_;
  const Product& p_;
  CublasLt* opponent_;
  int64_t w_bytes_, n_copies_;
  cuda::DeviceArray<uint8_t> w_, bf16_w_;
  cuda::DeviceArray<float> scale_, x_, out_;
};

int run(const Options& options) {
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    fmt::print(stderr, "{}\n", why);
    return 5;
  }
  const cuda::Stream stream = cuda::must(cuda::Stream::create());
  std::unique_ptr<CublasLt> opponent;
  if (!options.library.empty()) {
    std::string why_not;
    opponent = CublasLt::open(options.library, &why_not);
    fmt::print(stderr, "{}\n", opponent ? opponent->version() : why_not);
  }
  const CardRates rates = rates_of_card();
  fmt::print(
      "product,weights,shape,rows,plan,us,floor_us,percent_of_floor,percent_of_fma_peak,plain_us,cublaslt_bf16_us\n");
  for (const Product& p : kProducts) {
    if (options.product.empty() || options.product == p.name) Bench(stream, p, opponent.get()).run(rates, options);
  }
  return 0;
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) {
  levin::bench::Options options;
  std::vector<std::string> products;
  for (const levin::bench::Product& p : levin::bench::kProducts) products.push_back(p.name);
  CLI::App app("Products of f32 rows, and how near to the limits of the card and to cuBLASLt they are");
  app.add_option("--product", options.product, "one product instead of all")->check(CLI::IsMember(products));
  app.add_option("--rows", options.rows, "one number of rows instead of all")
      ->check(CLI::IsMember(std::vector<int>(std::begin(levin::bench::kRows), std::end(levin::bench::kRows))));
  app.add_flag("--all-plans", options.all_plans, "each plan of a product, not only the chosen one");
  app.add_option("--cublaslt", options.library, "library of cuBLASLt; without it there is no comparison");
  CLI11_PARSE(app, argc, argv);
  return levin::bench::run(options);
}
