// A family is one folder and one line of a registry: this one is added from outside, and loads, describes itself, runs
// and answers as the built-in ones do.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "arch/load_config.h"
#include "arch/registry.h"
#include "arch/toy/architecture.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "model/gguf_export.h"
#include "model/memory_plan.h"
#include "model/tensor_source.h"
#include "model/weight_store.h"
#include "support/must.h"
#include "support/temp_dir.h"
#include "text/tokenizer.h"

namespace levin::test {
namespace {

constexpr const char* kConfig = R"({
  "model_type": "toy", "architectures": ["ToyForCausalLM"], "vocab_size": 50, "hidden_size": 24,
  "num_hidden_layers": 3, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000,
  "num_attention_heads": 3, "head_dim": 10, "ffn_width": 40, "parallel_residual": false, "eos_token_id": 1})";

const Registry& with_toy() {
  static const Registry registry = Registry::built_in().with(kToy);
  return registry;
}

ModelConfig toy_config() { return must(parse_model_config(kConfig, "config.json", with_toy())).config; }

// ---- the equations once more, in double over row-major weights -------------------------------------------------------

using Row = std::vector<double>;

class PlainToy {
 public:
  explicit PlainToy(const ModelConfig& config) : c_(config), frequencies_(config.rope_frequencies()) {
    const TensorSource source = dummy_tensors(config);
    for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
      must(source.read(row, [&](const io::StoredTensor& tensor, const StoredScales* scales) -> Status {
        weights_[row.name] = must(dequantise(tensor, scales));
        return {};
      }));
    }
  }

  // Logits after every token.
  std::vector<Row> logits(const std::vector<int32_t>& ids) const {
    std::vector<Row> x;
    for (const int32_t id : ids) x.push_back(row_of("embed.weight", id));
    for (int layer = 0; layer < c_.n_layers; ++layer) forward(fmt::format("blocks.{}.", layer), x);
    std::vector<Row> out;
    for (const Row& row : x) out.push_back(times("head.weight", normed("norm.weight", row)));
    return out;
  }

 private:
  Row row_of(const std::string& name, int64_t i) const {
    const std::vector<float>& w = weights_.at(name);
    return {w.begin() + i * c_.d_model, w.begin() + (i + 1) * c_.d_model};
  }

  Row times(const std::string& name, const Row& x) const {
    const std::vector<float>& w = weights_.at(name);
    Row out(w.size() / x.size());
    for (size_t i = 0; i < w.size(); ++i) out[i / x.size()] += double{w[i]} * x[i % x.size()];
    return out;
  }

  Row normed(const std::string& name, const Row& x) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + double{c_.norm_eps});
    Row out;
    for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * factor * double{weights_.at(name)[i]});
    return out;
  }

  // Pairs (2j, 2j + 1) of the last Dr columns.
  void rotate(double* head, size_t position) const {
    for (size_t j = 0; j < frequencies_.size(); ++j) {
      double* pair = head + c_.d_nope + 2 * static_cast<int64_t>(j);
      const double angle = static_cast<double>(position) * double{frequencies_[j]};
      const double a = pair[0], b = pair[1];
      pair[0] = a * std::cos(angle) - b * std::sin(angle);
      pair[1] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  Row attention(const double* q, const std::vector<Row>& kv, size_t n_visible) const {
    const auto d = static_cast<size_t>(c_.d_head());
    Row out(d);
    double sum = 0;
    for (size_t s = 0; s < n_visible; ++s) {
      double dot = 0;
      for (size_t i = 0; i < d; ++i) dot += q[i] * kv[s][i];
      const double p = std::exp(dot / std::sqrt(static_cast<double>(d)));
      for (size_t i = 0; i < d; ++i) out[i] += p * kv[s][i];
      sum += p;
    }
    for (double& value : out) value /= sum;
    return out;
  }

  void forward(const std::string& prefix, std::vector<Row>& x) const {
    std::vector<Row> kv;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row h = normed(prefix + "norm.weight", x[t]);
      rotate(kv.emplace_back(times(prefix + "kv.weight", h)).data(), t);
      Row q = times(prefix + "q.weight", h), o;
      for (int64_t head = 0; head < c_.n_heads; ++head) {
        double* q_head = q.data() + head * c_.d_head();
        rotate(q_head, t);
        const Row out = attention(q_head, kv, t + 1);
        o.insert(o.end(), out.begin(), out.end());
      }
      add(x[t], times(prefix + "out.weight", o));
      const Row f = normed(prefix + "ffn_norm.weight", x[t]);
      Row gate = times(prefix + "gate.weight", f);
      const Row up = times(prefix + "up.weight", f);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(x[t], times(prefix + "down.weight", gate));
    }
  }

  static void add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const ModelConfig& c_;
  const std::vector<float> frequencies_;
  std::map<std::string, std::vector<float>> weights_;
};

// ---- tests -----------------------------------------------------------------------------------------------------------

TEST(ToyFamily, IsKnownToTheRegistryThatItWasAddedToAlone) {
  EXPECT_EQ(toy_config().family, &kToy);
  EXPECT_EQ(with_toy().families().size(), Registry::built_in().families().size() + 1);
  const auto refused = parse_model_config(kConfig, "config.json");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(refused.error().message.find("model_type is \"toy\", a model this program does not know"),
            std::string::npos)
      << refused.error().message;
}

