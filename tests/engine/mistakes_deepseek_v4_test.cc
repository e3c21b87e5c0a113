// Mistakes that other implementations of DeepSeek-V4 made (model_spec.md 9), made here on purpose, one row each: every one
// must move the outputs far beyond the tolerance that the right computation keeps, or else no test would notice it.
// Those inside one op have their rows in that op's test: 12 (write weights with eps, rows before columns) in
// streams_test.cc, 17 (softplus that underflows) in route_experts_test.cc, 19 (hadamard without its scale) in
// quantize_test.cc, 30 (top-k that drops candidates) in select_topk_test.cc.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/stream_layer.h"
#include "arch/deepseek_v4/streams.h"
#include "arch/deepseek_v4/weights.h"
#include "arch/load_config.h"
#include "engine/loaded_model.h"
#include "engine/oracle.h"

namespace levin::test {
namespace {

constexpr double kRight = 2e-5;    // what a right implementation keeps
constexpr double kNoticed = 1e-4;  // what a mistake must exceed
const char* const kFixture = "v4-flash";

// One way to be wrong. Empty functions change nothing.
struct Mistake {
  int number;  // of model_spec.md 9
  const char* what;
  std::function<void(ModelConfig&)> config;
  std::function<void(const ModelConfig&, ModelWeights&)> weights;
  std::function<void(const ModelConfig&, Pass&, StepRotations&)> rotations;
};
void PrintTo(const Mistake& m, std::ostream* out) { *out << m.number << ": " << m.what; }

// The trunk of DeepSeek-V4 with rotations that may be wrong.
class MistakenModel final : public Model {
 public:
  MistakenModel(ModelConfig config, ModelWeights weights,
                std::function<void(const ModelConfig&, Pass&, StepRotations&)> change)
      : Model(std::move(config), Numerics{}, std::move(weights)), change_(std::move(change)) {}

  bool has_mtp() const override { return false; }
  int64_t d_state() const override { return config().n_streams * config().d_model; }

  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override {
    const ModelConfig& c = config();
    Pass p(ctx, numerics(), step, cache, probe);
    StepRotations r{.plain = p.rotation(step.positions, c.rope_frequencies()),
                    .compressed = p.rotation(step.positions, compressed_rope_frequencies(c))};
    r.plain_inverse = p.inverse(r.plain);
    r.compressed_inverse = p.inverse(r.compressed);
    for (const StepEntries& e : step.entries)
      r.entries.push_back(p.rotation(e.positions, compressed_rope_frequencies(c)));
    if (change_) change_(c, p, r);
    const View x = p.embed(weights().embed);
    const View streams = p.allocate(DType::kF32, {p.n_tokens(), c.n_streams, c.d_model});
    for (int64_t t = 0; t < p.n_tokens(); ++t) {
      for (int64_t i = 0; i < c.n_streams; ++i) std::copy_n(x.row<float>(t), c.d_model, streams.row<float>(t, i));
    }
    for (int layer = 0; layer < c.n_layers; ++layer) {
      StreamLayer{c, deepseek_v4::own(weights()).layers[static_cast<size_t>(layer)], r, layer}.forward(p, streams);
    }
    const View h = collapse_streams(p, c, deepseek_v4::own(weights()).head, streams);
    return {.hidden = p.rms_norm(h, weights().norm, c.norm_eps), .state = streams.reshaped({p.n_tokens(), d_state()})};
  }
  ForwardRows mtp(OpContext&, const Step&, const MtpInput&, const KvCache&, const Probe*) const override { return {}; }

