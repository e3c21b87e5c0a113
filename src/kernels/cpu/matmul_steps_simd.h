// How products of matmul_simd.h load weights from a panel and multiply them, one struct for each type of weight.
//
//   Element                     of the operand
//   kStep, kStepBytes           k that one step() takes, and the bytes of a panel that hold them
//   step(w, stride, x, acc)       acc[r][p] += sum over the step's k of x[r] * w of panel p, which stands at w + p * stride
//   rest(w, stride, x, n_k, acc)  the same for the last n_k < kStep, where kStep > 1
//
// x is one of the two forms of an operand: x.at(r, k) points at row r, k values on from where the step begins.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace levin::kernels {
namespace {

constexpr int64_t kLanes = 16;  // outputs of a panel

// Rows of a group, side by side; in bf16 by pairs of k, and k is even.
template <class Element>
struct GroupedRows {
  static constexpr int64_t kSide = sizeof(Element) == 2 ? 2 : 1;
  const Element* x;
  int64_t n_rows;  // of the group

  [[gnu::always_inline]] const Element* at(int r, int64_t k) const { return x + k * n_rows + kSide * r; }
  [[gnu::always_inline]] void advance(int64_t n_k) { x += n_k * n_rows; }
};

// Rows that lie anywhere.
template <class Element, int R>
struct PlainRows {
  const Element* x[R];
  int64_t first = 0;  // k

  [[gnu::always_inline]] const Element* at(int r, int64_t k) const { return x[r] + first + k; }
  [[gnu::always_inline]] void advance(int64_t n_k) { first += n_k; }
};

// acc[r] += x[r] * w for R rows and P panels, at the k-th value of x.
template <class V, class X, int R, int P>
LEVIN_INLINE void multiply(const typename V::F32 (&w)[P], const X& x, int64_t k, typename V::F32 (&acc)[R][P]) {
  LEVIN_UNROLL
  for (int r = 0; r < R; ++r) {
    const typename V::F32 xr = V::broadcast(*x.at(r, k));
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) acc[r][p] = V::fma(xr, w[p], acc[r][p]);
  }
}

template <class V>
struct FmaF32 {  // one k a step
  using Element = float;
  static constexpr int64_t kStep = 1;
  static constexpr int64_t kStepBytes = 64;

  template <int R, int P, class X>
  LEVIN_INLINE void step(const std::byte* w, int64_t w_stride, const X& x, typename V::F32 (&acc)[R][P]) {
    typename V::F32 value[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) value[p] = V::load(reinterpret_cast<const float*>(w + p * w_stride));
    multiply<V>(value, x, 0, acc);
  }
};

// Two k a step, widened to f32 as they are loaded; an odd last k is the rest.
template <class V, class Pair>
struct FmaPairs {
  using Element = float;
  static constexpr int64_t kStep = 2;
  static constexpr int64_t kStepBytes = Pair::kBytes;

  template <int R, int P, class X>
  LEVIN_INLINE void step(const std::byte* w, int64_t w_stride, const X& x, typename V::F32 (&acc)[R][P]) {
    typename V::F32 even[P], odd[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) Pair::load(w + p * w_stride, even[p], odd[p]);
    multiply<V>(even, x, 0, acc);
    multiply<V>(odd, x, 1, acc);
  }
  template <int R, int P, class X>
  LEVIN_INLINE void rest(const std::byte* w, int64_t w_stride, const X& x, int64_t, typename V::F32 (&acc)[R][P]) {
    typename V::F32 even[P], odd;
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) Pair::load(w + p * w_stride, even[p], odd);
    multiply<V>(even, x, 0, acc);
  }
};

template <class V>
struct Bf16Pair {
  static constexpr int64_t kBytes = 64;
  LEVIN_INLINE void load(const std::byte* w, typename V::F32& even, typename V::F32& odd) {
    V::load_bf16_pairs(reinterpret_cast<const uint16_t*>(w), even, odd);
  }
};
template <class V>
using FmaBf16 = FmaPairs<V, Bf16Pair<V>>;

constexpr int64_t kFoursBytes = 4 * kLanes;  // of a panel of e4m3: 4 k

// Four k a step, a panel after the other: their values alone take four registers.
template <class V>
struct FmaE4m3 {
  using Element = float;
  static constexpr int64_t kStep = 4;
  static constexpr int64_t kStepBytes = kFoursBytes;

  template <int R, int P, class X>
  LEVIN_INLINE void step(const std::byte* w, int64_t w_stride, const X& x, typename V::F32 (&acc)[R][P]) {
    rest(w, w_stride, x, kStep, acc);
  }
  template <int R, int P, class X>
  LEVIN_INLINE void rest(const std::byte* w, int64_t w_stride, const X& x, int64_t n_k, typename V::F32 (&acc)[R][P]) {
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) {
      typename V::F32 value[4];
      V::load_e4m3_fours(reinterpret_cast<const uint8_t*>(w + p * w_stride), value);
      LEVIN_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (k >= n_k) break;
        LEVIN_UNROLL
        for (int r = 0; r < R; ++r) acc[r][p] = V::fma(V::broadcast(*x.at(r, k)), value[k], acc[r][p]);
      }
    }
  }
};