TEST(ToyFamily, ItsConfigIsItsOwn) {
  ModelConfig config = toy_config();
  EXPECT_EQ(config.own_config<ToyConfig>().d_ffn, 40);
  EXPECT_FALSE(config.own_config<ToyConfig>().parallel_residual);
  const ModelConfig copy = config;
  config.own.emplace<ToyConfig>();
  EXPECT_EQ(copy.own_config<ToyConfig>().d_ffn, 40);
  EXPECT_EQ(config.own_config<ToyConfig>().d_ffn, 0);
  const auto broken = parse_model_config(
      R"({"model_type": "toy", "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "rms_norm_eps": 1e-6,
          "max_position_embeddings": 256, "num_attention_heads": 3, "head_dim": 10, "ffn_width": 0})",
      "config.json", with_toy());
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("ffn_width"), std::string::npos) << broken.error().message;
}

TEST(ToyFamily, WhatItLacksIsRefusedByName) {
  const ModelConfig config = toy_config();
  const auto gguf = export_gguf(config, dummy_tensors(config), {});
  ASSERT_FALSE(gguf.ok());
  EXPECT_EQ(gguf.error().kind, ErrorKind::kUsage);
  EXPECT_NE(gguf.error().message.find("Toy (model_type \"toy\") cannot be written as GGUF"), std::string::npos)
      << gguf.error().message;
  const text::Tokenizer tokenizer = must(text::Tokenizer::load(demo_model_folder()));
  const auto chat = load_chat_format(*config.family, demo_model_folder(), tokenizer);
  ASSERT_FALSE(chat.ok());
  EXPECT_NE(chat.error().message.find("Toy (model_type \"toy\") has no chat format"), std::string::npos)
      << chat.error().message;
}

TEST(ToyFamily, LogitsAreThoseOfItsEquations) {
  const ModelConfig config = toy_config();
  const Numerics numerics = numerics_of_family(must(make_numerics(NumericsMode::kReference, "auto")), kToy);
  ThreadPool pool(2);
  const std::unique_ptr<Model> model = make_model(config, numerics, must(dummy_weights(config, numerics, pool)));
  std::vector<int32_t> ids;
  for (int i = 0; i < 70; ++i) ids.push_back((i * i + 3 * i + 2) % 50);  // more than a page of rows

  Runner runner(*model, runner_options(std::ssize(ids)));
  SequencePages pages(runner.pools());
  must(pages.grow(std::ssize(ids)));
  const SequenceChunk chunk{.tokens = ids, .first_position = 0, .pages = &pages};
  const View logits = runner.logits(runner.trunk({&chunk, 1}).hidden);  // [T, V]

  // The longest sum has 40 terms, in three layers one after the other; f32 rounds each to 6e-8, and what is compared is
  // of size 1. So 1e-5 is far above what rounding makes, and a wrong column moves a logit by 1e-2 and more.
  const std::vector<Row> expected = PlainToy(config).logits(ids);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t v = 0; v < expected[t].size(); ++v) {
      ASSERT_NEAR(logits.row<float>(static_cast<int64_t>(t))[v], expected[t][v], 1e-5) << "token " << t << ", id " << v;
    }
  }
}

TEST(ToyFamily, TheEngineLoadsItAndAnswersTheSameInAnyChunking) {
  const TempDir folder;
  std::ofstream(folder / "config.json") << kConfig;
  const auto answer = [&](int64_t chunk_tokens) {
    const EngineOptions options{.model_folder = folder.path().string(),
                                .registry = &with_toy(),
                                .load_format = LoadFormat::kDummy,
                                .numerics = NumericsMode::kReference,
                                .chunk_tokens = chunk_tokens};
    const std::unique_ptr<Engine> engine = must(Engine::load(options, {}));
    EXPECT_NE(engine->describe().find("model     Toy, 3 layers"), std::string::npos) << engine->describe();
    std::vector<int32_t> ids;
    for (const TokenEvent& event :
         must(engine->generate({.prompt = {2, 3, 5, 7, 11, 13, 17, 19}, .max_tokens = 12})).tokens)
      ids.push_back(event.token);
    return ids;
  };
  const std::vector<int32_t> whole = answer(512);
  EXPECT_FALSE(whole.empty());
  EXPECT_EQ(whole, answer(3));
}

TEST(ToyFamily, ThePlanCountsItsWeightsAndRows) {
  const ModelConfig config = toy_config();
  const Numerics numerics = must(make_numerics(NumericsMode::kReference, "auto"));
  const MemoryPlan plan = plan_memory(config, numerics, nullptr, {});
  const int64_t layer = 24 + 30 * 24 + 10 * 24 + 24 * 30 + 24 + 3 * 40 * 24;
  EXPECT_EQ(plan.n_parameters, 2 * 50 * 24 + 24 + 3 * layer);
  EXPECT_EQ(plan.latent_bytes_per_token, 3 * key_value_format(CacheDType::kF32, 10, 8).row_bytes);
}

}  // namespace
}  // namespace levin::test
