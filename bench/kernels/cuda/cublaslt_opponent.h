// cuBLASLt's products as opponents: opened at run time if the machine has it, never linked.
//
//   block-scaled FP8   D [T, N] bf16 = (x [T, K] e4m3, a scale per row and 128 k, column major) * (w [N, K] e4m3, a scale
//                      per 128 x 128 block)
//   BF16               D [H, T, N] bf16 = (x [H, T, K] bf16) * (w [H, N, K] bf16)
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct CUstream_st;

namespace levin::bench {

struct BlockScaledProduct {
  const uint8_t* x = nullptr;      // [T, K]
  const float* x_scale = nullptr;  // [ceil(K / 128), round_up(T, 4)]
  const uint8_t* w = nullptr;      // [N, K]
  const float* w_scale = nullptr;  // [ceil(N / 128), round_up(ceil(K / 128), 4)]
  void* out = nullptr;             // [T, N] bf16
};

struct Bf16Product {
  const void* x = nullptr;
  const void* w = nullptr;
  void* out = nullptr;
};

struct Bf16Shape {
  int n_heads = 1;
  int n_tokens = 0;
  int n = 0;
  int k = 0;
};

class CublasLt {
 public:
  // Tries `library` (a path or libcublasLt.so.13 / .12); null with a reason if it cannot be used.
  static std::unique_ptr<CublasLt> open(const std::string& library, std::string* why_not);
  ~CublasLt();

  std::string version() const;

  // Chooses the library's first algorithm for the shape; false if it has none. rows must be a multiple of 4 in some
  // versions.
  bool prepare(int n_tokens, int n, int k);
  void run(const BlockScaledProduct& product, CUstream_st* stream) const;
  bool prepare(const Bf16Shape& shape);
  void run(const Bf16Product& product, CUstream_st* stream) const;

 private:
  CublasLt();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levin::bench
