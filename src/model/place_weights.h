// Moves the weights of a model from the host to a device.
#pragma once

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/weights.h"
#include "tensor/device_memory.h"

namespace levin {

// Weights that were read row by row (MatrixForm::kRows, kRowsInPlace) come to lie in one piece of device memory, which
// `weights` owns then: in the order of the forward pass, row major, matrices that ops take together one after another. The
// host's are given back; nothing of the checkpoint is looked at afterwards. Dummies that nobody has made are made there.
// Errors: the device lacks the memory, or the experts of a layer are of different types.
Status place_weights(DeviceMemory& memory, ThreadPool& pool, ModelWeights& weights);

}  // namespace levin
