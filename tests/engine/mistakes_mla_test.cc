// Mistakes that other implementations of DeepSeek-V3.2 and GLM-5 made (model_spec.md 9), made here on purpose, one row
// each: every one must move an output far beyond the tolerance that the right computation keeps, or be refused by name,
// or else no test would notice it. Those inside one op have their rows in that op's test: 19 (hadamard without its
// scale) in quantize_test.cc, 22 (groups masked with 0) in route_experts_test.cc, 30 (top-k that drops candidates) in
// select_topk_test.cc.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "arch/deepseek_v3/weights.h"
#include "arch/load_config.h"
#include "engine/loaded_model.h"
#include "engine/oracle.h"
#include "engine/trace.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

constexpr double kRight = 2e-5;    // what a right implementation keeps
constexpr double kNoticed = 1e-4;  // what a mistake must exceed

TraceOptions prompt_of(const Oracle& oracle) {
  const std::vector<int64_t> ids = oracle.values<int64_t>("input_ids");
  return {.ids = {ids.begin(), ids.end()}};
}

// How far the logits of the prompt are from the oracle's.
double error_of(const Model& model, const Oracle& oracle) {
  const TraceOptions options = prompt_of(oracle);
  Runner runner(model, runner_options(trace_cache_tokens(options)));
  return relative_error(must(trace(runner, options)).logits, oracle.values<float>("logits"));
}

double error_with(const std::string& fixture, const ModelChoices& choices) {
  return error_of(*load_fixture(fixture, choices), Oracle(fixture));
}

// ---- in the trunk: one way to be wrong ---------------------------------------------------------------------------

struct Mistake {
  int number;  // of model_spec.md 9; 0: without one
  const char* fixture;
  const char* what;
  ModelChoices choices;
};
void PrintTo(const Mistake& m, std::ostream* out) { *out << m.number << ": " << m.what; }

void every_indexer(ModelWeights& w, const std::function<void(IndexerWeights&)>& change) {
  for (LayerWeights& layer : mla::own(w).layers) {
    if (layer.indexer) change(*layer.indexer);
  }
}

void every_router(ModelWeights& w, const std::function<void(MoeWeights&)>& change) {
  for (LayerWeights& layer : mla::own(w).layers) {
    if (layer.moe) change(*layer.moe);
  }
}

void zero(Vector& v) { std::fill_n(v.view.data<float>(), v.view.n_elements(), 0.0f); }

const Mistake kMistakes[] = {
    {1,
     "v32-odd",
     "V3.2's indexer rotates neighbours",
     {.change_config = [](ModelConfig& c) { c.index_rope_pairing = ops::RopePairing::kInterleaved; }}},
    {2,
     "glm-shared",
     "GLM's indexer rotates halves",
     {.change_config = [](ModelConfig& c) { c.index_rope_pairing = ops::RopePairing::kHalfSplit; }}},
    {3,
     "glm-pattern",
     "GLM's attention rotates halves",
     {.change_config = [](ModelConfig& c) { c.rope_pairing = ops::RopePairing::kHalfSplit; }}},
    {3,
     "v32-odd",
     "V3.2's attention rotates halves",
     {.change_config = [](ModelConfig& c) { c.rope_pairing = ops::RopePairing::kHalfSplit; }}},
    {5,
     "glm-shared",
     "theta 10000 for want of rope_parameters",
     {.change_config = [](ModelConfig& c) { c.rope_theta = 10000; }}},
    {6,
     "v32-odd",
     "YaRN's gain left out of the softmax scale",
     {.change_config = [](ModelConfig& c) { c.yarn->mscale_all_dim = 0; }}},
    {15,
     "glm-shared",
     "the router's bias not loaded",
     {.change_weights = [](ModelWeights& w) { every_router(w, [](MoeWeights& m) { zero(m.bias); }); }}},
    {16,
     "v32-odd",
     "the router's input in BF16",
     {.change_weights =
          [](ModelWeights& w) { every_router(w, [](MoeWeights& m) { m.gate.input = ops::Operand::kBF16; }); }}},
    {20,
     "glm-shared",
     "the indexer's head weights from a BF16 input",
     {.change_weights =
          [](ModelWeights& w) {
            every_indexer(w, [](IndexerWeights& i) { i.head_weights.input = ops::Operand::kBF16; });
          }}},
    {21,
     "glm-shared",
     "the bias of the indexer's key norm dropped",
     {.change_weights = [](ModelWeights& w) { every_indexer(w, [](IndexerWeights& i) { zero(i.k_norm_bias); }); }}},
    {21,
     "v32-odd",
     "the same in V3.2",
     {.change_weights = [](ModelWeights& w) { every_indexer(w, [](IndexerWeights& i) { zero(i.k_norm_bias); }); }}},
    {0,
     "v32-shared",
     "V3.2 that shares top-k indices rotates its indexer as GLM does",
     {.change_config = [](ModelConfig& c) { c.index_rope_pairing = ops::RopePairing::kInterleaved; }}},
};

class MlaMistakesTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(MlaMistakesTest, AreNoticed) { EXPECT_GE(error_with(GetParam().fixture, GetParam().choices), kNoticed); }

INSTANTIATE_TEST_SUITE_P(Mla, MlaMistakesTest, ::testing::ValuesIn(kMistakes),
                         [](const auto& row) { return fmt::format("M{}_{}", row.param.number, row.index); });

TEST(MlaMistakesTest, WithoutOneTheOracleIsMet) {
  for (const char* fixture : {"v32-odd", "v32-shared", "glm-shared", "glm-pattern", "glm-nvfp4"})
    EXPECT_LE(error_with(fixture, {}), kRight);
}

// ---- in the schedule of indexers: read otherwise than index_topk_freq 3 without an offset means ------------------------

struct WrongSchedule {
  const char* what;
  const char* pattern;  // the fixture has indexers in all six layers
};
void PrintTo(const WrongSchedule& m, std::ostream* out) { *out << m.what; }

const WrongSchedule kWrongSchedules[] = {
    {"layers that share select for themselves, with the unused indexers of the file", "FFFFFF"},
    {"offset 1 where none is given", "FSSFSS"},
    {"offset 3 where none is given", "FFFSSF"},
    {"layer 1 shares as well", "FSSSFS"},
    {"the top-k indices of layer 0 in every other", "FSSSSS"},
    {"layer 4 takes the top-k indices of layer 1", "FFSSSS"},
    {"layer 5 selects for itself", "FFSSFF"},
};

class WrongScheduleTest : public ::testing::TestWithParam<WrongSchedule> {};

double error_with_pattern(const char* pattern) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-shared");
  model.erase_config("index_topk_freq");
  model.set_config("index_topk_pattern", pattern);
  return error_of(*load_model(model.write()), Oracle("v32-shared"));
}

TEST_P(WrongScheduleTest, IsNoticed) { EXPECT_GE(error_with_pattern(GetParam().pattern), kNoticed); }

INSTANTIATE_TEST_SUITE_P(Mla, WrongScheduleTest, ::testing::ValuesIn(kWrongSchedules),
                         [](const auto& row) { return std::string(row.param.pattern); });

// The same schedule in letters, with and without the MTP layer's own.
TEST(RightSchedule, IsTheOraclesInAnySpelling) {
  for (const char* pattern : {"FFSSFS", "FFSSFSF"}) EXPECT_LE(error_with_pattern(pattern), kRight) << pattern;
}

// ---- in reading NVFP4: a file whose tensors are what a mistaken reader would take them for ------------------------------

struct WrongReading {
  const char* name;
  std::function<void(test::DrawnTensor&)> spoil;  // of every expert's tensors
};
void PrintTo(const WrongReading& m, std::ostream* out) { *out << m.name; }

void change_factor(test::DrawnTensor& tensor, const std::function<float(float)>& change) {
  if (!tensor.name.ends_with(".weight_scale_2")) return;
  float value;
  std::memcpy(&value, tensor.bytes.data(), sizeof(value));
  value = change(value);
  std::memcpy(tensor.bytes.data(), &value, sizeof(value));
}