 private:
  std::function<void(const ModelConfig&, Pass&, StepRotations&)> change_;
};

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
};

Loaded load() {
  const TempDir folder;
  must(materialise(fixture_folder(kFixture), folder.path()));
  Loaded out{.config = must(load_model_config(folder.path())).config};
  const io::Checkpoint checkpoint = must(io::Checkpoint::open(folder.path()));
  ThreadPool pool(1);
  std::vector<std::string> warnings;
  out.weights = must(load_weights(out.config, Numerics{}, checkpoint, pool, {}, &warnings));
  return out;
}

std::vector<int32_t> prompt_of(const Oracle& oracle) {
  const std::vector<int64_t> ids = oracle.values<int64_t>("input_ids");
  return {ids.begin(), ids.end()};
}

// How far the logits of the prompt are from the oracle's.
double error_with(const Mistake& mistake) {
  Loaded model = load();
  if (mistake.weights) mistake.weights(model.config, model.weights);
  if (mistake.config) mistake.config(model.config);
  const MistakenModel mistaken(std::move(model.config), std::move(model.weights), mistake.rotations);
  const Oracle oracle(kFixture);
  const std::vector<int32_t> ids = prompt_of(oracle);
  RunnerOptions options = runner_options(std::ssize(ids));
  options.n_step_tokens = std::ssize(ids);
  Runner runner(mistaken, options);
  SequencePages pages(runner.pools());
  must(pages.grow(std::ssize(ids)));
  const SequenceChunk chunk{.tokens = ids, .first_position = 0, .pages = &pages};
  const View logits = runner.logits(runner.trunk({&chunk, 1}).hidden);
  return relative_error(std::span(logits.data<float>(), static_cast<size_t>(logits.n_elements())),
                        oracle.values<float>("logits"));
}

// A matrix with other values in it: value(n, k) may look at the old ones.
void edit(Matrix& m, const std::function<float(int64_t n, int64_t k)>& value) {
  std::vector<float> values;
  for (int64_t n = 0; n < m.n(); ++n) {
    for (int64_t k = 0; k < m.k(); ++k) values.push_back(value(n, k));
  }
  m = pack_matrix({.data = values.data(), .dtype = DType::kF32, .n = m.n(), .k = m.k()});
}
float value_of(const Matrix& m, int64_t n, int64_t k) { return m.stored(n, k) * m.scale(n, k); }
void multiply(Matrix& m, float factor) {
  edit(m, [&](int64_t n, int64_t k) { return value_of(m, n, k) * factor; });
}

// An `up` that the limit never reaches, with the same product: powers of two are exact.
void unlimit(ops::FfnWeights& w) {
  multiply(w.up, 0x1p-20f);
  multiply(w.down, 0x1p20f);
}

// Column i of a head, where the rotated part pairs its halves instead of neighbours.
int64_t half_split(const ModelConfig& c, int64_t i) {
  const int64_t head = i / c.d_head() * c.d_head(), j = i % c.d_head() - c.d_nope;
  return j < 0 ? i : head + c.d_nope + (j % 2 == 0 ? j / 2 : c.d_rope / 2 + j / 2);
}

void scale_rotation(Rotation& r, float factor) {
  for (const View& v : {r.cos, r.sin}) {
    for (int64_t i = 0; i < v.n_elements(); ++i) v.data<float>()[i] *= factor;
  }
}

const Mistake kMistakes[] = {
    {6, "YaRN's mscale in the softmax scale",
     [](ModelConfig& c) {
       c.yarn = deepseek_v4::own(c).compressed_yarn;
       c.yarn->mscale_all_dim = 1;
     }},
    {6,
     "YaRN's mscale on cos and sin",
     {},
     {},
     [](const ModelConfig&, Pass&, StepRotations& r) { scale_rotation(r.compressed, 1.2773f); }},
    {7,
     "rotated halves instead of neighbours, in layers without compression",
     {},
     [](const ModelConfig& c, ModelWeights& w) {
       for (int layer = 0; layer < c.n_layers; ++layer) {
         if (deepseek_v4::own(c).compression[layer].kind != Compression::kNone) continue;
         V4AttentionWeights& a = deepseek_v4::own(w).layers[layer].attention;
         edit(a.q_up.w, [&](int64_t n, int64_t k) { return value_of(a.q_up.w, half_split(c, n), k); });
         edit(a.kv.w, [&](int64_t n, int64_t k) { return value_of(a.kv.w, half_split(c, n), k); });
         const std::vector<float> norm(a.kv_norm.view.data<float>(), a.kv_norm.view.data<float>() + c.d_head());
         for (int64_t i = 0; i < c.d_head(); ++i) a.kv_norm.view.data<float>()[i] = norm[half_split(c, i)];
         for (Matrix& m : a.out_down) {
           edit(m, [&](int64_t n, int64_t k) { return value_of(m, n, half_split(c, k)); });
         }
       }
     }},
    {8,
     "attention's output keeps its rotation",
     {},
     {},
     [](const ModelConfig&, Pass&, StepRotations& r) {
       for (Rotation* back : {&r.plain_inverse, &r.compressed_inverse}) {
         std::fill_n(back->cos.data<float>(), back->cos.n_elements(), 1.0f);
         std::fill_n(back->sin.data<float>(), back->sin.n_elements(), 0.0f);
       }
     }},
    {9,
     "entries rotated by their number instead of their first token's position",
     {},
     {},
     [](const ModelConfig& c, Pass& p, StepRotations& r) {
       r.entries.clear();
       for (const StepEntries& e : p.step().entries) {
         r.entries.push_back(p.rotation(e.slot, compressed_rope_frequencies(c)));
       }
     }},
    {10,
     "the long table in layers without compression",
     {},
     {},
     [](const ModelConfig&, Pass&, StepRotations& r) {
       r.plain = r.compressed, r.plain_inverse = r.compressed_inverse;
     }},
    {10,
     "the short table for window rows and queries of layers with compression",
     {},
     {},
     [](const ModelConfig&, Pass&, StepRotations& r) {
       r.compressed = r.plain, r.compressed_inverse = r.plain_inverse;
     }},
    {11,
     "the mixing matrix of the streams transposed",
     {},
     [](const ModelConfig& c, ModelWeights& w) {
       const int64_t m = c.n_streams;
       const auto transposed = [m](int64_t n) { return n < 2 * m ? n : 2 * m + (n - 2 * m) % m * m + (n - 2 * m) / m; };
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) {
         for (StreamMixWeights* s : {&layer.attention_streams, &layer.ffn_streams}) {
           edit(s->fn.w, [&](int64_t n, int64_t k) { return value_of(s->fn.w, transposed(n), k); });
           const std::vector<float> base(s->base.view.data<float>(), s->base.view.data<float>() + 2 * m + m * m);
           for (int64_t n = 0; n < std::ssize(base); ++n) s->base.view.data<float>()[n] = base[transposed(n)];
         }
       }
     }},
    {12,
     "write weights of the streams without their factor of 2",
     {},
     [](const ModelConfig&, ModelWeights& w) {
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) multiply(layer.attention.out_up.w, 0.5f);
     }},
    {12, "one Sinkhorn step", [](ModelConfig& c) { c.n_sinkhorn_steps = 1; }},
    {13,
     "no limit in the shared expert",
     {},
     [](const ModelConfig&, ModelWeights& w) {
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) unlimit(*layer.moe.shared);
     }},
    {14,
     "no limit in the routed experts",
     {},
     [](const ModelConfig&, ModelWeights& w) {
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) {
         for (ops::FfnWeights& expert : layer.moe.experts) unlimit(expert);
       }
     }},
    {15,
     "the router's bias not loaded",
     {},
     [](const ModelConfig&, ModelWeights& w) {
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) {
         if (!layer.moe.bias.view.empty())
           std::fill_n(layer.moe.bias.view.data<float>(), layer.moe.bias.view.dim(0), 0.0f);
       }
     }},
    {16,
     "the router's input in BF16",
     {},
     [](const ModelConfig&, ModelWeights& w) {
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) layer.moe.gate.input = ops::Operand::kBF16;
     }},
    {18,
     "experts by the hash of the next token id",
     {},
     [](const ModelConfig& c, ModelWeights& w) {
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) {
         if (layer.moe.hash_experts.empty()) continue;
         int32_t* table = layer.moe.hash_experts.data<int32_t>();
         std::rotate(table, table + c.n_active, table + layer.moe.hash_experts.n_elements());
       }
     }},
    {20,
     "the indexer's head weights from a BF16 input",
     {},
     [](const ModelConfig&, ModelWeights& w) {
       for (V4LayerWeights& layer : deepseek_v4::own(w).layers) {
         if (layer.attention.indexer) layer.attention.indexer->head_weights.input = ops::Operand::kBF16;
       }
     }},
    {29, "a default of the reference code for the long table's theta",
     [](ModelConfig& c) { deepseek_v4::own(c).compressed_rope_theta = 40000; }},
};

class MistakesTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(MistakesTest, AreNoticed) { EXPECT_GE(error_with(GetParam()), kNoticed); }

INSTANTIATE_TEST_SUITE_P(DeepseekV4, MistakesTest, ::testing::ValuesIn(kMistakes), [](const auto& row) {
  return "M" + std::to_string(row.param.number) + "_" + std::to_string(row.index);
});

TEST(MistakesTest, WithoutOneTheOracleIsMet) { EXPECT_LE(error_with({0, "none"}), kRight); }

// 25 and 26: what the MTP layer is fed with.
class MtpMistakesTest : public ::testing::Test {
 protected:
  // How far the first drafts are from the oracle's when the layer is given these tokens and states.
  double error_with(bool shifted, bool collapsed) {
    const Oracle oracle(kFixture);
    const std::unique_ptr<Model> model = load_fixture(kFixture);
    std::vector<int32_t> ids = prompt_of(oracle);
    const int64_t n = std::ssize(ids);
    ids.push_back(static_cast<int32_t>(oracle.values<int64_t>("greedy_ids").front()));
    RunnerOptions options = runner_options(n + 1);
    options.n_step_tokens = n;
    Runner runner(*model, options);
    SequencePages pages(runner.pools());
    must(pages.grow(n + 1));
    const SequenceChunk prompt{.tokens = std::span(ids).first(n), .first_position = 0, .pages = &pages};
    const ForwardRows rows = runner.trunk({&prompt, 1});
    const int64_t d_model = model->config().d_model;
    for (int64_t t = 0; collapsed && t < n; ++t) {
      for (int64_t i = 0; i < model->config().n_streams; ++i) {
        std::copy_n(rows.hidden.row<float>(t), d_model, rows.state.row<float>(t) + i * d_model);
      }
    }
    const SequenceChunk pairs{
        .tokens = std::span(ids).subspan(shifted ? 1 : 0, n), .first_position = 0, .pages = &pages};
    const View logits = runner.logits(runner.mtp({&pairs, 1}, {.state = rows.state}).hidden);
    return relative_error(std::span(logits.data<float>(), static_cast<size_t>(logits.n_elements())),
                          oracle.values<float>("draft1.logits"));
  }
};