constexpr int64_t kWordK = 8;               // k of a word of mxfp4 or nvfp4,
constexpr int64_t kWordBytes = kLanes * 4;  // and what it takes in a panel

// The groups of a type: k of one, its bytes in a panel, and the scales of its 16 outputs as f32.
template <class V>
struct Mxfp4Group {
  static constexpr int64_t kK = 32;
  static constexpr int64_t kBytes = kLanes + kK / kWordK * kWordBytes;
  LEVIN_INLINE typename V::F32 scales(const std::byte* w) { return V::load_e8m0(reinterpret_cast<const uint8_t*>(w)); }
};
template <class V>
struct Nvfp4Group {
  static constexpr int64_t kK = 16;
  static constexpr int64_t kBytes = kLanes + kK / kWordK * kWordBytes;
  LEVIN_INLINE typename V::F32 scales(const std::byte* w) { return V::load_e4m3(reinterpret_cast<const uint8_t*>(w)); }
};

template <class V>
LEVIN_INLINE typename V::I32 load_words(const std::byte* w, int64_t k) {
  return V::load_i(reinterpret_cast<const int32_t*>(w + kLanes + k / kWordK * kWordBytes));
}

// A group of mxfp4 or nvfp4 a step: its scales are read once, then words of 8 k, of which pairs of k are widened and
// scaled, which is exact. A short last group is the rest.
template <class V, class Group>
struct FmaFp4 {
  using Element = float;
  static constexpr int64_t kStep = Group::kK;
  static constexpr int64_t kStepBytes = Group::kBytes;

  template <int R, int P, class X>
  LEVIN_INLINE void step(const std::byte* w, int64_t w_stride, const X& x, typename V::F32 (&acc)[R][P]) {
    rest(w, w_stride, x, kStep, acc);
  }
  template <int R, int P, class X>
  LEVIN_INLINE void rest(const std::byte* w, int64_t w_stride, const X& x, int64_t n_k, typename V::F32 (&acc)[R][P]) {
    typename V::F32 scale[P];
    typename V::I32 word[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) scale[p] = Group::scales(w + p * w_stride);
    for (int64_t k = 0; k < n_k; k += kWordK) {
      LEVIN_UNROLL
      for (int p = 0; p < P; ++p) word[p] = load_words<V>(w + p * w_stride, k);
      pair<0>(word, scale, x, k, acc);
      if (n_k - k > 2) pair<1>(word, scale, x, k, acc);
      if (n_k - k > 4) pair<2>(word, scale, x, k, acc);
      if (n_k - k > 6) pair<3>(word, scale, x, k, acc);
    }
  }

  // Pair kPair of the four in a word.
  template <int kPair>
  LEVIN_INLINE void widen(typename V::I32 word, typename V::F32 scale, typename V::F32& even, typename V::F32& odd) {
    even = V::mul(V::e2m1_to_f32(V::template shr<4 * kPair>(word)), scale);
    odd = V::mul(V::e2m1_to_f32(V::template shr<16 + 4 * kPair>(word)), scale);
  }

 private:
  template <int kPair, int R, int P, class X>
  LEVIN_INLINE void pair(const typename V::I32 (&word)[P], const typename V::F32 (&scale)[P], const X& x, int64_t k,
                         typename V::F32 (&acc)[R][P]) {
    typename V::F32 even[P], odd[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) widen<kPair>(word[p], scale[p], even[p], odd[p]);
    multiply<V>(even, x, k + 2 * kPair, acc);
    multiply<V>(odd, x, k + 2 * kPair + 1, acc);
  }
};
template <class V>
using FmaMxfp4 = FmaFp4<V, Mxfp4Group<V>>;
template <class V>
using FmaNvfp4 = FmaFp4<V, Nvfp4Group<V>>;

// Two k a step by the dot instruction; both sides are padded with a zero where K is odd.
template <class V, class Pair>
struct Dot {
  using Element = uint16_t;
  static constexpr int64_t kStep = 2;
  static constexpr int64_t kStepBytes = Pair::kBytes;

  template <int R, int P, class X>
  LEVIN_INLINE void step(const std::byte* w, int64_t w_stride, const X& x, typename V::F32 (&acc)[R][P]) {
    typename V::Bf16 value[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) value[p] = Pair::load(w + p * w_stride);
    LEVIN_UNROLL
    for (int r = 0; r < R; ++r) {
      const typename V::Bf16 xr = V::broadcast_pair(x.at(r, 0));
      LEVIN_UNROLL
      for (int p = 0; p < P; ++p) acc[r][p] = V::dot(xr, value[p], acc[r][p]);
    }
  }
  template <int R, int P, class X>
  LEVIN_INLINE void rest(const std::byte* w, int64_t w_stride, const X& x, int64_t, typename V::F32 (&acc)[R][P]) {
    step(w, w_stride, x, acc);
  }
};
template <class V>
struct Bf16Lanes {
  static constexpr int64_t kBytes = 64;
  LEVIN_INLINE auto load(const std::byte* w) { return V::load_bf16x32(reinterpret_cast<const uint16_t*>(w)); }
};
template <class V>
using DotBf16 = Dot<V, Bf16Lanes<V>>;