const WrongReading kWrongReadings[] = {
    {"NibblesSwapped",
     [](test::DrawnTensor& t) {
       if (t.dtype != io::StoredDtype::kU8) return;
       for (std::byte& pair : t.bytes) pair = pair << 4 | pair >> 4;
     }},
    {"FactorLeftOut", [](test::DrawnTensor& t) { change_factor(t, [](float) { return 1.0f; }); }},
    {"FactorDivides", [](test::DrawnTensor& t) { change_factor(t, [](float f) { return 1 / f; }); }},
    {"ScalesByColumn",  // [N, G] read as [G, N]
     [](test::DrawnTensor& t) {
       if (!t.name.ends_with(".weight_scale")) return;
       const std::vector<std::byte> from = t.bytes;
       const int64_t n = t.shape[0], n_groups = t.shape[1];
       for (int64_t i = 0; i < n * n_groups; ++i)
         t.bytes[static_cast<size_t>(i)] = from[static_cast<size_t>(i % n_groups * n + i / n_groups)];
     }},
    {"ScaleOfTheGroupBefore",
     [](test::DrawnTensor& t) {
       if (t.name.ends_with(".weight_scale")) std::rotate(t.bytes.begin(), t.bytes.begin() + 1, t.bytes.end());
     }},
    {"UpWithAnotherFactor",
     [](test::DrawnTensor& t) {
       if (t.name.find(".up_proj.") != std::string::npos) change_factor(t, [](float f) { return 2 * f; });
     }},
};

class WrongReadingTest : public ::testing::TestWithParam<WrongReading> {};

TEST_P(WrongReadingTest, IsNoticed) {
  TempCheckpoint model = TempCheckpoint::from_fixture("glm-nvfp4");
  for (const std::string& name : model.tensor_names()) GetParam().spoil(model.tensor(name));
  EXPECT_GE(error_of(*load_model(model.write()), Oracle("glm-nvfp4")), kNoticed);
}

