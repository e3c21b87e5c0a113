// What DeepSeek-V4.1 takes from the checkpoint's files as they are: the tables of its n-gram memory, which stay where they
// are mapped, and the classes of tokens, which follow from tokenizer.json.
#include <fmt/core.h>

#include <algorithm>

#include "arch/deepseek_v41/parts.h"
#include "arch/deepseek_v41/weights.h"
#include "base/check.h"
#include "base/memory.h"
#include "text/token_classes.h"

namespace levin::deepseek_v41 {
namespace {

// A tensor's bytes in a mapping of its file, which lasts as long as `file`.
struct MappedTensor {
  std::shared_ptr<const io::MappedFile> file;
  std::span<const std::byte> bytes;
};

Result<MappedTensor> map_tensor(const io::Checkpoint& checkpoint, const std::string& name) {
  const io::StoredTensor* tensor = checkpoint.find(name);
  LEVIN_CHECK(tensor != nullptr, "the checkpoint has no {}", name);
  const io::MappedFile& opened = checkpoint.files()[static_cast<size_t>(tensor->file_idx)];
  LEVIN_ASSIGN(io::MappedFile file, io::MappedFile::open(opened.path()));
  const auto begin = static_cast<size_t>(tensor->bytes.data() - opened.bytes().data());
  if (file.size_bytes() != opened.size_bytes()) {
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{} changed while it was read; load the model again", opened.path().string())};
  }
  auto shared = std::make_shared<const io::MappedFile>(std::move(file));
  const std::span<const std::byte> bytes = shared->bytes().subspan(begin, tensor->bytes.size());
  read_here_and_there(bytes);
  return MappedTensor{.file = std::move(shared), .bytes = bytes};
}

Status map_table(const io::Checkpoint& checkpoint, const std::string& prefix, EngramWeights& w) {
  LEVIN_ASSIGN(MappedTensor codes, map_tensor(checkpoint, prefix + "weight"));
  LEVIN_ASSIGN(MappedTensor scales, map_tensor(checkpoint, prefix + "scale"));
  w.table.codes = codes.bytes.data();
  w.table.scales = scales.bytes.data();
  w.codes_file = std::move(codes.file);
  w.scales_file = std::move(scales.file);
  return {};
}

Table table_of(const std::vector<int32_t>& classes) {
  const int64_t n = std::ssize(classes);
  Table out;
  out.storage = Buffer::for_tensor(DType::kF32, {n, 1});
  out.view = View(out.storage.data(), DType::kF32, {n, 1});
  std::copy(classes.begin(), classes.end(), reinterpret_cast<float*>(out.storage.data()));
  return out;
}

// Of all ids of the vocabulary; those without a token have the first class.
Result<std::vector<int32_t>> read_classes(const ModelConfig& config, const std::filesystem::path& folder) {
  LEVIN_ASSIGN(const text::Tokenizer tokenizer, text::Tokenizer::load(folder));
  text::TokenClasses classes = text::token_classes(tokenizer);
  const int64_t expected = own(config).engram->n_classes;
  if (classes.count != expected || std::ssize(classes.of_token) > config.n_vocab) {
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{}: {} tokens of {} kinds, expected at most {} (vocab_size) of {} "
                             "(engram_compressed_vocab_size); the model's own tokenizer.json belongs there",
                             (folder / "tokenizer.json").string(), classes.of_token.size(), classes.count,
                             config.n_vocab, expected)};
  }
  classes.of_token.resize(static_cast<size_t>(config.n_vocab), 0);
  return std::move(classes.of_token);
}

// Of dummy weights: any.
std::vector<int32_t> some_classes(const ModelConfig& config) {
  std::vector<int32_t> classes(static_cast<size_t>(config.n_vocab));
  for (size_t i = 0; i < classes.size(); ++i)
    classes[i] = static_cast<int32_t>(static_cast<int64_t>(i) % own(config).engram->n_classes);
  return classes;
}

}  // namespace

Status attach_files(const ModelConfig& config, const io::Checkpoint* checkpoint, ModelWeights& weights) {
  if (!own(config).engram) return {};
  const EngramConfig& engram = *own(config).engram;
  std::vector<int32_t> classes = some_classes(config);
  if (checkpoint != nullptr) {
    LEVIN_ASSIGN(classes, read_classes(config, checkpoint->path()));
    for (const int layer : engram.layers) {
      LEVIN_TRY(map_table(*checkpoint, deepseek_v41::layer_prefix(config, layer) + "engram.embed.",
                          *own(weights).layers[static_cast<size_t>(layer)].engram));
    }
  }
  own(weights).token_classes = table_of(classes);
  own(weights).pad_class = classes[static_cast<size_t>(engram.pad_token)];
  return {};
}

}  // namespace levin::deepseek_v41