TEST_F(MtpMistakesTest, WithoutOneTheOracleIsMet) { EXPECT_LE(error_with(true, false), kRight); }
TEST_F(MtpMistakesTest, TokensThatAreNotShiftedAreNoticed) { EXPECT_GE(error_with(false, false), kNoticed); }
TEST_F(MtpMistakesTest, CollapsedStreamsAreNoticed) { EXPECT_GE(error_with(true, true), kNoticed); }

// 28: state that cannot go back. Eight tokens are run, one stays, and the rest is run again: with rings that have no
// room for undone tokens the entries after it are others.
TEST(RollbackMistakesTest, StateWithoutRoomForUndoneTokensIsNoticed) {
  const Oracle oracle(kFixture);
  std::vector<int32_t> ids = prompt_of(oracle);
  ids.resize(80);
  const std::unique_ptr<Model> model = load_fixture(kFixture);
  std::vector<float> expected = oracle.values<float>("logits");
  expected.resize(ids.size() * static_cast<size_t>(model->config().n_vocab));
  const auto error_with = [&](int64_t n_undone) {
    RunnerOptions options = runner_options(std::ssize(ids));
    options.n_undone_tokens = n_undone;
    Runner runner(*model, options);
    SequencePages pages(runner.pools());
    must(pages.grow(std::ssize(ids)));
    std::vector<float> logits;
    for (int64_t begin = 0; begin < std::ssize(ids);) {
      std::vector<int32_t> tokens(ids.begin() + begin, ids.begin() + std::min<int64_t>(begin + 8, std::ssize(ids)));
      std::fill(tokens.begin() + 1, tokens.end(), 7);
      runner.begin_step();
      const SequenceChunk chunk{.tokens = tokens, .first_position = static_cast<int32_t>(begin), .pages = &pages};
      const View row = runner.logits(runner.trunk({&chunk, 1}).hidden.slice_first(0, 1));
      logits.insert(logits.end(), row.data<float>(), row.data<float>() + row.n_elements());
      ++begin;
    }
    return relative_error(logits, expected);
  };
  EXPECT_LE(error_with(7), kRight);
  EXPECT_GE(error_with(0), kNoticed);
}

}  // namespace
}  // namespace levin::test
