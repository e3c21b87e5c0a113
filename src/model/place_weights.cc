#include "model/place_weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"

namespace levin {
namespace {

constexpr int64_t kPartAlignment = 256;  // bytes

int64_t aligned(int64_t n_bytes) { return (n_bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

Matrix as_f32(const Matrix& w) {  // of bf16 rows
  LEVIN_CHECK(!w.data().dummies(), "dummies [{}, {}] that nobody has made", w.n(), w.k());
  std::vector<float> values(static_cast<size_t>(w.n() * w.k()));
  const auto* bf16 = reinterpret_cast<const uint16_t*>(w.data().data());
  std::transform(bf16, bf16 + values.size(), values.begin(), bf16_to_f32);
  return keep_matrix({.data = values.data(), .dtype = DType::kF32, .n = w.n(), .k = w.k()}, MatrixForm::kRows);
}

// Heads that were dequantised are bf16 where that holds their values and f32 elsewhere: all become f32 if one is.
Status make_one_type(std::span<Matrix* const> together) {
  const auto is = [&](DType dtype) { return [dtype](const Matrix* w) { return w->dtype() == dtype; }; };
  const DType first = together.front()->dtype();
  if (std::all_of(together.begin(), together.end(), is(first))) return {};
  for (Matrix* w : together) {
    if (w->dtype() != DType::kF32 && w->dtype() != DType::kBF16) {
      return Error{
          ErrorKind::kModelInvalid,
          fmt::format("matrices [{}, {}] of one layer are stored as {} and as {}; on CUDA all experts of a layer "
                      "have one type: use --device cpu, or convert the checkpoint",
                      w->n(), w->k(), dtype_name(first), dtype_name(w->dtype()))};
    }
    if (w->dtype() == DType::kBF16) *w = as_f32(*w);
  }
  return {};
}

// What all weights need, and whether they can stand together.
class Measure final : public WeightVisitor {
 public:
  void matrices(std::span<Matrix* const> together) override {
    if (together.empty()) return;
    if (status_.ok()) status_ = make_one_type(together);
    int64_t data_bytes = 0, scales_bytes = 0;
    for (const Matrix* w : together) data_bytes += w->data().n_bytes(), scales_bytes += w->scales().n_bytes();
    n_bytes_ += aligned(data_bytes) + aligned(scales_bytes);
  }
  void tensor(Buffer& storage, View&) override { n_bytes_ += aligned(storage.n_bytes()); }

  const Status& status() const { return status_; }
  int64_t n_bytes() const { return n_bytes_; }

 private:
  Status status_;
  int64_t n_bytes_ = 0;
};

// Gives all weights their places, from `to` on, and notes what has to come there.
class Placer final : public WeightVisitor {
 public:
  struct Dummies {
    std::byte* to = nullptr;
    DummyTensor tensor;
    int64_t n = 0;
  };

  explicit Placer(std::byte* to) : to_(to) {}

  void matrices(std::span<Matrix* const> together) override {
    if (together.empty()) return;
    std::vector<DeviceMatrix> placed;
    for (const Matrix* w : together) {
      placed.push_back({.dtype = w->dtype(),
                        .n = w->n(),
                        .k = w->k(),
                        .data = place(w->data()),
                        .scales = {},
                        .factor = w->factor()});
    }
    align();
    for (size_t i = 0; i < together.size(); ++i) placed[i].scales = place(together[i]->scales());
    align();
    for (size_t i = 0; i < together.size(); ++i) {
      matrices_.push_back(std::exchange(*together[i], matrix_on_device(std::move(placed[i]))));
    }
  }

  void tensor(Buffer& storage, View& view) override {
    tensors_.push_back(std::exchange(storage, place(storage)));
    align();
    const auto at = [&](std::initializer_list<int64_t> shape) {
      return View(storage.data(), view.dtype(), shape, Device::kCuda);
    };
    view = view.rank() == 1 ? at({view.dim(0)}) : at({view.dim(0), view.dim(1)});
  }

  const std::vector<CopyIn>& copies() const { return copies_; }
  const std::vector<Dummies>& dummies() const { return dummies_; }

 private:
  // Follows what was placed before.
  Buffer place(const Buffer& from) {
    if (from.empty()) return {};
    if (const std::optional<DummyTensor>& dummies = from.dummies()) {
      dummies_.push_back({.to = to_, .tensor = *dummies, .n = from.n_bytes() / dummy_bytes(dummies->type)});
    } else {
      copies_.push_back({.to = to_, .from = from.data(), .n_bytes = from.n_bytes()});
    }
    Buffer here = Buffer::borrowed(to_, from.n_bytes(), Device::kCuda);
    to_ += from.n_bytes();
    n_bytes_ += from.n_bytes();
    return here;
  }
  void align() {
    to_ += aligned(n_bytes_) - n_bytes_;
    n_bytes_ = aligned(n_bytes_);
  }

  std::byte* to_;
  int64_t n_bytes_ = 0;
  std::vector<CopyIn> copies_;
  std::vector<Dummies> dummies_;
  // What copies are made of, on the host.
  std::vector<Matrix> matrices_;
  std::vector<Buffer> tensors_;
};

}  // namespace

Status place_weights(DeviceMemory& memory, ThreadPool& pool, ModelWeights& weights) {
  Measure measure;
  weights.visit(measure);
  LEVIN_TRY(measure.status());
  LEVIN_ASSIGN(weights.device_memory, memory.allocate(measure.n_bytes()));
  Placer placer(weights.device_memory.data());
  weights.visit(placer);
  LEVIN_TRY(memory.copy_all_in(placer.copies(), pool));
  for (const Placer::Dummies& d : placer.dummies()) memory.make_dummies(d.to, d.tensor, d.n);
  return memory.synchronize();
}

}  // namespace levin
