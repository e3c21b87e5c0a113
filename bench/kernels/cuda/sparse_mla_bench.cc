// Sparse attention of a decode step, and of a prefill step (4096 rows).
//
//   bench_sparse_mla [--only B] [--form NAME] [--spread S] [--idle MS] [--warm MS]
//
// CSV to stdout: kind, shape, us, floor us, share of floor, rate. B: that batch alone; NAME: that form alone, as in the
// first column. S: the standard deviation of scores, 1 by default. Before a case is timed, the device is idle for so long,
// 0 by default, and then runs it for so long, 200 by default. All of it matters for large batches: they are at the card's
// power limit, which depends on the bits of the weights, and is felt after 50 ms.
//
// The cache is larger than L2 and the launches of a graph rotate through it, so that rows are cold, as in every layer of
// a step.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "device_data.h"
#include "device_timing.h"
#include "kernels/cuda/mla_problem.h"

namespace levin::bench {
namespace {

using cuda::DeviceArray;
using cuda::Stream;

struct MlaCase {
  int n_heads, n_requests, n_tokens;
};

constexpr std::pair<const char*, cuda::MlaSplit> kForms[] = {
    {"auto", cuda::MlaSplit::kAuto},
    {"whole", cuda::MlaSplit::kWholeRows},
    {"all heads", cuda::MlaSplit::kAllHeads},
    {"all heads, parts", cuda::MlaSplit::kAllHeadsParts},
    {"pairs", cuda::MlaSplit::kPairs},
    {"eight blocks", cuda::MlaSplit::kEightBlocks},
    {"four blocks", cuda::MlaSplit::kFourBlocks},
    {"eight apart", cuda::MlaSplit::kEightApart},
    {"eight apart, all heads", cuda::MlaSplit::kEightApartAllHeads}};

// What all cases have in common. Queries and rows have a standard deviation of 1, and a query 576 columns.
struct MlaConditions {
  int only_requests = 0;
  std::string only_form;
  float spread = 1;
  int idle_ms = 0;
  int warm_ms = 200;