// Four k a step: two pairs.
template <class V>
struct DotE4m3 {
  using Element = uint16_t;
  static constexpr int64_t kStep = 4;
  static constexpr int64_t kStepBytes = kFoursBytes;

  template <int R, int P, class X>
  LEVIN_INLINE void step(const std::byte* w, int64_t w_stride, const X& x, typename V::F32 (&acc)[R][P]) {
    rest(w, w_stride, x, kStep, acc);
  }
  template <int R, int P, class X>
  LEVIN_INLINE void rest(const std::byte* w, int64_t w_stride, const X& x, int64_t n_k, typename V::F32 (&acc)[R][P]) {
    typename V::Bf16 first[P], second[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) {
      V::load_e4m3x64(reinterpret_cast<const uint8_t*>(w + p * w_stride), first[p], second[p]);
    }
    multiply_pair(first, x, 0, acc);
    if (n_k > 2) multiply_pair(second, x, 2, acc);
  }

 private:
  template <int R, int P, class X>
  LEVIN_INLINE void multiply_pair(const typename V::Bf16 (&w)[P], const X& x, int64_t k, typename V::F32 (&acc)[R][P]) {
    LEVIN_UNROLL
    for (int r = 0; r < R; ++r) {
      const typename V::Bf16 xr = V::broadcast_pair(x.at(r, k));
      LEVIN_UNROLL
      for (int p = 0; p < P; ++p) acc[r][p] = V::dot(xr, w[p], acc[r][p]);
    }
  }
};

// Scales of the values that dot instructions take: of mxfp4 they are added to the exponents of the values, those of nvfp4
// have significant bits of their own.
template <class V>
struct Mxfp4Bf16Group : Mxfp4Group<V> {
  LEVIN_INLINE auto scales(const std::byte* w) { return V::load_e8m0_exponents(reinterpret_cast<const uint8_t*>(w)); }
  template <class Scale>
  LEVIN_INLINE auto scaled(typename V::Bf16 values, const Scale& scale) {
    return V::add_exponents(values, scale);
  }
};
template <class V>
struct Nvfp4Bf16Group : Nvfp4Group<V> {
  LEVIN_INLINE auto scales(const std::byte* w) { return V::load_e4m3_scales(reinterpret_cast<const uint8_t*>(w)); }
  template <class Scale>
  LEVIN_INLINE auto scaled(typename V::Bf16 values, const Scale& scale) {
    return V::scale_e2m1(values, scale);
  }
};

// A group of mxfp4 or nvfp4 a step, as FmaFp4.
template <class V, class Group>
struct DotFp4 {
  using Element = uint16_t;
  static constexpr int64_t kStep = Group::kK;
  static constexpr int64_t kStepBytes = Group::kBytes;
  using Scale = decltype(Group::scales(nullptr));

  template <int R, int P, class X>
  LEVIN_INLINE void step(const std::byte* w, int64_t w_stride, const X& x, typename V::F32 (&acc)[R][P]) {
    rest(w, w_stride, x, kStep, acc);
  }
  template <int R, int P, class X>
  LEVIN_INLINE void rest(const std::byte* w, int64_t w_stride, const X& x, int64_t n_k, typename V::F32 (&acc)[R][P]) {
    Scale scale[P];
    typename V::I32 word[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) scale[p] = Group::scales(w + p * w_stride);
    for (int64_t k = 0; k < n_k; k += kWordK) {
      LEVIN_UNROLL
      for (int p = 0; p < P; ++p) word[p] = load_words<V>(w + p * w_stride, k);
      pair<0>(word, scale, x, k, acc);
      if (n_k - k > 2) pair<1>(word, scale, x, k, acc);
      if (n_k - k > 4) pair<2>(word, scale, x, k, acc);
      if (n_k - k > 6) pair<3>(word, scale, x, k, acc);
    }
  }

  template <int kPair>
  LEVIN_INLINE auto widen(typename V::I32 word, const Scale& scale) {
    return Group::scaled(V::e2m1_to_bf16x32(V::template shr<4 * kPair>(word)), scale);
  }

 private:
  template <int kPair, int R, int P, class X>
  LEVIN_INLINE void pair(const typename V::I32 (&word)[P], const Scale (&scale)[P], const X& x, int64_t k,
                         typename V::F32 (&acc)[R][P]) {
    typename V::Bf16 value[P];
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) value[p] = widen<kPair>(word[p], scale[p]);
    LEVIN_UNROLL
    for (int r = 0; r < R; ++r) {
      const typename V::Bf16 xr = V::broadcast_pair(x.at(r, k + 2 * kPair));
      LEVIN_UNROLL
      for (int p = 0; p < P; ++p) acc[r][p] = V::dot(xr, value[p], acc[r][p]);
    }
  }
};
template <class V>
using DotMxfp4 = DotFp4<V, Mxfp4Bf16Group<V>>;
template <class V>
using DotNvfp4 = DotFp4<V, Nvfp4Bf16Group<V>>;

}  // namespace
}  // namespace levin::kernels
