// The parts that weights of all families are made of.
#pragma once

#include "ops/moe.h"
#include "tensor/buffer.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

namespace levin {

// A matrix and the type its input is rounded to.
struct Linear {
  Matrix w;  // [N, K]
  ops::Operand input = ops::Operand::kF32;
};

// Rows that are looked up, as stored.
struct Table {
  Buffer storage;
  View view;  // [n, d] bf16 or f32
};

// Small weights that are no matrix of a product, kept as f32 whatever the checkpoint stores.
struct Vector {
  Buffer storage;
  View view;  // [n] or [rows, n] f32
};

}  // namespace levin
