// A model ready to run in a test: from a fixture's recipe or from a checkpoint folder.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "arch/load_config.h"
#include "base/cpu.h"
#include "engine/runner.h"
#include "engine/tested_device.h"
#include "io/safetensors.h"
#include "model/architecture.h"
#include "model/place_weights.h"
#include "model/weight_table.h"
#include "support/fixture.h"
#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::test {

// Empty: it runs the model of this folder.
inline std::string why_not_on_tested_device(const std::filesystem::path& folder) {
  if (tested_cuda() == nullptr) return "";
  const Architecture& family = *must(load_model_config(folder)).config.family;
  if (family.cuda_lacks.empty()) return "";
  return std::string(family.name) + " does not run on CUDA, which lacks " + std::string(family.cuda_lacks);
}

struct ModelChoices {
  CudaBackend* cuda = tested_cuda();  // where its weights come to lie; null: on the host
  NumericsMode numerics = NumericsMode::kReference;
  Selection selection = Selection::kIndexer;
  // To break a model on purpose
  std::function<void(ModelConfig&)> change_config;
  std::function<void(ModelWeights&)> change_weights;
};

inline std::unique_ptr<Model> load_model(const std::filesystem::path& folder, const ModelChoices& choices = {}) {
  ModelConfig config = must(load_model_config(folder)).config;
  Numerics numerics =
      numerics_of_family(must(make_numerics(tested_numerics(choices.numerics), "auto")), *config.family);
  numerics.fp8_draft_head = numerics.fp8_draft_head && choices.cuda == nullptr;
  const io::Checkpoint checkpoint = must(io::Checkpoint::open(folder));
  ThreadPool pool(2);
  std::vector<std::string> warnings;
  // Changes are made to copies.
  const MatrixForm form = choices.cuda == nullptr  ? MatrixForm::kPanels
                          : choices.change_weights ? MatrixForm::kRows
                                                   : MatrixForm::kRowsInPlace;
  ModelWeights weights = must(load_weights(config, numerics, checkpoint, pool, {}, &warnings, form));
  if (choices.change_config) choices.change_config(config);
  if (choices.change_weights) choices.change_weights(weights);
  if (choices.cuda != nullptr) must(place_weights(*choices.cuda, pool, weights));
  return make_model(std::move(config), numerics, std::move(weights), choices.selection);
}

inline std::unique_ptr<Model> load_fixture(const std::string& name, const ModelChoices& choices = {}) {
  const TempDir folder;
  must(materialise(fixture_folder(name), folder.path()));
  return load_model(folder.path(), choices);
}

inline RunnerOptions runner_options(int64_t n_cache_tokens, int n_threads = 2) {
  return {.cuda = tested_cuda(),
          .n_threads = n_threads,
          .isa = cpu_info().preferred_isa(),
          .n_cache_tokens = n_cache_tokens};
}

// What lies in a runner's token pages, all caches together, where those hold all rows. Pages that hold the same are one.
inline std::set<std::vector<std::byte>> page_contents(Runner& runner) {
  std::set<std::vector<std::byte>> out;
  std::vector<std::byte> page(static_cast<size_t>(runner.block_bytes()));
  PagePool& pool = runner.pools().rows();
  std::vector<int32_t> lent;  // the free ones, so that every page has a holder for a while
  for (int32_t p = pool.allocate(); p >= 0; p = pool.allocate()) lent.push_back(p);
  for (int32_t p = 0; p < pool.n_pages(); ++p) {
    SequencePages alone(runner.pools());
    pool.retain(p);
    alone.begin_with({p});
    runner.copy_block(alone, 0, page);
    out.insert(page);
  }
  for (const int32_t p : lent) pool.release(p);
  return out;
}

inline std::filesystem::path demo_model_folder(const std::string& name = "demo-v32") {
  return std::filesystem::path(LEVIN_SOURCE_DIR) / "models" / name;
}

// Of a test's parameter, as googletest wants it.
inline std::string test_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace levin::test