INSTANTIATE_TEST_SUITE_P(Nvfp4, WrongReadingTest, ::testing::ValuesIn(kWrongReadings),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- in the files: refused by name -------------------------------------------------------------------------------

struct Refused {
  int number;
  const char* fixture;
  const char* what;
  std::function<void(TempCheckpoint&)> spoil;
  const char* message;  // a part of it; empty: all is well
};
void PrintTo(const Refused& m, std::ostream* out) { *out << m.number << ": " << m.what; }

const Refused kRefused[] = {
    {4, "glm-shared", "head_dim taken for the rotated width",
     [](TempCheckpoint& m) { m.set_config("qk_rope_head_dim", 32), m.set_config("qk_head_dim", 24 + 32); },
     "model.layers.0.self_attn.kv_a_proj_with_mqa.weight: expected"},
    {4, "glm-shared", "head_dim means nothing", [](TempCheckpoint& m) { m.set_config("head_dim", 192); }, ""},
    {5, "glm-shared", "no rope_parameters", [](TempCheckpoint& m) { m.erase_config("rope_parameters"); },
     "rope_theta is missing, also from rope_parameters"},
    {27, "glm-shared", "modules_to_not_convert names what is not there",
     [](TempCheckpoint& m) {
       m.set_config("quantization_config", io::JsonObject{{"quant_method", "fp8"},
                                                          {"weight_block_size", io::JsonArray{128, 128}},
                                                          {"modules_to_not_convert",
                                                           io::JsonArray{"model.layers.0.self_attn.indexers_proj"}}});
     },
     ""},
    {0, "glm-shared", "the sharing schedule dropped: every layer wants an indexer",
     [](TempCheckpoint& m) { m.erase_config("index_topk_freq"); },
     "model.layers.3.self_attn.indexer.wq_b.weight: expected"},
    {0, "v32-shared", "the same in V3.2, from whose file the unused indexers were taken",
     [](TempCheckpoint& m) {
       for (const std::string& name : m.tensor_names()) {
         if (name.starts_with("model.layers.3.self_attn.indexer.")) m.remove_tensor(name);
       }
       m.erase_config("index_topk_freq");
     },
     "model.layers.3.self_attn.indexer.wq_b.weight: expected"},
    {0, "v32-shared", "those indexers may be there or not",
     [](TempCheckpoint& m) {
       for (const std::string& name : m.tensor_names()) {
         if (name.starts_with("model.layers.3.self_attn.indexer.")) m.remove_tensor(name);
       }
     },
     ""},
    {0, "v32-shared", "no other tensor is let through with them",
     [](TempCheckpoint& m) {
       test::DrawnTensor copy = m.tensor("model.layers.3.self_attn.indexer.wk.weight");
       copy.name = "model.layers.3.self_attn.indexer.wz.weight";
       m.add_tensor(copy);
     },
     "model.layers.3.self_attn.indexer.wz.weight: expected no such tensor"},
    {0, "v32-shared", "the MTP layer without an indexer of its own",
     [](TempCheckpoint& m) { m.remove_tensor("model.layers.6.self_attn.indexer.wk.weight"); },
     "model.layers.6.self_attn.indexer.wk.weight: expected"},
    {0, "v32-shared", "a frequency next to a list that says otherwise",
     [](TempCheckpoint& m) { m.set_config("index_topk_pattern", "FFFFFF"); },
     "index_topk_pattern makes layer 2 \"full\", and index_topk_freq makes it \"shared\""},
    {0, "v32-shared", "an offset under which layer 0 has nothing to share",
     [](TempCheckpoint& m) { m.set_config("index_skip_topk_offset", 0); }, "index_skip_topk_offset is 0"},
};

class MlaRefusedTest : public ::testing::TestWithParam<Refused> {};

TEST_P(MlaRefusedTest, IsNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture(GetParam().fixture);
  GetParam().spoil(model);
  const std::string folder = model.write().string();
  const Status status = [&]() -> Status {
    LEVIN_ASSIGN(const ParsedConfig parsed, load_model_config(folder));
    LEVIN_ASSIGN(const io::Checkpoint checkpoint, io::Checkpoint::open(folder));
    return check_weights(parsed.config, checkpoint);
  }();
  const std::string message = GetParam().message;
  ASSERT_EQ(status.ok(), message.empty());
  if (status.ok()) return;
  EXPECT_NE(status.error().message.find(message), std::string::npos) << status.error().message;
}

INSTANTIATE_TEST_SUITE_P(Mla, MlaRefusedTest, ::testing::ValuesIn(kRefused),
                         [](const auto& row) { return fmt::format("M{}_{}", row.param.number, row.index); });

// ---- 23, 24 and 25: what the MTP layer is fed with ---------------------------------------------------------------

struct Feeding {
  bool shifted = true;           // token i + 1 with the hidden state of i
  bool trunk_topk = false;       // the last selection of the trunk instead of the layer's own
  bool before_its_norm = false;  // the second draft continues from the state before the head's norm
  bool selects_anew = false;     // the second draft selects for itself
  bool earlier_row = false;      // it takes the top-k indices of a row before the last verified one
  bool joins_itself = false;     // its own position stands in its set
};

struct DraftErrors {
  double first = 0;   // of draft1.logits
  double second = 0;  // of the second row of draft.logits
};

template <class T>
std::vector<T> copy_of(View rows) {
  return std::vector<T>(rows.data<T>(), rows.data<T>() + rows.n_elements());
}

DraftErrors drafts_with(const std::string& fixture, const Feeding& feeding) {
  const Oracle oracle(fixture);
  const std::unique_ptr<Model> model = load_fixture(fixture);
  std::vector<int32_t> ids = prompt_of(oracle).ids;
  const int64_t n = std::ssize(ids), n_vocab = model->config().n_vocab;
  ids.push_back(static_cast<int32_t>(oracle.values<int64_t>("greedy_ids").front()));
  ids.push_back(static_cast<int32_t>(oracle.values<int64_t>("draft.tokens").front()));
  Runner runner(*model, runner_options(n + 2));
  SequencePages pages(runner.pools());
  must(pages.grow(n + 2));
  const auto chunk = [&](int64_t begin, int64_t count, int64_t position) {
    return SequenceChunk{.tokens = std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                         .first_position = static_cast<int32_t>(position),
                         .pages = &pages};
  };
  std::vector<int32_t> trunk_topk;  // [T, K] of the trunk's last layer
  std::vector<float> before_norm;   // [T, D]
  const Probe of_trunk{.on_layer_output = {}, .on_topk = [&](int, View topk) { trunk_topk = copy_of<int32_t>(topk); }};
  const Probe of_mtp{.on_layer_output = [&](int, View x) { before_norm = copy_of<float>(x); }, .on_topk = {}};
  const SequenceChunk prompt = chunk(0, n, 0);
  const View state = runner.trunk({&prompt, 1}, &of_trunk).state;
  for (int32_t& slot : trunk_topk) slot += slot >= 0 ? 1 : 0;  // the MTP layer's slots are one further
  const SequenceChunk pairs = chunk(feeding.shifted ? 1 : 0, n, 0);
  MtpRows from{.state = state};
  if (feeding.trunk_topk) from.topk = View::of(trunk_topk.data(), {n, model->config().n_topk});
  const ForwardRows first = runner.mtp({&pairs, 1}, from, std::nullopt, &of_mtp);
  const View first_logits = runner.logits(first.hidden);

  const SequenceChunk next = chunk(n + 1, 1, n);
  const View continued =
      feeding.before_its_norm ? View::of(before_norm.data(), {n, model->config().d_model}) : first.state;
  View topk = first.topk.slice_first(feeding.earlier_row ? n - 2 : n - 1, 1);
  if (feeding.joins_itself) topk.row<int32_t>(0)[topk.dim(1) - 1] = static_cast<int32_t>(n + 1);
  const ForwardRows second =
      runner.mtp({&next, 1}, {.state = continued.slice_first(n - 1, 1), .topk = feeding.selects_anew ? View() : topk});
  const View second_logits = runner.logits(second.hidden);
  const std::vector<float> chain = oracle.values<float>("draft.logits");
  return {
      .first = relative_error(copy_of<float>(first_logits), oracle.values<float>("draft1.logits")),
      .second = relative_error(copy_of<float>(second_logits),
                               std::span(chain).subspan(static_cast<size_t>(n_vocab), static_cast<size_t>(n_vocab)))};
}

class MlaMtpMistakes : public ::testing::TestWithParam<std::string> {
 protected:
  static DraftErrors errors_with(const Feeding& feeding) { return drafts_with(GetParam(), feeding); }
};

TEST_P(MlaMtpMistakes, WithoutOneTheOracleIsMet) {
  const DraftErrors errors = errors_with({});
  EXPECT_LE(errors.first, kRight);
  EXPECT_LE(errors.second, kRight);
}
TEST_P(MlaMtpMistakes, M23StatesBeforeTheNormAreNoticed) {
  EXPECT_GE(errors_with({.before_its_norm = true}).second, kNoticed);
}
TEST_P(MlaMtpMistakes, M24TheTrunksPicksAreNoticed) { EXPECT_GE(errors_with({.trunk_topk = true}).first, kNoticed); }
TEST_P(MlaMtpMistakes, M25TokensThatAreNotShiftedAreNoticed) {
  EXPECT_GE(errors_with({.shifted = false}).first, kNoticed);
}
TEST_P(MlaMtpMistakes, PicksMadeAnewAreNoticed) { EXPECT_GE(errors_with({.selects_anew = true}).second, kNoticed); }
TEST_P(MlaMtpMistakes, PicksOfAnEarlierRowAreNoticed) {
  EXPECT_GE(errors_with({.earlier_row = true}).second, kNoticed);
}
TEST_P(MlaMtpMistakes, ADraftThatAttendsToItselfIsNoticed) {
  EXPECT_GE(errors_with({.joins_itself = true}).second, kNoticed);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MlaMtpMistakes, ::testing::Values("glm-shared", "v32-shared"),
                         [](const auto& fixture) { return test_name(fixture.param); });

}  // namespace
}  // namespace levin::test