  float scale() const { return spread / 24; }
};

// Rows of 656 bytes of one million slots, top-k indices of each row from 64 thousand consecutive slots of its request.
class MlaCache {
 public:
  static constexpr int64_t kSlots = 1 << 20;
  explicit MlaCache(const Stream& stream) : rows(stream, kSlots * 656) {
    constexpr int64_t kPattern = 8192;
    const std::vector<uint16_t> values = cuda::MlaProblem::random_bf16(kPattern * 576, 4);
    const std::array<float, 4> scales = {1, 1, 1, 1};
    std::vector<uint8_t> pattern(kPattern * 656);
    for (int64_t slot = 0; slot < kPattern; ++slot) {
      uint8_t* row = pattern.data() + slot * 656;
      const uint16_t* from = values.data() + slot * 576;
      std::transform(from, from + 512, row, [](uint16_t v) { return f32_to_e4m3(bf16_to_f32(v)); });
      std::memcpy(row + 512, scales.data(), 16);
      std::memcpy(row + 528, from + 512, 128);
    }
    repeat(stream, rows, pattern);
  }
  DeviceArray<uint8_t> rows;
};

std::vector<int32_t> random_topk(const MlaCase& c, int n_variants) {
  constexpr int64_t kSpan = 65536;
  std::mt19937_64 generator(3);
  std::vector<int32_t> topk;
  std::vector<int32_t> row(2048);
  for (int i = 0; i < n_variants * c.n_requests; ++i) {
    const int64_t first = static_cast<int64_t>(generator() % static_cast<uint64_t>(MlaCache::kSlots - kSpan));
    for (int t = 0; t < c.n_tokens; ++t) {
      for (size_t k = 0; k < row.size(); ++k)
        row[k] = static_cast<int32_t>(first + static_cast<int64_t>(k) * 32 + static_cast<int64_t>(generator() % 32));
      topk.insert(topk.end(), row.begin(), row.end());
    }
  }
  return topk;
}

// 4096 rows of one request by position, with the conversion of its rows and without.
void bench_prefill(const Stream& stream, const MlaConditions& conditions, int n_heads, const MlaCache& cache,
                   const DeviceArray<uint8_t>& scratch) {
  constexpr int64_t kRows = 4096, kPages = 1024;
  const DeviceArray<uint16_t> q_latent(stream, cuda::MlaProblem::random_bf16(kRows * n_heads * 512, 1)),
      q_rope(stream, cuda::MlaProblem::random_bf16(kRows * n_heads * 64, 2)), out(stream, kRows * n_heads * 512 * 2);
  std::mt19937_64 generator(5);
  std::vector<int32_t> positions, pages(kPages);
  for (int64_t i = 0; i < kRows * 2048; ++i)
    positions.push_back(static_cast<int32_t>(i % 2048 * 32 + static_cast<int64_t>(generator() % 32)));
  for (int32_t& page : pages) page = static_cast<int32_t>(generator() % (MlaCache::kSlots / 64));
  const DeviceArray<int32_t> topk(stream, positions), table(stream, pages),
      table_row(stream, std::vector<int32_t>(kRows, 0));
  const cuda::SparseMla a{.q_latent = q_latent.data(),
                          .q_rope = q_rope.data(),
                          .q_latent_row_stride = int64_t{n_heads} * 512,
                          .q_rope_row_stride = int64_t{n_heads} * 64,
                          .topk = topk.data(),
                          .tables = {.data = table.data(), .stride = kPages},
                          .table_row = table_row.data(),
                          .cache = reinterpret_cast<const std::byte*>(cache.rows.data()),
                          .page_bytes = 64 * 656,
                          .out = out.data(),
                          .scratch = reinterpret_cast<std::byte*>(scratch.data()),
                          .n_rows = kRows,
                          .n_heads = n_heads,
                          .n_topk = 2048,
                          .scale = conditions.scale()};
  const DeviceArray<uint8_t> workspace(stream, cuda::converted_latent_bytes(a.tables, 1));
  auto* rows = reinterpret_cast<std::byte*>(workspace.data());
  const double flop = 2.0 * double(kRows) * n_heads * 2048 * (576 + 512), floor = flop / kBf16FlopPerSecond * 1e6;
  const GraphTiming timing{
      .n_launches = 2, .n_replays = 11, .idle_ms = conditions.idle_ms, .warm_ms = conditions.warm_ms};
  const auto report = [&](const char* name, double us) {
    fmt::print("mla {},H={} B=1 n=4096,{:.2f},{:.2f},{:.3f},{:.0f} TFLOP/s\n", name, n_heads, us, floor, floor / us,
               flop / us * 1e-6);
    std::fflush(stdout);
  };
  cuda::SparseMla converted = cuda::convert_latent_rows(a, 1, rows, stream.handle());
  report("fp8 rows", time_in_graph(stream, timing, [&](int) { cuda::sparse_mla(a, stream.handle()); }));
  report("converted rows", time_in_graph(stream, timing, [&](int) { cuda::sparse_mla(converted, stream.handle()); }));
  report("conversion and converted rows", time_in_graph(stream, timing, [&](int) {
           converted = cuda::convert_latent_rows(a, 1, rows, stream.handle());
           cuda::sparse_mla(converted, stream.handle());
         }));
  converted.out_f32 = true;
  report("converted rows and f32 output",
         time_in_graph(stream, timing, [&](int) { cuda::sparse_mla(converted, stream.handle()); }));
}

void bench_mla(const Stream& stream, const MlaConditions& conditions) {
  const DeviceArray<uint8_t> scratch(stream, cuda::sparse_mla_scratch_bytes());
  cuda::clear_sparse_mla_scratch(reinterpret_cast<std::byte*>(scratch.data()), stream.handle());
  const MlaCache cache(stream);
  for (const int n_heads : {128, 64})
    if (conditions.only_requests == 0 || conditions.only_requests == 4096)
      bench_prefill(stream, conditions, n_heads, cache, scratch);
  for (const MlaCase& c :
       std::vector<MlaCase>{{128, 1, 1},   {128, 2, 1},    {128, 3, 1},   {128, 4, 1},   {128, 6, 1},   {128, 8, 1},
                            {128, 12, 1},  {128, 16, 1},   {128, 32, 1},  {128, 32, 2},  {128, 70, 1},  {128, 99, 1},
                            {128, 32, 4},  {128, 64, 2},   {128, 128, 1}, {128, 140, 1}, {128, 165, 1}, {128, 210, 1},
                            {128, 128, 2}, {128, 4096, 1}, {64, 4096, 1}, {64, 1, 1},    {64, 8, 1},    {64, 16, 1},
                            {64, 32, 1},   {64, 32, 4},    {64, 64, 2},   {64, 128, 2},  {16, 8, 1},    {16, 128, 2}}) {
    if (conditions.only_requests != 0 && c.n_requests != conditions.only_requests) continue;
    const int64_t n_rows = int64_t{c.n_requests} * c.n_tokens;
    const int n_variants = static_cast<int>(std::clamp<int64_t>(256 / n_rows, 1, 16));
    const DeviceArray<uint16_t> q_latent(stream, cuda::MlaProblem::random_bf16(n_rows * c.n_heads * 512, 1)),
        q_rope(stream, cuda::MlaProblem::random_bf16(n_rows * c.n_heads * 64, 2)),
        out(stream, n_rows * c.n_heads * 512);
    const DeviceArray<int32_t> topk(stream, random_topk(c, n_variants));
    cuda::SparseMla a{.q_latent = q_latent.data(),
                      .q_rope = q_rope.data(),
                      .q_latent_row_stride = int64_t{c.n_heads} * 512,
                      .q_rope_row_stride = int64_t{c.n_heads} * 64,
                      .cache = reinterpret_cast<const std::byte*>(cache.rows.data()),
                      .page_bytes = 64 * 656,
                      .out = out.data(),
                      .scratch = reinterpret_cast<std::byte*>(scratch.data()),
                      .n_rows = n_rows,
                      .n_heads = c.n_heads,
                      .n_topk = 2048,
                      .scale = conditions.scale()};
    const double flop = 2.0 * double(n_rows) * c.n_heads * 2048 * (576 + 512);
    const double bytes = double(n_rows) * (2048 * 656.0 + c.n_heads * (576 + 512) * 2.0);
    const double floor = std::max(flop / kBf16FlopPerSecond, bytes / kCopyBytesPerSecond) * 1e6;
    const GraphTiming timing{.n_launches = n_rows > 1000   ? 2
                                           : n_rows >= 128 ? 8
                                                           : 24,
                             .n_replays = n_rows >= 128 ? 11 : 101,
                             .idle_ms = conditions.idle_ms,
                             .warm_ms = conditions.warm_ms};
    for (const auto& [name, split] : kForms) {
      if (!conditions.only_form.empty() && conditions.only_form != name) continue;
      if (n_rows > 1000 && split != cuda::MlaSplit::kAuto) continue;
      const double us = time_in_graph(stream, timing, [&](int i) {
        cuda::SparseMla launch = a;
        launch.topk = topk.data() + int64_t{i % n_variants} * n_rows * 2048;
        cuda::sparse_mla(launch, stream.handle(), split);
      });
      fmt::print("mla {},H={} B={} n={},{:.2f},{:.2f},{:.3f},{:.0f} TFLOP/s\n", name, c.n_heads, c.n_requests,
                 c.n_tokens, us, floor, floor / us, flop / us * 1e-6);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) {
  using namespace levin;
  bench::MlaConditions conditions;
  std::vector<std::string> forms;
  for (const auto& [name, split] : bench::kForms) forms.emplace_back(name);
  CLI::App app("Sparse attention, and how near to the limits of the card it is");
  app.add_option("--only", conditions.only_requests, "cases of so many requests alone; 4096: of the prompt too")
      ->check(CLI::PositiveNumber);
  app.add_option("--form", conditions.only_form, "one form instead of all")->check(CLI::IsMember(forms));
  app.add_option("--spread", conditions.spread, "standard deviation of the scores")->check(CLI::NonNegativeNumber);
  app.add_option("--idle", conditions.idle_ms, "milliseconds of rest before each case")->check(CLI::NonNegativeNumber);
  app.add_option("--warm", conditions.warm_ms, "milliseconds that each case runs before it is timed")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    fmt::print(stderr, "{}\n", why);
    return 1;
  }
  const cuda::Stream stream = cuda::must(cuda::Stream::create());
  fmt::print("kind,shape,us,floor us,share of floor,rate\n");
  bench::bench_mla(stream, conditions);
  return 0;
}
