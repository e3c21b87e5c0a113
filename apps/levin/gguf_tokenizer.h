// The keys of a tokenizer in a GGUF file.
#pragma once

#include <string>

#include "base/result.h"
#include "io/gguf.h"
#include "model/config.h"

namespace levin::app {

// From the folder's tokenizer.json: tokens by id, what kind each is, and merges. Without that file the model is said to
// have no tokenizer, and takes token ids alone.
Status set_gguf_tokenizer(const std::string& folder, const ModelConfig& config, io::GgufWriter* file);

}  // namespace levin::app
