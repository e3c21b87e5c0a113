#include "cublaslt_opponent.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <utility>

#include "base/check.h"

namespace levin::bench {

struct CublasLt::State {
  void* library = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulHeuristicResult_t choice{};
  void* workspace = nullptr;

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
  bool find_all() {
    return find(create, "cublasLtCreate") && find(get_version, "cublasLtGetVersion") &&
           find(create_operation, "cublasLtMatmulDescCreate") &&
           find(set_operation, "cublasLtMatmulDescSetAttribute") && find(create_layout, "cublasLtMatrixLayoutCreate") &&
           find(set_layout, "cublasLtMatrixLayoutSetAttribute") &&
           find(create_preference, "cublasLtMatmulPreferenceCreate") &&
           find(set_preference, "cublasLtMatmulPreferenceSetAttribute") &&
           find(heuristic, "cublasLtMatmulAlgoGetHeuristic") && find(matmul, "cublasLtMatmul");
  }
  // Takes the library's first algorithm.
  bool choose();
  // A batch of column-major matrices [rows, columns], one after another.
  cublasLtMatrixLayout_t bf16_layout(int64_t rows, int64_t columns, int n_matrices) const;
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    const cublasStatus_t status = set_operation(operation, attribute, &value, sizeof(value));
    LEVIN_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt attribute {}: status {}", static_cast<int>(attribute),
                static_cast<int>(status));
  }
};

namespace {
constexpr size_t kWorkspaceBytes = size_t{64} << 20;
}

bool CublasLt::State::choose() {
  cublasLtMatmulPreference_t preference = nullptr;
  create_preference(&preference);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof(kWorkspaceBytes));
  int n_found = 0;
  const cublasStatus_t status = heuristic(handle, operation, w, x, out, out, preference, 1, &choice, &n_found);
  return status == CUBLAS_STATUS_SUCCESS && n_found > 0;
}

cublasLtMatrixLayout_t CublasLt::State::bf16_layout(int64_t rows, int64_t columns, int n_matrices) const {
  cublasLtMatrixLayout_t layout = nullptr;
  create_layout(&layout, CUDA_R_16BF, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
  const int64_t distance = rows * columns;
  set_layout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n_matrices, sizeof(n_matrices));
  set_layout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance, sizeof(distance));
  return layout;
}

CublasLt::CublasLt() : state_(std::make_unique<State>()) {}
CublasLt::~CublasLt() {
  if (state_->workspace) cudaFree(state_->workspace);
}

std::unique_ptr<CublasLt> CublasLt::open(const std::string& library, std::string* why_not) {
  std::unique_ptr<CublasLt> self(new CublasLt());
  State& s = *self->state_;
  s.library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!s.library) {
    *why_not = dlerror();
    return nullptr;
  }
  if (!s.find_all()) {
    *why_not = library + " lacks a function";
    return nullptr;
  }
  if (s.create(&s.handle) != CUBLAS_STATUS_SUCCESS || cudaMalloc(&s.workspace, kWorkspaceBytes) != cudaSuccess) {
    *why_not = "no cuBLASLt handle or workspace";
    return nullptr;
  }
  return self;
}

std::string CublasLt::version() const {
  const size_t v = state_->get_version();
  return fmt::format("cuBLASLt {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

// The library is column major: D^T [N, T] = W^T' * X', with W [K, N] transposed and X [K, T].
bool CublasLt::prepare(int n_tokens, int n, int k) {
  State& s = *state_;
  const auto N = static_cast<uint64_t>(n), T = static_cast<uint64_t>(n_tokens), K = static_cast<uint64_t>(k);
  s.create_operation(&s.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  s.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  s.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  s.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
  s.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
  const void* some_scale = s.workspace;
  s.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, some_scale);
  s.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, some_scale);
  s.create_layout(&s.w, CUDA_R_8F_E4M3, K, N, static_cast<int64_t>(K));
  s.create_layout(&s.x, CUDA_R_8F_E4M3, K, T, static_cast<int64_t>(K));
  s.create_layout(&s.out, CUDA_R_16BF, N, T, static_cast<int64_t>(N));
  return s.choose();
}

bool CublasLt::prepare(const Bf16Shape& shape) {
  State& s = *state_;
  s.create_operation(&s.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  s.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  s.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  s.w = s.bf16_layout(shape.k, shape.n, shape.n_heads);
  s.x = s.bf16_layout(shape.k, shape.n_tokens, shape.n_heads);
  s.out = s.bf16_layout(shape.n, shape.n_tokens, shape.n_heads);
  return s.choose();
}

void CublasLt::run(const Bf16Product& p, CUstream_st* stream) const {
  const State& s = *state_;
  const float one = 1, zero = 0;
  const cublasStatus_t status = s.matmul(s.handle, s.operation, &one, p.w, s.w, p.x, s.x, &zero, p.out, s.out, p.out,
                                         s.out, &s.choice.algo, s.workspace, kWorkspaceBytes, stream);
  LEVIN_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt product failed with status {}", static_cast<int>(status));
}

void CublasLt::run(const BlockScaledProduct& p, CUstream_st* stream) const {
  State& s = *state_;
  s.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(p.w_scale));
  s.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(p.x_scale));
  const float one = 1, zero = 0;
  const cublasStatus_t status = s.matmul(s.handle, s.operation, &one, p.w, s.w, p.x, s.x, &zero, p.out, s.out, p.out,
                                         s.out, &s.choice.algo, s.workspace, kWorkspaceBytes, stream);
  LEVIN_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt product failed with status {}", static_cast<int>(status));
}

}  // namespace levin::bench
