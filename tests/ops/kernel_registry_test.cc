// The registry's choices, and docs/adding_a_kernel.md followed: a toy kernel with a row of its own.
#include "ops/kernel_registry.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "ops/moe.h"
#include "ops/support.h"

namespace levin::testing {
namespace {

OpForm index_topk_form(CacheDType dtype, int64_t d_index) {
  return {.op = "index_topk", .keys = index_key_format(dtype, d_index), .n_heads = 64, .n_topk = 2048};
}

std::vector<KernelSet> sets_under_test() {
  std::vector<KernelSet> sets = {cuda_kernel_set(), cuda_kernel_set(cuda::KernelSet::kSm90)};
  for (const Isa isa : built_isas()) sets.push_back(cpu_kernel_set(isa));
  return sets;
}

TEST(KernelRegistryTest, ChoosesTheFirstRowThatTakesTheForm) {
  const auto odd = [](const OpForm& f) { return f.n_heads % 2 == 1 ? "" : std::string("an odd number of heads"); };
  const KernelSet set{.name = "set", .rows = {{"a", "odd", odd}, {"b", "other"}, {"a", "any"}}};
  const OpForm forms[] = {{.op = "a", .n_heads = 2}, {.op = "b"}, {.op = "a", .n_heads = 3}};
  const Result<std::vector<ChosenKernel>> chosen = choose_kernels(set, forms);
  ASSERT_TRUE(chosen.ok());
  ASSERT_EQ(chosen->size(), 3u);
  EXPECT_EQ((*chosen)[0].kernel, "any");
  EXPECT_EQ((*chosen)[1].kernel, "other");
  EXPECT_EQ((*chosen)[2].kernel, "odd");
  EXPECT_EQ((*chosen)[2].form.describe(), "a of 3 heads");
}

TEST(KernelRegistryTest, NamesOpFormSetAndWhatKernelsLack) {
  for (const KernelSet& set : sets_under_test()) {
    const OpForm wide = index_topk_form(CacheDType::kFp8, 256);
    const Result<std::vector<ChosenKernel>> none = choose_kernels(set, {&wide, 1});
    ASSERT_FALSE(none.ok()) << set.name;
    EXPECT_EQ(none.error().kind, ErrorKind::kModelInvalid);
    const std::string& message = none.error().message;
    EXPECT_NE(message.find("the set " + set.name + " runs index_topk of 64 heads, fp8 keys of 256, top-k 2048 ("),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("one scale, which 128 columns share at most"), std::string::npos) << message;
    for (const OpForm& fits : {index_topk_form(CacheDType::kFp8, 128), index_topk_form(CacheDType::kBF16, 256)}) {
      EXPECT_TRUE(choose_kernels(set, {&fits, 1}).ok()) << set.name;
    }
    const OpForm unknown{.op = "unheard_of"}, streams{.op = "read_streams", .n_streams = 17};
    EXPECT_NE(choose_kernels(set, {&unknown, 1}).error().message.find("it has none for this op"), std::string::npos);
    EXPECT_NE(choose_kernels(set, {&streams, 1}).error().message.find("16 residual streams"), std::string::npos);
    const OpForm keys{.op = "write_index_keys", .keys = index_key_format(CacheDType::kFp8, 96), .hadamard = true};
    EXPECT_NE(choose_kernels(set, {&keys, 1}).error().message.find("a power of two, not 96"), std::string::npos);
  }
}

TEST(KernelRegistryTest, EverySetHasTheSameOps) {
  const auto ops_of = [](const KernelSet& set) {
    std::set<std::string_view> ops;
    for (const KernelRow& row : set.rows) ops.insert(row.op);
    return ops;
  };
  const std::vector<KernelSet> sets = sets_under_test();
  for (const KernelSet& set : sets) EXPECT_EQ(ops_of(set), ops_of(sets.front())) << set.name;
}

// ---- tuned and plain kernels ----------------------------------------------------------------------------------------

TEST(Sm90RegistryTest, TunedKernelsStandFirstAndSayWhyTheyDoNotTakeAForm) {
  const OpForm e4m3{.op = "matmul", .weights = DType::kF8E4M3, .fp8_input = true, .n = 1536, .k = 7168};
  OpForm bf16 = e4m3, narrow = e4m3, f32_rows = e4m3, mixed = e4m3;
  bf16.weights = DType::kBF16, bf16.fp8_input = false, bf16.k = 7164;
  narrow.n = 20;
  f32_rows.fp8_input = false, f32_rows.weights = DType::kNvfp4;
  mixed.weights = std::nullopt;
  const OpForm forms[] = {e4m3, bf16, narrow, f32_rows, mixed, {.op = "matmul_per_head"}, {.op = "pool_windows"}};
  const Result<std::vector<ChosenKernel>> chosen = choose_kernels(cuda_kernel_set(cuda::KernelSet::kSm90), forms);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ((*chosen)[0].kernel, "cuda-sm90");
  EXPECT_EQ((*chosen)[0].refused, "");
  const char* kRefused[] = {"",
                            "cuda-sm90: it has K a multiple of 8 for bf16, not 7164",
                            "cuda-sm90: it has N a multiple of 8 and K of 16, not [20, 7168]",
                            "cuda-sm90: weights are nvfp4, it has f8_e4m3, bf16 and f32",
                            "cuda-sm90: matrices are stored in several types",
                            "cuda-sm90: matrices are stored in several types",
                            "cuda-sm90: it has no kernel for this op"};
  for (size_t i = 1; i < std::size(forms); ++i) {
    EXPECT_EQ((*chosen)[i].kernel, "cuda-plain") << i;
    EXPECT_EQ((*chosen)[i].refused, kRefused[i]) << i;
  }
}

TEST(Sm90RegistryTest, ProductsOfF32RowsAreTuned) {
  for (const DType weights : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    EXPECT_EQ(why_not_sm90({.op = "matmul", .weights = weights, .n = 75, .k = 7168}), "");
    EXPECT_EQ(why_not_sm90({.op = "matmul_per_head", .weights = weights, .n = 512, .k = 128}), "");
  }
}

TEST(Sm90RegistryTest, LimitsAreNamed) {
  const LatentFormat latent = latent_format(CacheDType::kFp8, 512, 64);
  const OpForm attention{.op = "sparse_attention", .rows = latent, .n_heads = 128, .n_topk = 2048};
  const OpForm experts{.op = "expert_ffn",
                       .n_experts = 256,
                       .n_active = 8,
                       .weights = DType::kF8E4M3,
                       .fp8_input = true,
                       .n = 2048,
                       .k = 7168};
  for (const OpForm& form : {attention, experts, index_topk_form(CacheDType::kFp8, 128)}) {
    EXPECT_EQ(why_not_sm90(form), "") << form.describe();
  }
  const auto changed = [](OpForm form, auto change) {
    change(form);
    return why_not_sm90(form);
  };
  EXPECT_EQ(changed(attention, [](OpForm& f) { f.n_heads = 129; }), "it has 1 to 128 heads, not 129");
  EXPECT_EQ(changed(attention, [](OpForm& f) { f.n_topk = 100; }), "it selects a multiple of 64 up to 2048, not 100");
  EXPECT_EQ(changed(attention, [](OpForm& f) { f.rows = latent_format(CacheDType::kBF16, 512, 64); }),
            "cache rows are bf16, it has fp8");
  EXPECT_EQ(changed(attention, [](OpForm& f) { f.rows = latent_format(CacheDType::kFp8, 448, 64); }),
            "cache rows are 448 + 64 wide, it has 512 + 64");
  EXPECT_EQ(changed(attention, [](OpForm& f) { f.other_rows = true; }),
            "it has selected rows of one cache, and no sinks");
  EXPECT_EQ(changed(experts, [](OpForm& f) { f.n_experts = 513; }), "it has up to 16 of 512 experts");
  EXPECT_EQ(changed(experts, [](OpForm& f) { f.n = 24; }), "widths are multiples of 16 there, not 24 and 7168");
  EXPECT_EQ(changed(experts, [](OpForm& f) { f.weigh_hidden = true; }),
            "experts' weights multiply what goes into their down product");
  EXPECT_EQ(why_not_sm90(
                {.op = "index_topk", .keys = index_key_format(CacheDType::kFp8, 128), .n_heads = 24, .n_topk = 2048}),
            "it has 16, 32 or 64 heads, not 24");
  EXPECT_EQ(why_not_sm90({.op = "route_experts", .n_experts = 256, .n_active = 8, .other_scores = true}),
            "it has sigmoid scores alone");
}

TEST(Sm90RegistryTest, LinesNameEachKernelOnceAndEachReason) {
  const ChosenKernel chosen[] = {{{.op = "norm_rows"}, "plain", "tuned: rows"},
                                 {{.op = "matmul", .n = 8}, "tuned", ""},
                                 {{.op = "rotate"}, "plain", "tuned: rows"},
                                 {{.op = "matmul", .n = 4}, "plain", "tuned: odd"},
                                 {{.op = "attention"}, "tuned", ""},
                                 {{.op = "matmul", .n = 16}, "tuned", ""}};
  EXPECT_EQ(kernel_lines(chosen),
            (std::vector<std::string>{"tuned: matmul (2 of 3), attention", "plain: norm_rows, rotate (tuned: rows)",
                                      "plain: matmul (1 of 3) (tuned: odd)"}));
}

// ---- a toy kernel -------------------------------------------------------------------------------------------------

int64_t n_toy_calls = 0;

// The plain set's, one row at a time from the last to the first: another program, which no bit may show.
void toy_silu_mul(const kernels::SiluRows& a) {
  ++n_toy_calls;
  for (int64_t r = a.n_rows - 1; r >= 0; --r) {
    kernels::SiluRows row = a;
    row.gate += r * a.gate_stride;
    row.up += r * a.up_stride;
    row.out += r * a.out_stride;
    row.n_rows = 1;
    kernels::cpu_kernels(Isa::kPlain).rows.silu_mul(row);
  }
}

std::string toy_why_not(const OpForm& f) { return f.n_experts == 0 ? "" : "blocks without experts"; }

KernelSet toy_set() {
  KernelSet set = cpu_kernel_set(Isa::kPlain);
  set.rows.insert(set.rows.begin(), {"ffn", "toy", toy_why_not});
  return set;
}

TEST(ToyKernelTest, IsChosenForItsFormsAlone) {
  const OpForm forms[] = {{.op = "ffn"}, {.op = "ffn", .n_experts = 8}};
  const Result<std::vector<ChosenKernel>> chosen = choose_kernels(toy_set(), forms);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ((*chosen)[0].kernel, "toy");
  EXPECT_EQ((*chosen)[1].kernel, "plain");
}

TEST(ToyKernelTest, RunsBehindTheOpWithThePlainBits) {
  ThreadPool pool(2);
  Arena arena;
  kernels::CpuKernels toy = kernels::cpu_kernels(Isa::kPlain);
  toy.rows.silu_mul = toy_silu_mul;
  CpuBackend backend(pool, arena, toy);
  OpContext ctx = op_context(backend);
  Random random(1);
  const Tensor gate = random_tensor(random, {3, 40}), up = random_tensor(random, {3, 40}), got(DType::kF32, {3, 40}),
               want(DType::kF32, {3, 40});
  n_toy_calls = 0;
  ops::silu_mul(ctx, {.gate = gate, .up = up, .out = got});
  EXPECT_GT(n_toy_calls, 0);
  ops::silu_mul(plain_device().ctx(), {.gate = gate, .up = up, .out = want});
  EXPECT_TRUE(same_bits(got, want));
}

}  // namespace
}  // namespace levin::testing
