// The weights of a model, named by what they do; the weight table (weight_table.h) maps them to checkpoint names.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/weights_common.h"
#include "ops/moe.h"
#include "tensor/buffer.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

namespace levin {

// The experts of a layer and what chooses among them.
struct MoeWeights {
  Linear gate;  // [E, D], input always f32
  Vector bias;  // [E]; empty in layers that choose by token id
  Buffer hash_storage;
  View hash_experts;                      // [V, A] i32, experts of each token id; empty in the other layers
  std::vector<ops::FfnWeights> experts;   // E of [F, D], [F, D], [D, F]
  std::optional<ops::FfnWeights> shared;  // F * n_shared_experts wide
};

// A visitor of all weights of a model, one after another.
class WeightVisitor {
 public:
  virtual ~WeightVisitor() = default;
  // Matrices that one call of an op takes together: heads or experts, which have one shape, or those of one input, one below the
  // other, such as each expert's gate and up; or one alone.
  virtual void matrices(std::span<Matrix* const> together) = 0;
  virtual void tensor(Buffer& storage, View& view) = 0;

  void matrix(Matrix& w);
  void linear(Linear& w) { matrix(w.w); }
  void of_one_input(std::initializer_list<Linear*> w);  // together where they can be joined
  void heads(std::vector<Matrix>& w);
  void vector(Vector& w) {
    if (!w.view.empty()) tensor(w.storage, w.view);
  }
  void table(Table& w) { tensor(w.storage, w.view); }
  void ffn(ops::FfnWeights& w);
  void moe(MoeWeights& w);
};

// The layers of a family: its own struct derives from this.
struct FamilyWeights {
  virtual ~FamilyWeights() = default;
  virtual void visit(WeightVisitor& v) = 0;       // all that are there
  virtual bool has_mtp() const { return false; }  // layers that draft
  virtual void drop_mtp() {}                      // the checkpoint has none
};

struct ModelWeights {
  Buffer embed_storage;
  View embed;                          // [V, D] as stored: bf16 or f32
  Vector norm;                         // [D]
  Linear head;                         // [V, D]
  std::optional<Linear> draft_head;    // [V, D], for drafts alone; empty: they take `head`
  std::unique_ptr<FamilyWeights> own;  // made by weight_rows() of the family, which alone knows its type

  // Where all of them lie, if that is a device; they are parts of it (place_weights.h).
  Buffer device_memory;

  void visit(WeightVisitor& v);

  template <class T>
  const T& own_weights() const {
    return static_cast<const T&>(*own);
  }
  template <class T>
  T& own_weights() {
    return static_cast<T&>(*own);
  }
};

}  // namespace levin
