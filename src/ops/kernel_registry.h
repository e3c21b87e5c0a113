// Which kernel runs which op in which form: one row per implementation. Read when a model is loaded, so that a form that
// nothing runs is an error then, by name, and no surprise in a request; and by the commands that print what runs.
//
//   const KernelSet set = cpu_kernel_set(Isa::kAvx2);
//   Result<std::vector<ChosenKernel>> chosen = choose_kernels(set, op_forms(config, numerics));  // model/op_forms.h
//
// Rows      those of one op stand in order of preference: the first that takes the form runs it
// Forms     what is known of an op before it is called: types, widths, counts of heads. Never the rows of a step, so that
//           what runs a token does not depend on its neighbours
// A new kernel: docs/adding_a_kernel.md
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "base/result.h"
#include "tensor/cuda/probe.h"
#include "tensor/dtype.h"
#include "tensor/formats.h"

namespace levin {

// An op as a model calls it. What an op does not have stays at its default.
struct OpForm {
  std::string_view op;                 // "sparse_attention", as in ops/*.h
  std::optional<LatentFormat> rows;    // cache rows that are written or attended to
  std::optional<IndexKeyFormat> keys;  // of the indexer
  int64_t n_heads = 0;                 // H, Hi
  int64_t n_topk = 0;                  // K
  bool hadamard = false;
  bool fp4 = false;
  int64_t n_experts = 0;  // E
  int64_t n_active = 0;   // A
  int64_t n_groups = 0;
  int64_t n_streams = 0;         // M
  std::optional<DType> weights;  // of a product, or of all matrices of a feed-forward block; none: they differ
  bool fp8_input = false;        // inputs of products are rounded to e4m3
  int64_t n = 0, k = 0;          // of a product [N, K], of a block [F, D]
  bool weigh_hidden = false;     // as in ops/moe.h
  bool other_scores = false;     // of route_experts: not the sigmoid of its logits, or experts by token id
  bool other_rows = false;       // of sparse_attention: runs of rows, a second cache, or sinks

  std::string describe() const;  // "index_topk of 64 heads, fp8 keys of 128, top-k 2048"
};

struct KernelRow {
  std::string_view op;
  std::string name;                                 // "avx512-vbmi"
  std::string (*why_not)(const OpForm&) = nullptr;  // empty: it takes the form. Null: it takes all
};

struct KernelSet {
  std::string name;  // "avx2", "cuda-plain"
  std::vector<KernelRow> rows;
};

KernelSet cpu_kernel_set(Isa isa);
// kSm90 has the plain kernels too, after the tuned ones.
KernelSet cuda_kernel_set(cuda::KernelSet set = cuda::KernelSet::kPlain);

// Why the kernels of cuda-sm90 do not take a form, or empty. Its backend asks this at each call, of the same form.
std::string why_not_sm90(const OpForm& form);
// The ops that have forms which its kernels take.
std::vector<std::string_view> sm90_ops();

struct ChosenKernel {
  OpForm form;
  std::string kernel;   // KernelRow::name
  std::string refused;  // why kernels that stand before it do not run the form; empty: it is the first
};

// The kernel of each form; or an error that names the op, its form, the set and what its kernels lack.
Result<std::vector<ChosenKernel>> choose_kernels(const KernelSet& set, std::span<const OpForm> forms);

// Which ops run on which of several kernels, and why not on the first: a line each, for the start of a program.
std::vector<std::string> kernel_lines(std::span<const ChosenKernel> chosen);

}  // namespace levin
