// What the weight tables of all families are written with: one call for each tensor. For families' weight_rows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/weight_store.h"
#include "model/weight_table.h"

namespace levin {

// A family derives from this and writes its names and shapes; rows come out in the order of the calls.
class TableBuilder {
 protected:
  using ScaleName = std::string (*)(std::string_view weight_name);

  // `scale_name` gives the companion of a quantised matrix.
  TableBuilder(const ModelConfig& config, const Numerics* numerics, ScaleName scale_name)
      : config_(config), numerics_(numerics == nullptr ? Numerics{} : *numerics), scale_name_(scale_name) {}

  void matrix(std::string name, std::vector<int64_t> shape, Linear& out);        // may be quantised
  void plain_matrix(std::string name, std::vector<int64_t> shape, Linear& out);  // never is
  // Never is either; its input is always f32.
  void f32_matrix(std::string name, std::vector<int64_t> shape, Linear& out,
                  io::StoredDtype plain = io::StoredDtype::kBF16);
  void vector(std::string name, std::vector<int64_t> shape, Vector& out);
  void embedding(std::string name, ModelWeights& out);
  void table(std::string name, std::vector<int64_t> shape, Table& out);

  // The names of a feed-forward block's matrices, and how they may be stored.
  struct FfnNames {
    std::string gate, up, down;
    Storage storage = Storage::kMatrix;
  };
  void ffn(const FfnNames& names, int64_t d_hidden, ops::FfnWeights& out);

  void add(WeightRow row);

  const ModelConfig& config_;
  const Numerics numerics_;
  const ScaleName scale_name_;
  bool in_mtp_ = false;  // rows added now belong to the MTP layer
  std::vector<WeightRow> rows_;

 private:
  void ffn_matrix(std::string name, std::vector<int64_t> shape, Storage storage, Matrix& out, ops::Operand& input);
};

}  // namespace levin
