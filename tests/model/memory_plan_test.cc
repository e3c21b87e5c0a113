#include "model/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>

#include "arch/deepseek_v3/weights.h"
#include "arch/load_config.h"
#include "model/weight_table.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"

namespace levin {
namespace {

const std::string kRoot = LEVIN_SOURCE_DIR;

MemoryPlan plan_for(const std::string& folder, NumericsMode mode, const io::Checkpoint* checkpoint) {
  const ModelConfig config = test::must(load_model_config(folder)).config;
  const Numerics numerics = numerics_of_family(test::must(make_numerics(mode, "auto")), *config.family);
  return plan_memory(config, numerics, checkpoint, {.n_step_tokens = 512, .n_undone = 3});
}

// Worked out by hand from the shapes of the released models. GLM-5.1 stands for its FP8 release, GLM-5 for the BF16 one.
struct Released {
  const char* name;
  int n_indexers;  // of the trunk
  int64_t n_parameters;
  int64_t n_mtp_parameters;
  int64_t weights_bytes;
  int64_t mtp_weights_bytes;
  int64_t latent_bytes_per_token;  // 656 a layer, MTP included
  int64_t index_bytes_per_token;   // 132 an indexer, MTP's included
};
void PrintTo(const Released& row, std::ostream* out) { *out << row.name; }

constexpr Released kReleased[] = {
    {"deepseek-v3.2", 61, 683'501'971'712, 11'624'027'648, 685'764'391'040, 11'732'009'408, 62 * 656, 62 * 132},
    {"glm-5", 78, 753'864'139'008, 9'952'920'576, 1'507'730'752'512, 19'905'908'736, 79 * 656, 79 * 132},
    {"glm-5.1", 78, 753'864'139'008, 9'952'920'576, 757'324'565'376, 10'047'376'512, 79 * 656, 79 * 132},
    {"glm-5.2", 21, 753'329'940'480, 9'952'920'576, 756'778'988'736, 10'047'376'512, 79 * 656, 22 * 132},
    // 724,775,731,200 weights in NVFP4, 4.5 bits each and the matrix's factor for every 128 x 128; vectors in F32, the rest
    // in BF16
    {"glm-5.2-nvfp4", 21, 753'329'940'480, 9'952'920'576, 464'974'159'872, 19'905'908'736, 79 * 656, 22 * 132},
    {"glm-5.3", 21, 753'329'940'480, 9'952'920'576, 756'778'988'736, 10'047'376'512, 79 * 656, 22 * 132},
};

class ReleasedModelTest : public testing::TestWithParam<Released> {};

TEST_P(ReleasedModelTest, IsCountedToTheByte) {
  const Released& row = GetParam();
  const std::string folder = kRoot + "/tests/fixtures/" + row.name;
  EXPECT_EQ(test::must(load_model_config(folder)).config.n_indexers(), row.n_indexers);
  const MemoryPlan plan = plan_for(folder, NumericsMode::kOfficial, nullptr);
  EXPECT_EQ(plan.n_parameters, row.n_parameters);
  EXPECT_EQ(plan.n_mtp_parameters, row.n_mtp_parameters);
  EXPECT_EQ(plan.weights_bytes, row.weights_bytes);
  EXPECT_EQ(plan.mtp_weights_bytes, row.mtp_weights_bytes);
  EXPECT_EQ(plan.latent_bytes_per_token, row.latent_bytes_per_token);
  EXPECT_EQ(plan.index_bytes_per_token, row.index_bytes_per_token);
}

INSTANTIATE_TEST_SUITE_P(Table, ReleasedModelTest, testing::ValuesIn(kReleased), [](const auto& row) {
  std::string name = row.param.name;
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
});

// Likewise; hash layers' tables of expert ids are bytes and no parameters.
TEST(MemoryPlanTest, CountsTheWeightsOfTheReleasedDeepseekV4Models) {
  const MemoryPlan flash = plan_for(kRoot + "/tests/fixtures/deepseek-v4-flash", NumericsMode::kOfficial, nullptr);
  EXPECT_EQ(flash.n_parameters - flash.n_mtp_parameters, 284'332'240'471);
  EXPECT_EQ(flash.n_mtp_parameters, 6'610'048'891);
  EXPECT_EQ(flash.weights_bytes, 159'649'926'984);
  EXPECT_EQ(flash.mtp_weights_bytes, 3'595'697'132);
  const MemoryPlan pro = plan_for(kRoot + "/tests/fixtures/deepseek-v4-pro", NumericsMode::kOfficial, nullptr);
  EXPECT_EQ(pro.n_parameters - pro.n_mtp_parameters, 1'572'997'201'763);
  EXPECT_EQ(pro.n_mtp_parameters, 25'840'145'979);
  EXPECT_EQ(pro.weights_bytes, 864'818'409'080);
  EXPECT_EQ(pro.mtp_weights_bytes, 13'959'960'556);
}

// 0731 is published as 19.85 B parameters of drafter, 0813 as 1,650,497,936,906 parameters in all, ids of experts in three
// tables for 129280 tokens counted with them.
TEST(MemoryPlanTest, CountsTheWeightsOfTheReleasesWithABlockDrafter) {
  const MemoryPlan flash = plan_for(kRoot + "/tests/fixtures/deepseek-v4-flash-0731", NumericsMode::kOfficial, nullptr);
  EXPECT_EQ(flash.n_parameters - flash.n_mtp_parameters, 284'332'240'471);
  EXPECT_NEAR(static_cast<double>(flash.n_mtp_parameters), 19.85e9, 0.01e9);
  const MemoryPlan pro = plan_for(kRoot + "/tests/fixtures/deepseek-v4-pro-0813", NumericsMode::kOfficial, nullptr);
  EXPECT_EQ(pro.n_parameters + 3 * 129280 * 6, 1'650'497'936'906);
}

// A window of each stage in place of the MTP layer's, and no state next to them.
TEST(MemoryPlanTest, CountsTheCachesOfABlockDrafter) {
  struct Releases {
    const char *with_mtp, *with_drafter;
    int64_t d_model;
  };
  for (const Releases& r : {Releases{"deepseek-v4-flash", "deepseek-v4-flash-0731", 4096},
                            Releases{"deepseek-v4-pro", "deepseek-v4-pro-0813", 7168}}) {
    SCOPED_TRACE(r.with_drafter);
    const std::string root = kRoot + "/tests/fixtures/";
    const MemoryPlan mtp = plan_for(root + r.with_mtp, NumericsMode::kFast, nullptr),
                     dspark = plan_for(root + r.with_drafter, NumericsMode::kFast, nullptr);
    EXPECT_EQ(dspark.latent_bytes_per_token, mtp.latent_bytes_per_token);
    EXPECT_EQ(dspark.index_bytes_per_token, mtp.index_bytes_per_token);
    EXPECT_EQ(dspark.sequence_bytes - mtp.sequence_bytes, 2 * 11 * 64 * 1152);
    EXPECT_EQ(dspark.block_bytes - mtp.block_bytes, 2 * 128 * 1152 - 4 * 4 * r.d_model);
    EXPECT_EQ(dspark.weights_bytes - dspark.mtp_weights_bytes, mtp.weights_bytes - mtp.mtp_weights_bytes);
  }
}

// 320.8 billion parameters, as the name of the release says. Latent rows of 12 layers by token, index keys for 4 tokens
// each. Per sequence and linear layer: rows of 19 tokens (3 drafts), two states, and what ends two blocks of 2048 tokens;
// and in 12 layers the indexer's keys and gates, of the 7 tokens of a pool with drafts; in the MTP layer also of the last
// 3 of each block.
TEST(MemoryPlanTest, CountsTheReleasedGlm53Flash) {
  const std::string folder = kRoot + "/tests/fixtures/glm-5.3-flash";
  const MemoryPlan fast = plan_for(folder, NumericsMode::kFast, nullptr);
  EXPECT_EQ(fast.n_parameters, 320'759'404'382);
  EXPECT_EQ(fast.n_mtp_parameters, 7'432'592'416);
  EXPECT_EQ(fast.latent_bytes_per_token, 12 * 1024);
  EXPECT_EQ(fast.index_bytes_per_token, 12 * 256 / 4);
  const int64_t conv = 3 * 8192, update = conv + 64, state = 8192 * 128;
  const int64_t index_rows = 12 * 7 + 2 * 3;
  EXPECT_EQ(fast.sequence_bytes,
            34 * 4 * (19 * (conv + update) + 2 * state + 2 * (3 * conv + state)) + index_rows * 8 * 128);
  EXPECT_EQ(fast.block_tokens, 2048);
  EXPECT_EQ(fast.block_bytes, 2048 * (12 * 1024 + 12 * 64) + 34 * 4 * (3 * conv + state) + 3 * 8 * 128 + 4 * 4096);
  const MemoryPlan official = plan_for(folder, NumericsMode::kOfficial, nullptr);
  EXPECT_EQ(official.latent_bytes_per_token, 12 * 528);
  EXPECT_EQ(official.index_bytes_per_token, 12 * 132 / 4);
  EXPECT_EQ(official.sequence_bytes, fast.sequence_bytes);
}

// Entries of 21 layers for 4 tokens each, of 20 (Flash) for 128; 30 and 31 in Pro. Rows are 1152 bytes in bf16, 604 in
// fp8, index keys 256. Per sequence: 11 pages of 64 rows hold a window of 128, a step of 512 and 3 drafts; state has
// f32 values and gates of 1024 + 256 channels for 8 tokens, 3 drafts and the last 4 of each of 6 blocks, of 512 channels
// for 128 tokens and 3. A block of 128 tokens has a window's rows of all layers, 32 entries with keys and 4 rows of state
// or one entry, and four streams of the model's width.
TEST(MemoryPlanTest, CountsTheCachesOfTheReleasedDeepseekV4Models) {
  struct ReleasedModel {
    const char* folder;
    int64_t n_layers, n_indexed, n_all, d_model;
  };
  for (const ReleasedModel& m :
       {ReleasedModel{"deepseek-v4-flash", 44, 21, 20, 4096}, ReleasedModel{"deepseek-v4-pro", 62, 30, 31, 7168}}) {
    const std::string folder = kRoot + "/tests/fixtures/" + m.folder;
    const MemoryPlan fast = plan_for(folder, NumericsMode::kFast, nullptr);
    EXPECT_EQ(fast.latent_bytes_per_token, m.n_indexed * 1152 / 4 + m.n_all * 1152 / 128) << m.folder;
    EXPECT_EQ(fast.index_bytes_per_token, m.n_indexed * 256 / 4) << m.folder;
    const int64_t states = m.n_indexed * (11 + 6 * 4) * 8 * (1024 + 256) + m.n_all * 131 * 8 * 512;
    const auto block_bytes = [&](int64_t row) {
      return m.n_layers * 128 * row + m.n_indexed * (32 * (row + 256) + 4 * 8 * (1024 + 256)) + m.n_all * row +
             4 * 4 * m.d_model;
    };
    EXPECT_EQ(fast.block_tokens, 128) << m.folder;
    EXPECT_EQ(fast.block_bytes, block_bytes(1152)) << m.folder;
    EXPECT_EQ(plan_for(folder, NumericsMode::kOfficial, nullptr).block_bytes, block_bytes(604)) << m.folder;
    EXPECT_EQ(fast.sequence_bytes, m.n_layers * 11 * 64 * 1152 + states) << m.folder;
    const MemoryPlan official = plan_for(folder, NumericsMode::kOfficial, nullptr);
    EXPECT_EQ(official.latent_bytes_per_token, (m.n_indexed * 64 * 604 / 4 + m.n_all * 64 * 604 / 128) / 64)
        << m.folder;
    EXPECT_EQ(official.index_bytes_per_token, m.n_indexed * 256 / 4) << m.folder;  // FP4 values, kept as bf16
    EXPECT_EQ(official.sequence_bytes, m.n_layers * 11 * 64 * 604 + states) << m.folder;
  }
}

// Each of several sequences may leave a page of each kind of entries partly empty. A layer has a page or two more than its tokens need,
// since pages are whole.
TEST(MemoryPlanTest, CountsTheCachesOfSeveralSequences) {
  constexpr int64_t kTokens = 10'000, kSequences = 8;
  for (const char* name : {"deepseek-v4-flash", "deepseek-v4.1-flash", "glm-5.3-flash", "deepseek-v3.2"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = test::must(load_model_config(kRoot + "/tests/fixtures/" + name)).config;
    const Numerics numerics =
        numerics_of_family(test::must(make_numerics(NumericsMode::kOfficial, "auto")), *config.family);
    const CacheLimits limits{.n_tokens = kTokens, .n_sequences = kSequences, .n_step_tokens = 512, .n_undone = 3};
    const CacheLayout layout = cache_layout(config, numerics, true);
    const SequencePools pools(layout.page_kinds(), limits);
    const int64_t n_bytes = KvCache(layout, pools).n_bytes();
    const MemoryPlan plan = plan_memory(config, numerics, nullptr, limits);
    const int64_t planned = plan.sequence_bytes + plan.cache_bytes(kTokens);
    int64_t page_bytes = 0;
    for (const LayerCacheFormat& layer : layout.layers) {
      page_bytes += layer.latent.page_bytes() + (layer.index ? layer.index->page_bytes() : 0);
      if (layer.compressed) page_bytes += layer.compressed->entries.page_bytes();
    }
    EXPECT_LE(n_bytes, planned + 2 * page_bytes);
    EXPECT_GE(n_bytes, planned - 2 * page_bytes);
  }
}

// 552 billion parameters and a memory of 196, as the release says; its 96,085 tensors, vision tower included, are 510.29 GB.
// FP8 in blocks of 32 is kept as bf16, and the memory's tables stay where they are. Entries of three layers for 2 tokens each
// and of one for every token; per sequence the windows of 43 layers, the open pair of three, and what hashes see of the last
// tokens.
TEST(MemoryPlanTest, CountsTheReleasedDeepseekV41Flash) {
  const std::string folder = kRoot + "/tests/fixtures/deepseek-v4.1-flash";
  const MemoryPlan fast = plan_for(folder, NumericsMode::kFast, nullptr);
  const int64_t n_rows = 384'006'168 + 384'016'682;
  EXPECT_EQ(fast.n_parameters - fast.n_mtp_parameters - n_rows * 256, 551'880'819'824);
  EXPECT_EQ(fast.n_mtp_parameters, 14'225'362'146);
  EXPECT_EQ(fast.mapped_bytes, n_rows * 264);
  const MemoryPlan official = plan_for(folder, NumericsMode::kOfficial, nullptr);
  EXPECT_EQ(official.weights_bytes, 314'009'293'128);
  EXPECT_EQ(official.mtp_weights_bytes, 8'501'165'960);
  for (const MemoryPlan& plan : {fast, official}) {  // what official rounds to FP8 and FP4 is kept as bf16
    EXPECT_EQ(plan.latent_bytes_per_token, 3 * 1152 / 2 + 1152);
    EXPECT_EQ(plan.index_bytes_per_token, 3 * 256 / 2 + 256);
    const int64_t classes = 8 * (4 + 3 + 10 * 3);
    EXPECT_EQ(plan.sequence_bytes, 43 * 11 * 64 * 1152 + 3 * (2 + 3) * 8 * 512 + classes);
    EXPECT_EQ(plan.block_tokens, 64);
    EXPECT_EQ(plan.block_bytes, 43 * 64 * 1152 + (3 * 32 + 64) * (1152 + 256) + 3 * 8);
  }
}

TEST(MemoryPlanTest, CachesFollowTheNumerics) {
  const std::string folder = kRoot + "/tests/fixtures/deepseek-v3.2";
  const MemoryPlan reference = plan_for(folder, NumericsMode::kReference, nullptr),
                   fast = plan_for(folder, NumericsMode::kFast, nullptr);
  EXPECT_EQ(reference.latent_bytes_per_token, 62 * 576 * 4);
  EXPECT_EQ(reference.index_bytes_per_token, 62 * 128 * 4);
  EXPECT_EQ(fast.latent_bytes_per_token, 62 * (512 * 2 + 64 * 4));  // the rotated part stays f32
  EXPECT_EQ(fast.index_bytes_per_token, 62 * 128 * 2);
  EXPECT_EQ(fast.cache_bytes(100), 100 * 62 * (512 * 2 + 64 * 4 + 128 * 2));
}

int64_t bytes_of(const ops::FfnWeights& ffn) { return ffn.gate.n_bytes() + ffn.up.n_bytes() + ffn.down.n_bytes(); }

int64_t bytes_of(const LayerWeights& layer) {
  const AttentionWeights& a = layer.attention;
  int64_t n = a.q_down.w.n_bytes() + a.q_up.w.n_bytes() + a.kv_down.w.n_bytes() + a.o.w.n_bytes() +
              a.q_norm.storage.n_bytes() + a.kv_norm.storage.n_bytes();
  for (const Matrix& m : a.k_up) n += m.n_bytes();
  for (const Matrix& m : a.v_up) n += m.n_bytes();
  if (layer.indexer) {
    const IndexerWeights& i = *layer.indexer;
    n += i.q_up.w.n_bytes() + i.k.w.n_bytes() + i.head_weights.w.n_bytes() + i.k_norm.storage.n_bytes() +
         i.k_norm_bias.storage.n_bytes();
  }
  n += layer.attention_norm.storage.n_bytes() + layer.ffn_norm.storage.n_bytes();
  if (layer.dense) n += bytes_of(*layer.dense);
  if (!layer.moe) return n;
  n += layer.moe->gate.w.n_bytes() + layer.moe->bias.storage.n_bytes();
  for (const ops::FfnWeights& expert : layer.moe->experts) n += bytes_of(expert);
  return layer.moe->shared ? n + bytes_of(*layer.moe->shared) : n;
}

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
  MemoryPlan plan;
};

// The model as an engine loads it that drafts n_drafts tokens, next to its plan.
Loaded load(const std::filesystem::path& folder, NumericsMode mode, int n_drafts) {
  Loaded out{.config = test::must(load_model_config(folder.string())).config, .weights = {}, .plan = {}};
  const Numerics numerics = test::must(make_numerics(mode, "auto"));
  const io::Checkpoint checkpoint = test::must(io::Checkpoint::open(folder));
  ThreadPool pool(2);
  out.weights = test::must(load_weights(out.config, numerics, checkpoint, pool, {}, nullptr));
  if (n_drafts > 0) add_draft_head(numerics, pool, out.weights);
  out.plan = plan_memory(out.config, numerics, &checkpoint, {.n_step_tokens = 512, .n_undone = n_drafts});
  return out;
}

int64_t bytes_of_trunk(const ModelWeights& weights) {
  int64_t n = weights.embed_storage.n_bytes() + weights.norm.storage.n_bytes() + weights.head.w.n_bytes();
  for (const LayerWeights& layer : mla::own(weights).layers) n += bytes_of(layer);
  return weights.draft_head ? n + weights.draft_head->w.n_bytes() : n;
}

int64_t bytes_of(const MtpWeights& mtp) {
  return bytes_of(mtp.layer) + mtp.eh_proj.w.n_bytes() + mtp.embed_norm.storage.n_bytes() +
         mtp.hidden_norm.storage.n_bytes() + mtp.head_norm.storage.n_bytes();
}

// The plan is what loading allocates, to the byte.
TEST(MemoryPlanTest, EqualsWhatTheDemonstrationModelTakes) {
  const Loaded m = load(kRoot + "/models/demo-v32", NumericsMode::kFast, 0);
  EXPECT_FALSE(m.weights.draft_head);
  EXPECT_EQ(m.plan.weights_bytes, bytes_of_trunk(m.weights) + bytes_of(*mla::own(m.weights).mtp));
  EXPECT_EQ(m.plan.mtp_weights_bytes, bytes_of(*mla::own(m.weights).mtp));
  EXPECT_EQ(m.plan.n_parameters, 21'328'160);
  EXPECT_EQ(m.plan.n_mtp_parameters, 3'903'368);
}

TEST(MemoryPlanTest, ACacheForAllSequencesHasToFit) {
  const MemoryPlan plan = load(kRoot + "/models/demo-v32", NumericsMode::kFast, 0).plan;
  ContextRequest request{.asked_tokens = 1024, .where = " on a card"};
  request.available_bytes = plan.total_bytes(4096);
  EXPECT_TRUE(check_cache_tokens(plan, request, 0).ok());
  EXPECT_TRUE(check_cache_tokens(plan, request, 4096).ok());
  const Status refused = check_cache_tokens(plan, request, 4096 + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_NE(refused.error().message.find("4097 tokens"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("of 4096 tokens (--cache-tokens)"), std::string::npos)
      << refused.error().message;
}

TEST(MemoryPlanTest, CountsTheHeadOfDrafts) {
  for (const char* fixture : {"v32-official", "v32-odd"}) {
    test::TempCheckpoint model = test::TempCheckpoint::from_fixture(fixture);
    const std::filesystem::path folder = model.write();
    for (const NumericsMode mode : {NumericsMode::kFast, NumericsMode::kReference}) {
      const Loaded m = load(folder, mode, 3);
      ASSERT_TRUE(mla::own(m.weights).mtp);
      ASSERT_EQ(m.weights.draft_head.has_value(), mode == NumericsMode::kFast) << fixture;
      EXPECT_EQ(m.plan.weights_bytes, bytes_of_trunk(m.weights) + bytes_of(*mla::own(m.weights).mtp)) << fixture;
    }
  }
}

TEST(MemoryPlanTest, NothingDraftsWithoutAnMtpLayer) {
  test::TempCheckpoint model = test::TempCheckpoint::from_fixture("v32-odd");
  for (const std::string& name : model.tensor_names()) {
    if (name.starts_with("model.layers.4.")) model.remove_tensor(name);  // after the four of the trunk
  }
  const Loaded m = load(model.write(), NumericsMode::kFast, 3);
  ASSERT_FALSE(mla::own(m.weights).mtp);
  EXPECT_FALSE(m.weights.draft_head);
  EXPECT_EQ(m.plan.weights_bytes, bytes_of_trunk(m.weights));
}

// Of as many rows as are scored together: at most 32 MiB of them, and at least one row of the longest context.
TEST(MemoryPlanTest, IndexScoresAreInTheWorkspace) {
  ModelConfig config = test::must(load_model_config(kRoot + "/tests/fixtures/deepseek-v3.2")).config;
  const auto workspace = [&](int64_t max_position, int64_t n_rows) {
    config.max_position = max_position;
    const Numerics numerics = test::must(make_numerics(NumericsMode::kOfficial, "auto"));
    return plan_memory(config, numerics, nullptr, {.n_step_tokens = n_rows}).workspace_bytes;
  };
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(workspace(4096, 8) - workspace(0, 8), 8 * 4096 * 4);
  EXPECT_EQ(workspace(1 << 20, 512) - workspace(0, 512), 32 * kMiB);
  EXPECT_EQ(workspace(1 << 24, 512) - workspace(0, 512), 64 * kMiB);
}

const MemoryPlan kSmallPlan{
    .weights_bytes = 1000, .latent_bytes_per_token = 10, .index_bytes_per_token = 2, .workspace_bytes = 24};

Result<int64_t> choose(int64_t asked_tokens, int64_t available_bytes) {
  return choose_context(kSmallPlan,
                        {.asked_tokens = asked_tokens, .max_position = 1000, .available_bytes = available_bytes});
}

// DeepSeek-V3.2: 8 experts of 2048 for rows of 7168, and a shared one; queries of 128 heads of 576 are less.
TEST(MemoryPlanTest, TunedKernelsTakeTheRowsOfAStepTogetherWithinLimits) {
  const ModelConfig config = test::must(load_model_config(kRoot + "/tests/fixtures/deepseek-v3.2")).config;
  constexpr int64_t kGiB = int64_t{1} << 30;
  constexpr int64_t kTokenBytes = 8 * (4 * 7168 + 6 * 2048 + 16) + 12 * 7168 + 6 * 2048 + 64;
  EXPECT_EQ(tuned_scratch_bytes(config, 512), kGiB);
  EXPECT_EQ(tuned_scratch_bytes(config, 4096), 2 * kTokenBytes * 4096);
  EXPECT_EQ(tuned_scratch_bytes(config, 16384), 4 * kGiB);
}

TEST(ChooseContextTest, TakesWhatIsAskedIfItFits) { EXPECT_EQ(test::must(choose(128, 1024 + 12 * 128)), 128); }

TEST(ChooseContextTest, WithoutAskingTakesWhatModelAndMemoryAllow) {
  EXPECT_EQ(test::must(choose(0, 1024 + 12 * 200)), 192);
  EXPECT_EQ(test::must(choose(0, 1 << 20)), 1000);
}

TEST(ChooseContextTest, NamesTheLongestContextThatFits) {
  const auto context = choose(128, 1024 + 12 * 128 - 1);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_NE(context.error().message.find("the longest context that fits is --max-model-len 64"), std::string::npos)
      << context.error().message;
}

TEST(ChooseContextTest, NamesTheDeviceThatLacksTheMemory) {
  const auto context = choose_context(
      kSmallPlan,
      {.asked_tokens = 128, .max_position = 1000, .available_bytes = 1024 + 12 * 70, .where = " on NVIDIA H100"});
  ASSERT_FALSE(context.ok());
  EXPECT_NE(context.error().message.find("available on NVIDIA H100; the longest context that fits is"),
            std::string::npos)
      << context.error().message;
}

TEST(ChooseContextTest, SaysWhenNothingFits) {
  for (const int64_t asked : {0, 64}) {
    const auto context = choose(asked, 500);
    ASSERT_FALSE(context.ok());
    EXPECT_EQ(context.error().kind, ErrorKind::kOutOfMemory);
    EXPECT_NE(context.error().message.find("available, whatever the context"), std::string::npos)
        << context.error().message;
  }
}

TEST(ChooseContextTest, KnowsCachesThatDoNotGrow) {
  const MemoryPlan windows{.weights_bytes = 1000, .sequence_bytes = 100, .workspace_bytes = 24};
  EXPECT_EQ(test::must(choose_context(windows, {.max_position = 1000, .available_bytes = 1125})), 1000);
  EXPECT_FALSE(choose_context(windows, {.max_position = 1000, .available_bytes = 1124}).ok());
}

TEST(ChoosePrefixBytesTest, TakesAQuarterOfWhatIsLeftWhereSequencesCannotSharePages) {
  EXPECT_EQ(choose_prefix_bytes(kSmallPlan, {.available_bytes = 1 << 20}), 0);
  MemoryPlan plan = kSmallPlan;
  plan.block_bytes = 100;
  EXPECT_EQ(choose_prefix_bytes(plan, {.available_bytes = 1024 + 4 * 500}), 500);
  EXPECT_EQ(choose_prefix_bytes(plan, {.asked_tokens = 64, .available_bytes = 1024 + 12 * 64 + 4 * 500}), 500);
  EXPECT_EQ(choose_prefix_bytes(plan, {.asked_tokens = 64, .available_bytes = 1024}), 0);
  EXPECT_EQ(choose_prefix_bytes(plan, {.available_bytes = int64_t{1} << 40}), int64_t{4} << 30);
  plan.prefix_bytes = 500;  // and is counted
  EXPECT_EQ(test::must(choose_context(plan, {.max_position = 1000, .available_bytes = 1524 + 12 * 64})), 64);
  const auto context = choose_context(plan, {.max_position = 1000, .available_bytes = 1524});
  ASSERT_FALSE(context.ok());
  EXPECT_NE(context.error().message.find("for cached prefixes (--prefix-memory)"), std::string::npos)
      << context.error().message;
}

TEST(ChooseContextTest, RefusesMoreThanTheModelHas) {
  const auto context = choose(1001, 1 << 20);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.error().kind, ErrorKind::kUsage);
}

}  // namespace
}  // namespace levin
