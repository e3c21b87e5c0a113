// Broken option sets, configs and checkpoints, one row each: the exit code and what the message must name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>

#include "apps/run_levin.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"
#include "tensor/cuda/probe.h"

namespace levin::test {
namespace {

using io::JsonArray;
using io::StoredDtype;
using Arguments = std::vector<std::string>;

void expect_refusal(const ProgramResult& result, int exit_code, const std::string& message) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_NE(result.err.find(message), std::string::npos) << "expected: " << message << "\nfound: " << result.err;
  EXPECT_NE(result.err.find("error: "), std::string::npos) << result.err;
}

// ---- option sets -------------------------------------------------------------------------------------------------

// In arguments, MODEL stands for a sound checkpoint, DIR for a folder with the files below, OUT for a file to write.
struct OptionRow {
  const char* name;
  Arguments arguments;
  int exit_code;
  const char* message;
};

void PrintTo(const OptionRow& row, std::ostream* out) { *out << row.name; }

const Arguments kTrace = {"trace", "MODEL", "--ids-file", "DIR/ids", "--out", "OUT"};

Arguments trace_with(const Arguments& more) {
  Arguments all = kTrace;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Arguments trace_ids(const std::string& file) { return {"trace", "MODEL", "--ids-file", "DIR/" + file, "--out", "OUT"}; }

const OptionRow kOptionRows[] = {
    {"NoCommand", {}, 2, "no command given"},
    {"UnknownCommand", {"inspekt"}, 2, "unknown command 'inspekt'; did you mean 'inspect'?"},
    {"StrangeCommand", {"frobnicate"}, 2, "unknown command 'frobnicate'\n"},
    {"OptionBeforeCommand", {"--threads", "2", "doctor"}, 2, "unknown option '--threads'"},
    {"UnknownOption", trace_with({"--thread", "2"}), 2, "unknown option '--thread'; did you mean '--threads'?"},
    {"UnknownOptionWithEquals", trace_with({"--numeric=fast"}), 2,
     "unknown option '--numeric'; did you mean '--numerics'?"},
    {"OptionOfAnotherCommand", {"doctor", "--prompt", "x"}, 2, "unknown option '--prompt'"},
    {"SecondModel", {"inspect", "MODEL", "MODEL"}, 2, "unexpected argument"},
    {"ValueMissing", trace_with({"--threads"}), 2, "error: --threads needs a value\n"},
    {"ValueOfShortNameMissing", {"run", "MODEL", "-p"}, 2, "error: --prompt needs a value\n"},
    {"ValueOfModelMissing", {"inspect", "--model"}, 2, "error: --model needs a value\n"},
    {"ThreadsZero", trace_with({"--threads", "0"}), 2, "--threads is '0', expected a whole number from 1 to 1024"},
    {"ThreadsNegative", trace_with({"--threads", "-1"}), 2, "--threads is '-1'"},
    {"ThreadsText", trace_with({"--threads", "two"}), 2, "--threads is 'two'"},
    {"ThreadsFraction", trace_with({"--threads=1.5"}), 2, "--threads is '1.5'"},
    {"ThreadsEmpty", trace_with({"--threads="}), 2, "--threads"},
    {"ThreadsHuge", trace_with({"--threads", "99999999999999999999"}), 2, "--threads is '99999999999999999999'"},
    {"ChunkZero", trace_with({"--chunk", "0"}), 2, "--chunk is '0', expected a whole number from 1 to 65536"},
    {"NumericsUnknown", trace_with({"--numerics", "exact"}), 2,
     "--numerics is 'exact', expected one of reference, official, fast"},
    {"NumericsMisspelt", trace_with({"--numerics", "ofical"}), 2, "did you mean 'official'?"},
    {"CacheUnknown", trace_with({"--kv-cache-dtype", "int4"}), 2,
     "--kv-cache-dtype is 'int4', expected one of auto, bf16, fp8"},
    {"CacheWithReference", trace_with({"--numerics", "reference", "--kv-cache-dtype", "fp8"}), 2,
     "--kv-cache-dtype fp8 works only with --numerics fast: reference has caches of f32"},
    {"DeviceUnknown", trace_with({"--device", "tpu"}), 2, "--device is 'tpu', expected one of cpu, cuda"},
    {"KernelsUnknown", trace_with({"--kernels", "fast"}), 2, "--kernels is 'fast', expected one of auto, plain"},
    {"GraphsUnknown", trace_with({"--graphs", "maybe"}), 2, "--graphs is 'maybe', expected one of on, off"},
    {"LoadFormatUnknown", trace_with({"--load-format", "gguf"}), 2,
     "--load-format is 'gguf', expected one of auto, dummy"},
    {"IsaUnknown", trace_with({"--isa", "mmx"}), 2,
     "--isa is 'mmx', expected one of plain, avx2, avx512, avx512-bf16, amx-bf16"},
    {"ContextZero", trace_with({"--max-model-len", "0"}), 2, "--max-model-len is '0'"},
    {"ContextUnit", trace_with({"--max-model-len", "4x"}), 2,
     "--max-model-len is '4x', expected a whole number from 1"},
    {"ContextBeyondTheModel", trace_with({"--max-model-len", "641"}), 2,
     "--max-model-len 641 is more than the model's 640 positions"},
    {"ModelMissing", {"inspect"}, 2, "MODEL is missing"},
    {"ModelEmpty", {"inspect", ""}, 2, "MODEL is ''"},
    {"ModelNotThere", {"inspect", "DIR/nothing"}, 3, "there is no such folder"},
    {"ModelIsAFile", {"inspect", "DIR/ids"}, 3, "is a file; MODEL is the folder with config.json"},
    {"ModelWithoutConfig", {"inspect", "DIR"}, 3, "no config.json in"},
    {"ModelNotInTheHub", {"inspect", "nobody/nothing"}, 3, "download it with: hf download nobody/nothing"},
    {"IdsOptionMissing", {"trace", "MODEL", "--out", "OUT"}, 2, "--ids-file is missing"},
    {"OutOptionMissing", {"trace", "MODEL", "--ids-file", "DIR/ids"}, 2, "--out is missing"},
    {"IdsNotThere", trace_ids("nothing"), 2, "cannot read the ids file"},
    {"IdsWithAWord", trace_ids("word"), 2, "'seven' (number 2) is not a token id"},
    {"IdsTooLarge", trace_ids("huge"), 2, "'99999999999' (number 0) is not a token id"},
    {"IdsEmpty", trace_ids("empty"), 2, "has no token ids"},
    {"IdBeyondTheVocabulary", trace_ids("beyond"), 2,
     "token id 320 (number 1 of the ids) is outside the vocabulary of 320 tokens"},
    {"IdNegative", trace_ids("negative"), 2, "token id -1"},
    {"PromptBeyondTheContext", trace_ids("long"), 2, "need a context of 641 tokens, and it has 640"},
    {"PromptBeyondMaxModelLen", trace_with({"--max-model-len", "2"}), 2, "need a context of 3 tokens, and it has 2"},
    {"GreedyNegative", trace_with({"--greedy", "-1"}), 2, "--greedy is '-1'"},
    {"OutNotWritable",
     {"trace", "MODEL", "--ids-file", "DIR/ids", "--out", "DIR/no/such/folder/out"},
     1,
     "no/such/folder"},
    {"ConfigNotThere", {"inspect", "MODEL", "--config", "DIR/nothing"}, 2, "cannot open"},
    {"ConfigUnknownKey",
     {"inspect", "MODEL", "--config", "DIR/unknown_key"},
     2,
     ":2: no option 'tread'; did you mean 'threads'?"},
    {"ConfigUnknownSection",
     {"inspect", "MODEL", "--config", "DIR/unknown_section"},
     2,
     ":1: no command 'inspec'; did you mean 'inspect'?"},
    {"ConfigBadLine",
     {"inspect", "MODEL", "--config", "DIR/bad_line"},
     2,
     ":1: 'threads 2' is not of the form 'name = value'"},
    {"ConfigBadValue",
     {"inspect", "MODEL", "--config", "DIR/bad_value"},
     2,
     "threads is 'many', expected a whole number"},
};

class OptionTest : public testing::TestWithParam<OptionRow> {
 protected:
  static void SetUpTestSuite() {
    model_ = new TempCheckpoint(TempCheckpoint::from_fixture("v32-odd"));
    model_->write();
    std::string long_ids;
    for (int i = 0; i < 641; ++i) long_ids += "1 ";
    const std::pair<const char*, std::string> files[] = {
        {"ids", "1 2 3\n"},
        {"word", "1 2 seven"},
        {"huge", "99999999999"},
        {"empty", "\n"},
        {"beyond", "1 320"},
        {"negative", "-1"},
        {"long", long_ids},
        {"unknown_key", "# comment\ntread = 2\n"},
        {"unknown_section", "[inspec]\n"},
        {"bad_line", "threads 2\n"},
        {"bad_value", "threads = many\n"},
    };
    std::filesystem::create_directories(model_->path() / "files");
    for (const auto& [name, text] : files) must(io::write_file_atomically(model_->path() / "files" / name, text));
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  static std::string placed(std::string word) {
    const std::string dir = (model_->path() / "files").string();
    if (word == "MODEL") return model_->path().string();
    if (word == "OUT") return dir + "/out.safetensors";
    if (word.starts_with("DIR")) return dir + word.substr(3);
    return word;
  }

  static TempCheckpoint* model_;
};
TempCheckpoint* OptionTest::model_ = nullptr;

TEST_P(OptionTest, IsRefused) {
  Arguments arguments = GetParam().arguments;
  std::transform(arguments.begin(), arguments.end(), arguments.begin(), placed);
  expect_refusal(run_levin(arguments), GetParam().exit_code, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Table, OptionTest, testing::ValuesIn(kOptionRows),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- model folders -----------------------------------------------------------------------------------------------

struct ModelRow {
  const char* name;
  const char* fixture;
  std::function<void(TempCheckpoint&)> spoil;  // before it is written
  const char* message;
  int exit_code = 3;
  std::function<void(TempCheckpoint&)> spoil_files;  // after
  int n_shards = 1;
};

void PrintTo(const ModelRow& row, std::ostream* out) { *out << row.name; }

using Spoil = std::function<void(TempCheckpoint&)>;

Spoil set(const char* key, io::JsonValue value) {
  return [=](TempCheckpoint& m) { m.set_config(key, value); };
}
Spoil erase(const char* key) {
  return [=](TempCheckpoint& m) { m.erase_config(key); };
}
Spoil without(const char* tensor) {
  return [=](TempCheckpoint& m) { m.remove_tensor(tensor); };
}
template <class T>
Spoil with_value(const char* tensor, int64_t i, T value) {
  return [=](TempCheckpoint& m) {
    std::memcpy(m.tensor(tensor).bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  };
}
Spoil text(const char* file, const char* content) {
  return [=](TempCheckpoint& m) { m.write_text(file, content); };
}
Spoil overwritten(const char* file, size_t offset, std::vector<uint8_t> bytes) {
  return [=](TempCheckpoint& m) { m.overwrite(file, offset, std::as_bytes(std::span(bytes))); };
}
const Spoil kNothing = [](TempCheckpoint&) {};

constexpr const char* kFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

const ModelRow kModelRows[] = {
    // config.json
    {"ConfigNoJson", "v32-odd", kNothing, "config.json", 3, text("config.json", "{\"model_type\": ")},
    {"ConfigEmpty", "v32-odd", kNothing, "config.json", 3, text("config.json", "")},
    {"ConfigList", "v32-odd", kNothing, "config.json", 3, text("config.json", "[1]")},
    {"ConfigTwiceAKey", "v32-odd", kNothing, "hidden_size", 3,
     text("config.json", "{\"hidden_size\": 1, \"hidden_size\": 2}")},
    {"ConfigMissing", "v32-odd", kNothing, "no config.json in", 3,
     [](TempCheckpoint& m) { m.remove_file("config.json"); }},
    {"Glm53Flash", "glm-shared", set("model_type", "glm5_next"),
     "architectures is a list of 1, expected [\"Glm5NextForConditionalGeneration\"]"},
    {"GlmOffsetZero", "glm-shared", set("index_skip_topk_offset", 0), "index_skip_topk_offset is 0"},
    {"GlmSharedFirst", "glm-pattern", set("index_topk_pattern", "SFSSSF"),
     "index_topk_pattern makes layer 0 \"shared\""},
    {"GlmIndexerMissing", "glm-shared", set("index_topk_freq", 3),
     "model.layers.5.self_attn.indexer.wq_b.weight: expected"},
    {"DeepSeekV4", "v32-odd", set("model_type", "deepseek_v4"),
     "architectures is a list of 1, expected [\"DeepseekV4ForCausalLM\"]"},
    {"KeyMissing", "v32-odd", erase("kv_lora_rank"), "kv_lora_rank is missing, expected"},
    {"KeyOfAnotherType", "v32-odd", set("n_routed_experts", "8"), "n_routed_experts is \"8\" (a string)"},
    {"OtherMathematics", "v32-odd", set("scoring_func", "softmax"),
     "scoring_func is \"softmax\", which this version does not implement"},
    {"OtherQuantiser", "v32-fp8", set("quantization_config.quant_method", "gptq"),
     "quant_method is \"gptq\", which this version does not implement"},
    {"OtherBlocks", "v32-fp8", set("quantization_config.weight_block_size", JsonArray{64, 64}),
     "weight_block_size is [64, 64]"},
    {"GroupsDoNotDivide", "v32-odd", set("n_group", 3), "n_group is 3 (a number), expected a divisor of 8"},
    {"OtherRope", "v32-odd", set("rope_scaling.type", "dynamic"),
     "rope type is 'dynamic', which this version does not implement"},
    {"SpellingsDisagree", "v32-odd", set("rope_parameters.factor", 40), "but another key of the config says"},
    {"VocabularyOfAnotherModel", "v32-odd", set("vocab_size", 321),
     "model.embed_tokens.weight: expected BF16, F32 or F16 [321, 96], found BF16 [320, 96]"},
    {"WidthOfAnotherModel", "v32-odd", set("hidden_size", 98), "and 1"},
    {"MoreLayersThanTensors", "v32-odd", set("num_hidden_layers", 6),
     "model.layers.5.input_layernorm.weight: expected"},
    {"FewerLayersThanTensors", "v32-odd", set("num_hidden_layers", 3), "expected no such tensor"},
    {"MtpTensorsWithoutMtp", "v32-odd", set("num_nextn_predict_layers", 0), "num_nextn_predict_layers is 0"},
    {"MoreThanTheMemory", "v32-odd",
     [](TempCheckpoint& m) {
       m.set_config("max_position_embeddings", 1 << 30);
       m.set_config("rope_scaling", nullptr);
     },
     "the longest context that fits is --max-model-len", 4},

    // tensors
    {"TensorMissing", "v32-odd", without("lm_head.weight"),
     "lm_head.weight: expected BF16, F32 or F16 [320, 96], found nothing"},
    {"TensorSurplus", "v32-odd",
     [](TempCheckpoint& m) {
       m.add_tensor({.name = "model.extra", .dtype = StoredDtype::kF32, .shape = {1}, .bytes = {}});
     },
     "model.extra: expected no such tensor, found F32 [1]"},
    {"TensorMisnamed", "v32-odd", [](TempCheckpoint& m) { m.rename_tensor("model.norm.weight", "model.nrom.weight"); },
     "model.nrom.weight: expected no such tensor"},
    {"TensorMisshapen", "v32-odd", [](TempCheckpoint& m) { m.set_shape("model.norm.weight", {12, 8}); },
     "model.norm.weight: expected BF16, F32 or F16 [96], found BF16 [12, 8]"},
    {"TensorOfAnotherType", "v32-odd", [](TempCheckpoint& m) { m.set_dtype("model.norm.weight", StoredDtype::kI32); },
     "model.norm.weight: expected BF16, F32 or F16 [96], found I32 [96]"},
    {"RouterInFp8", "v32-fp8",
     [](TempCheckpoint& m) { m.set_dtype("model.layers.1.mlp.gate.weight", StoredDtype::kF8_E4M3); },
     "model.layers.1.mlp.gate.weight: expected BF16, F32 or F16"},
    {"ScalesMissing", "v32-fp8", without("model.layers.0.self_attn.o_proj.weight_scale_inv"),
     "model.layers.0.self_attn.o_proj.weight_scale_inv: expected F32 or F8_E8M0 [2, 4] with an FP8 matrix, found "
     "nothing"},
    {"ScalesMisshapen", "v32-fp8",
     [](TempCheckpoint& m) { m.set_shape("model.layers.0.self_attn.o_proj.weight_scale_inv", {1, 4}); },
     "o_proj.weight_scale_inv: expected F32 or F8_E8M0 [2, 4], found F32 [1, 4]"},
    {"ScalesWithoutFp8", "v32-fp8",
     [](TempCheckpoint& m) { m.set_dtype("model.layers.0.self_attn.o_proj.weight", StoredDtype::kBF16); },
     "model.layers.0.self_attn.o_proj.weight_scale_inv: expected no such tensor"},
    {"MtpPartlyMissing", "v32-odd", without("model.layers.4.eh_proj.weight"),
     "model.layers.4.eh_proj.weight: expected BF16, F32 or F16 [96, 192], found nothing"},
    {"Fp8NaN", "v32-fp8", with_value<uint8_t>("model.layers.0.self_attn.o_proj.weight", 1, 0x7F),
     "model.layers.0.self_attn.o_proj.weight[0, 1] is NaN (F8_E4M3)"},
    {"Bf16NaN", "v32-odd", with_value<uint16_t>("lm_head.weight", 97, 0x7FC0), "lm_head.weight[1, 1] is NaN (BF16)"},
    {"NormInfinite", "v32-odd", with_value<uint16_t>("model.norm.weight", 0, 0x7F80),
     "model.norm.weight[0] is infinite (BF16)"},
    {"ScaleZero", "v32-fp8", with_value<float>("model.layers.0.self_attn.o_proj.weight_scale_inv", 0, 0.0f),
     "o_proj.weight_scale_inv[0, 0] is 0; scales must be finite and above 0"},
    {"ScaleNegative", "v32-fp8", with_value<float>("model.layers.0.self_attn.o_proj.weight_scale_inv", 0, -0.5f),
     "o_proj.weight_scale_inv[0, 0] is -0.5"},

    // files
    {"WeightsMissing", "v32-odd", kNothing, kFile, 3, [](TempCheckpoint& m) { m.remove_file(kFile); }},
    {"WeightsEmpty", "v32-odd", kNothing, kFile, 3, text(kFile, "")},
    {"WeightsCut", "v32-odd", kNothing, kFile, 3, [](TempCheckpoint& m) { m.truncate_file(kFile, 100'000); }},
    {"HeaderCut", "v32-odd", kNothing, kFile, 3, [](TempCheckpoint& m) { m.truncate_file(kFile, 100); }},
    {"HeaderLengthHuge", "v32-odd", kNothing, kFile, 3,
     overwritten(kFile, 0, {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F})},
    {"HeaderNoJson", "v32-odd", kNothing, kFile, 3, overwritten(kFile, 8, {'[', '['})},
    {"ShardMissing", "v32-odd", kNothing, "model-00002-of-00002.safetensors", 3,
     [](TempCheckpoint& m) { m.remove_file("model-00002-of-00002.safetensors"); }, 2},
    {"ShardCut", "v32-odd", kNothing, "model-00001-of-00002.safetensors", 3,
     [](TempCheckpoint& m) { m.truncate_file("model-00001-of-00002.safetensors", 5000); }, 2},
    {"IndexNoJson", "v32-odd", kNothing, kIndex, 3, text(kIndex, "{\"weight_map\": {"), 2},
    {"IndexWithoutMap", "v32-odd", kNothing, "weight_map", 3, text(kIndex, "{}"), 2},
    {"IndexLeadsOutside", "v32-odd", kNothing, "../", 3,
     text(kIndex, "{\"weight_map\": {\"lm_head.weight\": \"../secret.safetensors\"}}"), 2},
};

class ModelTest : public testing::TestWithParam<ModelRow> {};

TEST_P(ModelTest, IsRefused) {
  const ModelRow& row = GetParam();
  TempCheckpoint model = TempCheckpoint::from_fixture(row.fixture);
  row.spoil(model);
  model.write(row.n_shards);
  model.write_text("ids", "1 2 3");
  if (row.spoil_files) row.spoil_files(model);
  const std::string folder = model.path().string();
  Arguments arguments = {"trace", folder, "--ids-file", folder + "/ids", "--out", folder + "/out"};
  if (row.exit_code == 4) arguments.insert(arguments.end(), {"--max-model-len", "1024M"});
  const ProgramResult result = run_levin(arguments);
  expect_refusal(result, row.exit_code, row.message);
  EXPECT_FALSE(std::filesystem::exists(folder + "/out"));
}

INSTANTIATE_TEST_SUITE_P(Table, ModelTest, testing::ValuesIn(kModelRows),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- tokenizers --------------------------------------------------------------------------------------------------

struct TokenizerRow {
  const char* name;
  Spoil spoil_files;
};

void PrintTo(const TokenizerRow& row, std::ostream* out) { *out << row.name; }

const TokenizerRow kTokenizerRows[] = {
    {"Missing", [](TempCheckpoint& m) { m.remove_file("tokenizer.json"); }},
    {"Empty", text("tokenizer.json", "")},
    {"NoJson", text("tokenizer.json", "{\"model\"")},
    {"OfAnotherKind", text("tokenizer.json", "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}")},
};

class TokenizerTest : public testing::TestWithParam<TokenizerRow> {};

TEST_P(TokenizerTest, IsRefused) {
  TempCheckpoint model = TempCheckpoint::from_folder(std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32");
  model.write();
  GetParam().spoil_files(model);
  expect_refusal(run_levin({"run", model.path().string(), "-p", "Hello"}), 3, "tokenizer.json");
}

TEST(GenerationConfigTest, IsNamedUnlessAnOptionTakesItsPlace) {
  TempCheckpoint model = TempCheckpoint::from_folder(std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32");
  model.write();
  model.write_text("generation_config.json", "{\"top_p\": 0}");
  const std::string folder = model.path().string();
  expect_refusal(run_levin({"run", folder, "-p", "Hello"}), 3, "/generation_config.json: top_p is 0");
  EXPECT_EQ(run_levin({"run", folder, "-p", "Hello", "-n", "1", "--top-p", "1"}).exit_code, 0);
  model.write_text("generation_config.json", "{\"repetition_penalty\": 0}");
  expect_refusal(run_levin({"run", folder, "-p", "Hello"}), 3, "/generation_config.json: repetition_penalty is 0");
  EXPECT_EQ(run_levin({"run", folder, "-p", "Hello", "-n", "1", "--repetition-penalty", "1"}).exit_code, 0);
  model.write_text("generation_config.json", "{\"top_k\": -1}");  // off, as in requests
  EXPECT_EQ(run_levin({"run", folder, "-p", "Hello", "-n", "1"}).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Table, TokenizerTest, testing::ValuesIn(kTokenizerRows),
                         [](const auto& row) { return std::string(row.param.name); });

// ---- devices -----------------------------------------------------------------------------------------------------

TEST(DeviceTest, WhatCudaLacksIsNamedInOneLine) {
  const Result<cuda::DeviceInfo> device = cuda::find_device(0, cuda::KernelSet::kPlain);
  const ProgramResult result = run_levin({"run", "-p", "x", "-n", "1", "--device", "cuda"});
  const ProgramResult doctor = run_levin({"doctor"});
  if (device.ok()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(doctor.out.find(device->name), std::string::npos) << doctor.out;
    EXPECT_NE(doctor.out.find("cuda-plain"), std::string::npos) << doctor.out;
    const bool tuned = cuda::find_device(0, cuda::KernelSet::kSm90).ok();  // by default where there are such kernels
    EXPECT_NE(result.err.find("numerics  official"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(tuned ? "kernels   cuda-sm90 on " : "kernels   cuda-plain on "), std::string::npos)
        << result.err;
    const ProgramResult plain = run_levin({"run", "-p", "x", "-n", "1", "--device", "cuda", "--kernels", "plain"});
    EXPECT_NE(plain.err.find("kernels   cuda-plain on "), std::string::npos) << plain.err;
    return;
  }
  expect_refusal(result, 5, "--device cuda: ");
  expect_refusal(result, 5, device.error().message);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(doctor.out.find(device.error().message), std::string::npos) << doctor.out;
}

}  // namespace
}  // namespace levin::test
