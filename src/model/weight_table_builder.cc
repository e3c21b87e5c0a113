#include "model/weight_table_builder.h"

#include <utility>

namespace levin {
namespace {

using io::StoredTensor;

template <class T, class Stored>
Status put(T& place, Result<Stored> stored) {
  if (!stored.ok()) return stored.error();
  place = std::move(stored).value();
  return {};
}

}  // namespace

void TableBuilder::add(WeightRow row) {
  if (may_be_quantised(row.storage)) row.scale_name = scale_name_(row.name);
  row.block = config_.fp8_block;
  row.mtp = in_mtp_;
  rows_.push_back(std::move(row));
}

void TableBuilder::matrix(std::string name, std::vector<int64_t> shape, Linear& out) {
  ffn_matrix(std::move(name), std::move(shape), Storage::kMatrix, out.w, out.input);
}

void TableBuilder::plain_matrix(std::string name, std::vector<int64_t> shape, Linear& out) {
  ffn_matrix(std::move(name), std::move(shape), Storage::kPlainMatrix, out.w, out.input);
}

void TableBuilder::f32_matrix(std::string name, std::vector<int64_t> shape, Linear& out, io::StoredDtype plain) {
  const auto store = [&out](const StoredTensor& tensor, const StoredScales* scales, MatrixForm form) {
    return put(out.w, store_matrix(tensor, scales, form));
  };
  add({.name = std::move(name),
       .shape = std::move(shape),
       .storage = Storage::kPlainMatrix,
       .plain = plain,
       .f32_input = true,
       .store = store});
}

void TableBuilder::vector(std::string name, std::vector<int64_t> shape, Vector& out) {
  const auto store = [&out](const StoredTensor& tensor, const StoredScales*, MatrixForm) {
    return put(out, store_vector(tensor));
  };
  add({.name = std::move(name), .shape = std::move(shape), .storage = Storage::kVector, .store = store});
}

void TableBuilder::embedding(std::string name, ModelWeights& out) {
  const auto store = [&out](const StoredTensor& tensor, const StoredScales*, MatrixForm form) -> Status {
    Table table;
    LEVIN_TRY(put(table, store_table(tensor, form)));
    out.embed_storage = std::move(table.storage);
    out.embed = table.view;
    return {};
  };
  add({.name = std::move(name),
       .shape = {config_.n_vocab, config_.d_model},
       .storage = Storage::kTable,
       .store = store});
}

void TableBuilder::table(std::string name, std::vector<int64_t> shape, Table& out) {
  const auto store = [&out](const StoredTensor& tensor, const StoredScales*, MatrixForm form) {
    return put(out, store_table(tensor, form));
  };
  add({.name = std::move(name), .shape = std::move(shape), .storage = Storage::kTable, .store = store});
}

void TableBuilder::ffn_matrix(std::string name, std::vector<int64_t> shape, Storage storage, Matrix& out,
                              ops::Operand& input) {
  const auto store = [&out, &input, numerics = numerics_](const StoredTensor& tensor, const StoredScales* scales,
                                                          MatrixForm form) {
    input = input_operand(tensor, numerics);
    return put(out, store_matrix(tensor, scales, form));
  };
  add({.name = std::move(name), .shape = std::move(shape), .storage = storage, .store = store});
}

void TableBuilder::ffn(const FfnNames& names, int64_t d_hidden, ops::FfnWeights& out) {
  const size_t first = rows_.size();
  ffn_matrix(names.gate, {d_hidden, config_.d_model}, names.storage, out.gate, out.input);
  const auto store = [&out](const StoredTensor& tensor, const StoredScales* scales, MatrixForm form) {
    return put(out.up, store_matrix(tensor, scales, form));
  };
  add({.name = names.up,
       .shape = {d_hidden, config_.d_model},
       .storage = names.storage,
       .stored_like = names.gate,  // they share their rounded input
       .store = store});
  ffn_matrix(names.down, {config_.d_model, d_hidden}, names.storage, out.down, out.hidden);
  // The experts that all tokens go to are part of the same op as those that are chosen.
  const bool expert = names.gate.find("expert") != std::string::npos;
  for (size_t i = first; i < rows_.size(); ++i) rows_[i].op = expert ? "expert_ffn" : "ffn";
}

}  // namespace levin
