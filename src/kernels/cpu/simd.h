// Sixteen lanes of f32, the vector every CPU kernel is written in.
//
// A kernel is a template over V, one of the structs that simd_avx2.h and simd_avx512.h define:
//
//   Avx2        two ymm registers; needs avx2, fma, f16c            *_avx2.cc
//   Avx512      one zmm register; needs avx512 f, bw, vl, dq        *_avx512.cc
//   Avx512Bf16  Avx512 and the bf16 dot instruction                 *_avx512_bf16.cc, *_amx.cc
//
// and is instantiated in the translation unit of that name, which alone is compiled with those flags (CMakeLists.txt).
// Plain kernels do not use it: they are scalar loops with std::fma.
//
// V has the types F32 (16 lanes), I32 (16 lanes) and Mask (16 bits of some kind), and static functions. All of them
// give the same bits on every V; where two choices exist (max of equal or unordered values) the comment says which is
// taken.
//
//   F32    zero  broadcast  load  store  load_n  store_n    _n: the first n of 16 lanes, the others zero or left alone
//          load_twice                     8 values, lanes 2j and 2j + 1 = value j
//          add  sub  mul  div  fma(a, b, c) = a * b + c, rounded once  sqrt  ceil
//          max(a, b) = a > b ? a : b      min(a, b) = a < b ? a : b      abs
//          reduce_add  reduce_max             the 16 lanes folded 8, 4, 2, 1: lane j with lane j + half
//   I32    broadcast_i  load_i  store_i  add_i  sub_i  and_i  or_i  xor_i  min_i
//          shl<n>  shr<n> (logical)  sar<n>
//   both   bits(F32) -> I32  from_bits(I32) -> F32  to_i32(F32), nearest even
//   Mask   less  less_equal  equal  less_i  first_n(n)  select(mask, a, b) = mask ? a : b
//          mask_bits -> uint32_t
//   types  load_bf16  load_e4m3                16 values in a row, exact
//          load_bf16_pairs                     32 values in a row, lane j of even and odd = values 2j and 2j + 1, exact
//          load_e4m3_fours                     4 k of 16 outputs of a panel (tensor/matrix.h), a vector for each k, exact
//          e2m1_to_f32                         of the low four bits of each lane
//          load_e8m0                           16 powers of two of codes 1 to 254
//          store_bf16  store_e4m3              to nearest even; e4m3 saturates at 448; NaN stays NaN
//   lanes  transpose(F32 rows[16])             16 x 16 in place
//          interleave(F32 rows[4])            element i of the four side by side, then i + 1, in place
//          swap_pairs                          lanes 2j and 2j + 1 exchanged
//
// Codes of e4m3 that stand for NaN load as finite values here: they are refused when a checkpoint is read.
//
// Code compiled for a newer processor must not leak into the rest of the program: the linker keeps one copy of every
// inline function, and it may be the one compiled with these flags. So these files and the kernels on top of them live
// in anonymous namespaces (or are templates over types that do) and call no inline function of other headers, no
// containers and no algorithms.
#pragma once

#if defined(__AVX512F__)
#include "kernels/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/simd_avx2.h"
#else
#error "simd.h belongs in translation units compiled for AVX2 or AVX-512"
#endif
