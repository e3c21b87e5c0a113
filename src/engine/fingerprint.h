// What cache rows depend on besides the tokens before them, as one digest: equal fingerprints, equal rows.
//
//   model     config.json, the overrides of its keys, and each weight file's name, length, time of modification, header and samples of its bytes
//             (hundreds of gigabytes are not read for it); for dummy weights config.json alone
//   numerics  mode and cache types, the kernel set, and whether drafts are made, which fills the MTP layer's rows
//   program   its own file: another build may round otherwise
//
// tokenizer.json is no part of it: rows depend on token ids, which the keys of blocks contain.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/digest.h"
#include "base/result.h"
#include "io/safetensors.h"

namespace levin {

struct FingerprintParts {
  std::filesystem::path model_folder;
  std::string overrides;                       // of config.json, as overrides_text() has them
  const io::Checkpoint* checkpoint = nullptr;  // null: dummy weights
  std::string numerics;                        // as Numerics::describe() has it
  std::string kernels;                         // the CPU's set, or the device's and the device
  int64_t n_page_tokens = 0;
  bool drafts = false;
};

Result<Digest> cache_fingerprint(const FingerprintParts& parts);

}  // namespace levin
