#include "support/machine_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace levin::bench {
namespace {

constexpr int kReadRepeats = 12;
constexpr int kPeakRepeats = 200;  // short ones, so that some run undisturbed on a shared machine
constexpr int64_t kReadBytes = int64_t{1} << 30;
constexpr int64_t kRounds = 200'000;
constexpr int kChains = 16;  // independent accumulators: more than latency times issue width

// The shortest of a few runs of body(thread) on all threads, in seconds.
template <class Body>
double best_seconds(ThreadPool& pool, int n_repeats, const Body& body) {
  double best = 1e30;
  for (int i = 0; i < n_repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(body);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
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

MachineLimits measure_machine(int n_threads) {
  const CpuInfo cpu = cpu_info();
  ThreadPool pool(n_threads);
  MachineLimits limits{.n_threads = n_threads};
  if (cpu.avx2) {
    const Buffer buffer(kReadBytes);
    std::memset(buffer.data(), 1, kReadBytes);  // pages that were never written are all one page
    const double seconds = best_seconds(pool, kReadRepeats, [&](int thread) {
      const Share share = pool.share_of(kReadBytes, 4096, thread);
      g_sink = static_cast<double>(sum_bytes(buffer.data() + share.begin, share.end - share.begin));
    });
    limits.read_gb_per_s = 1e-9 * static_cast<double>(kReadBytes) / seconds;
  }
  const double rounds = 1e-9 * kRounds * n_threads;
  if (cpu.avx512) {
    limits.fma_gflop_per_s =
        rounds * kChains * 32 / best_seconds(pool, kPeakRepeats, [](int) { g_sink = fma_rounds_avx512(kRounds); });
  } else if (cpu.avx2) {
    limits.fma_gflop_per_s =
        rounds * 12 * 16 / best_seconds(pool, kPeakRepeats, [](int) { g_sink = fma_rounds_avx2(kRounds); });
  }
  if (cpu.avx512_bf16) {
    limits.dot_gflop_per_s =
        rounds * kChains * 64 / best_seconds(pool, kPeakRepeats, [](int) { g_sink = dot_rounds(kRounds); });
  }
  return limits;
}

}  // namespace levin::bench
