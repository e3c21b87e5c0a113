// The CPU kernels, one set per instruction set, chosen once at start.
//
// A set is a table of function pointers, so that the op that checks and cuts the work does not know which instructions
// run it. kPlain is short portable C++, the oracle of the others. In f32 all sets give the same bits: vector lanes run
// along outputs, reductions to one number have one fixed tree of partial sums, every multiply-add is an explicit fused
// one.
#pragma once

#include "base/cpu.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/rows.h"

namespace levin::kernels {

struct CpuKernels {
  Isa isa = Isa::kPlain;
  MatmulKernels matmul;        // matmul.h: products with packed weights, rounding, the Hadamard rotation
  RowKernels rows;             // rows.h: norms, sums, rope, silu, routing, argmax, residual streams, pooling
  IndexKernels index;          // index.h: index scores and top-k
  AttentionKernels attention;  // attention.h: sparse MLA over cache rows
};

// The kernels for `isa`, which must be among built_isas() and which the processor must support.
const CpuKernels& cpu_kernels(Isa isa);

}  // namespace levin::kernels
