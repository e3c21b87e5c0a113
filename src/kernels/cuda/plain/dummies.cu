// dummies.h: a thread makes 16 bytes.
#include "kernels/cuda/plain/dummies.h"
#include "kernels/cuda/plain/launch.cuh"

namespace levin::cuda::plain {
namespace {

constexpr int kPieceBytes = 16;

template <DummyType type>
struct Element;
template <>
struct Element<DummyType::kF32> {
  using T = float;
  __device__ static T make(const DummyTensor& t, int64_t i) { return dummy_f32(t, i); }
};
template <>
struct Element<DummyType::kBF16> {
  using T = uint16_t;
  __device__ static T make(const DummyTensor& t, int64_t i) { return dummy_bf16(t, i); }
};
template <>
struct Element<DummyType::kE4M3> {
  using T = uint8_t;
  __device__ static T make(const DummyTensor& t, int64_t i) { return dummy_e4m3(t, i); }
};
template <>
struct Element<DummyType::kFp4Pairs> {
  using T = uint8_t;
  __device__ static T make(const DummyTensor& t, int64_t i) { return dummy_fp4_pair(t, i); }
};

template <DummyType type>
__global__ void make_dummies_kernel(MakeDummies a) {
  using T = typename Element<type>::T;
  constexpr int kElements = kPieceBytes / static_cast<int>(sizeof(T));
  const int64_t first = flat_index() * kElements;
  if (first >= a.n) return;
  std::byte* to = a.to + first * static_cast<int64_t>(sizeof(T));
  alignas(kPieceBytes) T piece[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) piece[i] = Element<type>::make(a.tensor, first + i);
  if (first + kElements <= a.n && reinterpret_cast<uintptr_t>(to) % kPieceBytes == 0) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(piece);
    return;
  }
  const int64_t n_bytes = min(int64_t{kElements}, a.n - first) * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < n_bytes; ++i) to[i] = reinterpret_cast<const std::byte*>(piece)[i];
}

template <DummyType type>
void start_kernel(const MakeDummies& a, StreamHandle stream) {
  const int64_t n_pieces = div_up(a.n * dummy_bytes(type), kPieceBytes);
  start(make_dummies_kernel<type>, {.x = div_up(n_pieces, kThreads)}, stream, a);
}

}  // namespace

void make_dummies(const MakeDummies& a, StreamHandle stream) {
  switch (a.tensor.type) {
    case DummyType::kF32:
      return start_kernel<DummyType::kF32>(a, stream);
    case DummyType::kBF16:
      return start_kernel<DummyType::kBF16>(a, stream);
    case DummyType::kE4M3:
      return start_kernel<DummyType::kE4M3>(a, stream);
    case DummyType::kFp4Pairs:
      return start_kernel<DummyType::kFp4Pairs>(a, stream);
  }
}

}  // namespace levin::cuda::plain
