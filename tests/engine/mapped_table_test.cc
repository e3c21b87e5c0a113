// Tables that are looked up stay in their files (Storage::kMappedTable): neither loading nor running a model reads more of them
// than the rows that its tokens choose.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "arch/deepseek_v41/config.h"
#include "arch/deepseek_v41/engram_hash.h"
#include "arch/deepseek_v41/weights.h"
#include "engine/loaded_model.h"
#include "engine/trace.h"
#include "io/json.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

// Of this process, files that it maps included.
int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
};

// A file of tensors without a written byte: what is read of it are zeros, and it takes no room on the disk.
void write_holes(const std::filesystem::path& path, const std::vector<Tensor>& tensors) {
  io::JsonObject header;
  int64_t end = 0;
  for (const Tensor& t : tensors) {
    const int64_t begin = end;
    end += t.shape[0] * t.shape[1];  // one byte an element
    header.set(t.name, io::JsonObject{{"dtype", t.dtype},
                                      {"shape", io::JsonArray(t.shape.begin(), t.shape.end())},
                                      {"data_offsets", io::JsonArray{begin, end}}});
  }
  const std::string text = io::dump_json(header);
  const uint64_t n_bytes = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&n_bytes), sizeof(n_bytes)).write(text.data(), std::ssize(text));
  file.close();
  std::filesystem::resize_file(path, sizeof(n_bytes) + n_bytes + static_cast<uint64_t>(end));
}

// v41-flash with tables of 48 million rows each; returns their bytes.
int64_t enlarge_tables(TempCheckpoint& model) {
  constexpr int64_t kFirstPrime = 8'000'000;
  const ModelConfig config = must(load_model_config(fixture_folder("v41-flash").string())).config;
  EngramConfig engram = *deepseek_v41::own(config).engram;
  engram.first_prime = kFirstPrime;
  const std::vector<deepseek_v41::EngramHash> hashes = deepseek_v41::engram_hashes(engram);
  std::vector<Tensor> tables;
  io::JsonArray n_rows;
  int64_t n_bytes = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const std::string prefix = fmt::format("layers.{}.engram.embed.", engram.layers[i]);
    n_rows.emplace_back(hashes[i].n_rows());
    for (const char* what : {"weight", "scale"}) model.remove_tensor(prefix + what);
    tables.push_back({prefix + "weight", "F8_E4M3", {hashes[i].n_rows(), engram.d_row}});
    tables.push_back({prefix + "scale", "F8_E8M0", {hashes[i].n_rows(), (engram.d_row + 31) / 32}});
    n_bytes += hashes[i].n_rows() * (engram.d_row + (engram.d_row + 31) / 32);
  }
  model.set_config("text_config.engram_vocab_size", kFirstPrime);
  model.set_config("text_config.engram_num_embeddings", n_rows);
  model.write(2);
  write_holes(model.path() / "model-00003-of-00003.safetensors", tables);
  const std::filesystem::path index_path = model.path() / "model.safetensors.index.json";
  io::JsonValue index = must(io::parse_json(must(io::read_file(index_path)), "index"));
  for (const Tensor& t : tables)
    index.as_object()->find("weight_map")->as_object()->set(t.name, "model-00003-of-00003.safetensors");
  model.write_text("model.safetensors.index.json", io::dump_json(index));
  return n_bytes;
}

TEST(MappedTableTest, NeitherLoadingNorRunningReadsMoreThanTheRowsThatAreLookedUp) {
  TempCheckpoint checkpoint = TempCheckpoint::from_fixture("v41-flash");
  const int64_t n_table_bytes = enlarge_tables(checkpoint);
  ASSERT_GT(n_table_bytes, int64_t{4} << 30);
  std::filesystem::copy_file(fixture_folder("v41-flash") / "tokenizer.json", checkpoint.path() / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  const int64_t before = resident_bytes();
  const std::unique_ptr<Model> model = load_model(checkpoint.path());
  const int64_t loaded = resident_bytes();
  EXPECT_LT(loaded - before, n_table_bytes / 16);

  const TraceOptions options{.ids = {5, 6, 7, 8, 9, 10, 11, 12}, .n_greedy = 8};
  const auto run = [&](const Model& of) {
    Runner runner(of, runner_options(trace_cache_tokens(options)));
    return must(trace(runner, options));
  };
  const TraceResult found = run(*model);
  EXPECT_LT(resident_bytes() - loaded, n_table_bytes / 16);

  // Rows of zeros are no memory at all.
  const std::unique_ptr<Model> without = load_model(checkpoint.path(), {.change_weights = [](ModelWeights& w) {
                                                      for (V41LayerWeights& layer : deepseek_v41::own(w).layers) {
                                                        if (layer.engram) layer.engram->table.codes = nullptr;
                                                      }
                                                    }});
  EXPECT_EQ(found.logits, run(*without).logits);
}

}  // namespace
}  // namespace levin::test
