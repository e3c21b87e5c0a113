#include "ops/machine_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/tiles_amx.h"

namespace levin {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 30;
constexpr int64_t kReadBytes = int64_t{16} << 20;  // of it, a sample; about a millisecond
constexpr int64_t kRounds = 20'000;                // likewise
constexpr int kChains = 16;                        // independent sums: more than latency times issue width

template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

[[gnu::target("avx512f")]] float fma_rounds_avx512(int64_t n) {
  __m512 acc[kChains];
#pragma GCC unroll 16
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 16
    for (auto& a : acc) {
      a = _mm512_fmadd_ps(a, x, y);
      asm volatile("" : "+v"(a));
    }
  }
  float sum = 0;
#pragma GCC unroll 16
  for (const auto& a : acc) sum += _mm512_cvtss_f32(a);
  return sum;
}

[[gnu::target("avx2,fma")]] float fma_rounds_avx2(int64_t n) {
  __m256 acc[12];
#pragma GCC unroll 12
  for (auto& a : acc) a = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) {
      a = _mm256_fmadd_ps(a, x, y);
      asm volatile("" : "+v"(a));
    }
  }
  float sum = 0;
#pragma GCC unroll 16
  for (const auto& a : acc) sum += _mm256_cvtss_f32(a);
  return sum;
}

[[gnu::target("avx512f,avx512bw,avx512bf16")]] float dot_rounds(int64_t n) {
  __m512 acc[kChains];
#pragma GCC unroll 16
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  const __m512i ones = _mm512_set1_epi16(0x3C00);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 16
    for (auto& a : acc) {
      a = _mm512_dpbf16_ps(a, reinterpret_cast<__m512bh>(ones), reinterpret_cast<__m512bh>(ones));
      asm volatile("" : "+v"(a));
    }
  }
  float sum = 0;
#pragma GCC unroll 16
  for (const auto& a : acc) sum += _mm512_cvtss_f32(a);
  return sum;
}

// Rounds of four products. Of ones, because zeros are multiplied a quarter faster than anything else.
void tile_rounds(int64_t n) {
  using namespace kernels;
  alignas(64) uint16_t ones[kTileRows * kTileK];
  std::fill_n(ones, kTileRows * kTileK, uint16_t{0x3F80});
  const TileShapes shapes(4, 1, kTileRows);
  load_tile<4>(ones, 2 * kTileK);
  load_tile<5>(ones, 2 * kTileK);
  for (int64_t i = 0; i < n; ++i) {
    multiply_tiles<0, 4, 5>();
    multiply_tiles<1, 4, 5>();
    multiply_tiles<2, 4, 5>();
    multiply_tiles<3, 4, 5>();
  }
}

[[gnu::target("avx2")]] int64_t sum_bytes(const std::byte* data, int64_t n_bytes) {
  __m256i sums[8] = {};
  for (int64_t i = 0; i + 256 <= n_bytes; i += 256) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sums[j] = _mm256_add_epi64(sums[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  int64_t sum = 0;
  for (const auto& s : sums) sum += _mm256_extract_epi64(s, 0) + _mm256_extract_epi64(s, 3);
  return sum;
}

volatile double g_sink;  // keeps the measured loops alive

}  // namespace

double gflop_per_s(const MachineLimits& limits, Isa isa, bool in_bf16) {
  if (in_bf16 && isa >= Isa::kAmxBf16) return limits.tile_gflop_per_s;
  if (in_bf16 && isa >= Isa::kAvx512Bf16) return limits.dot_gflop_per_s;
  return limits.fma_gflop_per_s;
}

double seconds_at(const MachineLimits& limits, Isa isa, const OpWork& work) {
  const auto seconds = [](double amount, double giga_per_s) { return giga_per_s > 0 ? 1e-9 * amount / giga_per_s : 0; };
  const double computing =
      seconds(work.f32_flop, gflop_per_s(limits, isa, false)) + seconds(work.bf16_flop, gflop_per_s(limits, isa, true));
  return std::max(seconds(work.bytes, limits.read_gb_per_s), computing);
}

void LimitProbe::Rate::add(double amount, double took) {
  work += amount;
  seconds += took;
  best = std::max(best, amount / took);
}

LimitProbe::LimitProbe(ThreadPool& pool) : pool_(pool), memory_(kMemoryBytes) {
  std::memset(memory_.data(), 1, kMemoryBytes);  // pages that were never written are all one page
}

void LimitProbe::sample() {
  const CpuInfo cpu = cpu_info();
  const double rounds = 1e-9 * kRounds * pool_.n_threads();
  if (cpu.amx_bf16) tile_.add(rounds * 4 * 16384, seconds_of([&] { pool_.run([](int) { tile_rounds(kRounds); }); }));
  if (cpu.avx2) {
    const std::byte* data = memory_.data() + read_at_;
    read_at_ = (read_at_ + kReadBytes) % kMemoryBytes;
    read_.add(1e-9 * kReadBytes, seconds_of([&] {
                pool_.parallel_for(kReadBytes, 4096, [&](int64_t begin, int64_t end, int) {
                  g_sink = static_cast<double>(sum_bytes(data + begin, end - begin));
                });
              }));
  }
  if (cpu.avx512) {
    fma_.add(rounds * kChains * 32, seconds_of([&] { pool_.run([](int) { g_sink = fma_rounds_avx512(kRounds); }); }));
  } else if (cpu.avx2) {
    fma_.add(rounds * 12 * 16, seconds_of([&] { pool_.run([](int) { g_sink = fma_rounds_avx2(kRounds); }); }));
  }
  if (cpu.avx512_bf16) {
    dot_.add(rounds * kChains * 64, seconds_of([&] { pool_.run([](int) { g_sink = dot_rounds(kRounds); }); }));
  }
}

MachineLimits LimitProbe::limits() const {
  const auto rate = [](const Rate& r) { return r.seconds > 0 ? r.work / r.seconds : 0.0; };
  return {.read_gb_per_s = rate(read_),
          .fma_gflop_per_s = rate(fma_),
          .dot_gflop_per_s = rate(dot_),
          .tile_gflop_per_s = rate(tile_)};
}

MachineLimits LimitProbe::best() const {
  return {.read_gb_per_s = read_.best,
          .fma_gflop_per_s = fma_.best,
          .dot_gflop_per_s = dot_.best,
          .tile_gflop_per_s = tile_.best};
}

}  // namespace levin
