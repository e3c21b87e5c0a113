// What the commands print when all is well.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "apps/run_levin.h"
#include "arch/load_config.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "model/weight_table.h"
#include "support/fixture.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

using Arguments = std::vector<std::string>;

const std::string kDemo = std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32";
const std::string kReleasedConfig = std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/deepseek-v3.2";

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nfound: " << text;
}

io::JsonValue json_of(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return must(io::parse_json(result.out, "the output"));
}

TEST(InspectTest, DescribesTheDemonstrationModel) {
  const ProgramResult result = run_levin({"inspect", kDemo});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* part :
       {"DeepSeek-V3.2", "21.3 M, of them MTP 3.903 M", "4 (1 dense, 3 with experts), MTP yes", "F8_E4M3",
        "146 tensors", "reference", "official", "fast", "longest context here", "16384 tokens"}) {
    expect_in(result.out, part);
  }
}

TEST(InspectTest, NeedsNoMoreThanTheConfig) {
  const ProgramResult result = run_levin({"inspect", kReleasedConfig});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_in(result.out, "683.5 B, of them MTP 11.6 B");
  expect_in(result.out, "no safetensors here");
}

TEST(InspectTest, NamesWhatRunsOnAGpuAndWhyNotTheTunedKernel) {
  const ProgramResult result = run_levin({"inspect", kReleasedConfig});
  expect_in(result.out, "on a GPU    of compute capability 9.0 with --numerics official, the default there");
  expect_in(result.out, "  cuda-sm90    sparse_attention of 128 heads, fp8 rows of 512 + 64, 2048 indices\n");
  expect_in(result.out, "  cuda-sm90    matmul of bf16 [256, 7168]\n");
  expect_in(result.out, "  cuda-plain   norm_rows; cuda-sm90: rows between ops are f32, it writes bf16 or e4m3\n");
  const io::JsonValue document = json_of(run_levin({"inspect", kReleasedConfig, "--json"}));
  EXPECT_TRUE(must(io::JsonFields::of(document, "the output")).contains("gpu_kernels_by_form"));
  const std::string cpu_only = std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/deepseek-v4.1-flash";
  EXPECT_EQ(run_levin({"inspect", cpu_only}).out.find("on a GPU"), std::string::npos);
}

TEST(InspectTest, NamesTheKernelsOfANumericsModeThatItsHelpHas) {
  expect_in(run_levin({"inspect", "--help"}).out, "--numerics MODE");
  expect_in(run_levin({"inspect", kReleasedConfig, "--numerics", "reference"}).out,
            "write_index_keys of f32 keys of 128\n");
  expect_in(run_levin({"inspect", kReleasedConfig, "--numerics", "fast"}).out,
            "write_index_keys of bf16 keys of 128\n");
}

TEST(InspectTest, DescribesDeepseekV4) {
  const std::string folder = std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/deepseek-v4-flash";
  const ProgramResult result = run_levin({"inspect", folder});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"DeepSeek-V4 (DeepseekV4ForCausalLM)", "290.9 B, of them MTP 6610.0 M", "4, mixed in 20 Sinkhorn steps",
        "64 heads of 448 + 64 over one key-value row, query latent 1024, output 8 groups of 1024",
        "128 tokens; compressed: 2 layers without, 21 layers by 4, selected, 20 layers by 128",
        "256 (6 chosen, 1 shared) of width 2048, by token id in 3 layers",
        "theta 10000; compressed: theta 160000, YaRN factor 16 from 65536 positions", "148.7 GiB",
        "a running request takes "}) {
    expect_in(result.out, part);
  }
  const io::JsonValue document = json_of(run_levin({"inspect", folder, "--json"}));
  const io::JsonFields config = must(must(io::JsonFields::of(document, "the output")).get_fields("config"));
  EXPECT_EQ(must(config.get<int64_t>("n_window")), 128);
  EXPECT_EQ(must(config.get<std::vector<int64_t>>("compress_ratios")).size(), 44u);
  EXPECT_FALSE(config.contains("d_latent"));
}

TEST(InspectTest, DescribesDeepseekV4WithABlockDrafter) {
  const std::string folder = std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/deepseek-v4-flash-0731";
  const ProgramResult result = run_levin({"inspect", folder});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"DeepSeek-V4 (DeepseekV4ForCausalLM)", "304.2 B, of them drafter 19.8 B", "drafter yes",
                           "DSpark: blocks of 5, 3 stages on layers 40, 41, 42, Markov rank 256"}) {
    expect_in(result.out, part);
  }
  const io::JsonValue document = json_of(run_levin({"inspect", folder, "--json"}));
  const io::JsonFields config = must(must(io::JsonFields::of(document, "the output")).get_fields("config"));
  EXPECT_EQ(must(config.get<std::vector<int64_t>>("compress_ratios")).size(), 46u);
  EXPECT_EQ(must(config.get<int64_t>("dspark_block")), 5);
  EXPECT_EQ(must(config.get<std::vector<int64_t>>("dspark_target_layers")), (std::vector<int64_t>{40, 41, 42}));
}

// What is counted to the byte in memory_plan_test.cc, as it is printed.
struct DescribedRelease {
  const char* folder;
  std::vector<const char*> parts;
};

const DescribedRelease kDescribed[] = {
    {"deepseek-v4-pro-0813",
     {"DeepSeek-V4 (DeepseekV4ForCausalLM)", "1650.5 B, of them drafter 77.5 B",
      "61 (0 dense, 61 with experts), drafter yes",
      "128 tokens; compressed: 30 layers by 4, selected, 31 layers by 128",
      "DSpark: blocks of 5, 3 stages on layers 58, 59, 60, Markov rank 512", "831.5 GiB", "10.6 KiB"}},
    {"glm-5.3",
     {"GLM-5 (GlmMoeDsaForCausalLM)", "753.3 B, of them MTP 9952.9 M", "78 (3 dense, 75 with experts), MTP yes",
      "top-k 2048; in 21 layers, the others share their indices, and so do drafts", "704.8 GiB", "53.4 KiB"}},
    {"glm-5.2-nvfp4",
     {"GLM-5 (GlmMoeDsaForCausalLM)", "753.3 B, of them MTP 9952.9 M", "78 (3 dense, 75 with experts), MTP yes",
      "top-k 2048; in 21 layers, the others share their indices, and so do drafts", "433.0 GiB", "53.4 KiB"}},
    {"glm-5.3-flash",
     {"GLM-5.3-Flash (Glm5NextForConditionalGeneration)", "320.8 B, of them MTP 7432.6 M",
      "45 (3 dense, 42 with experts), MTP yes", "34 layers, 64 heads of 128, convolutions of 4 tokens",
      "11 layers, 64 heads of 256 (value 256), latent 512", "top-k 512 pools of 4 tokens, which drafts share",
      "300.2 GiB", "12.8 KiB", "2048 tokens of a cached prefix take"}},
};

TEST(InspectTest, DescribesTheNewerReleases) {
  for (const DescribedRelease& release : kDescribed) {
    SCOPED_TRACE(release.folder);
    const ProgramResult result = run_levin({"inspect", fixture_folder(release.folder).string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const char* part : release.parts) expect_in(result.out, part);
    EXPECT_EQ(result.out.find("is not known to this version"), std::string::npos) << result.out;
  }
}

// The model selects 512 pools of 4 tokens; a row of indices has room for three tokens more, those of an incomplete pool.
TEST(InspectTest, SaysWhatAnIndexerOfPoolsSelects) {
  const std::string folder = fixture_folder("glm-5.3-flash").string();
  const io::JsonValue document = json_of(run_levin({"inspect", folder, "--json"}));
  const io::JsonFields config = must(must(io::JsonFields::of(document, "the output")).get_fields("config"));
  EXPECT_EQ(must(config.get<int64_t>("index_topk")), 2048);
  EXPECT_EQ(must(config.get<int64_t>("n_pool_topk")), 512);
  const std::string text = run_levin({"inspect", folder}).out;
  expect_in(text, "index_topk of 32 heads, fp8 keys of 128, top-k 512\n");
  expect_in(text, " 2051 indices");
}

TEST(InspectTest, TakesTheNamesFromAnIndex) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  model.write(2);
  for (int i = 0; i < 2; ++i) model.remove_file(TempCheckpoint::shard_name(i, 2));
  const ProgramResult result = run_levin({"inspect", model.path().string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_in(result.out, "names in 2 shards");
  expect_in(result.out, "the shards are not here");
}

// The released GLM-5.2 as its config and an index of names: 22 sets of indexer tensors for 79 layers.
TEST(InspectTest, ChecksTheNamesOfAReleasedModel) {
  const std::string released = std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/glm-5.2";
  const ModelConfig config = must(load_model_config(released)).config;
  std::vector<io::JsonMember> names;
  for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
    names.push_back({row.name, "model-00001-of-00002.safetensors"});
    if (row.storage == Storage::kMatrix) names.push_back({row.scale_name, "model-00002-of-00002.safetensors"});
  }
  const test::TempDir folder;
  must(io::write_file_atomically(folder.path() / "config.json", must(io::read_file(released + "/config.json"))));
  const auto inspect = [&] {
    must(io::write_file_atomically(folder.path() / "model.safetensors.index.json",
                                   io::dump_json(io::JsonObject{{"weight_map", io::JsonObject(names)}})));
    return run_levin({"inspect", folder.path().string()});
  };
  const ProgramResult result = inspect();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_in(result.out, "GLM-5 (GlmMoeDsaForCausalLM)");
  expect_in(result.out, "753.3 B, of them MTP 9952.9 M");
  expect_in(result.out, "top-k 2048; in 21 layers, the others share their indices, and so do drafts");
  expect_in(result.out, "the shards are not here");
  std::erase_if(names, [](const auto& name) { return name.key == "model.layers.6.self_attn.indexer.wk.weight"; });
  const ProgramResult broken = inspect();
  EXPECT_EQ(broken.exit_code, 3);
  expect_in(broken.err, "model.layers.6.self_attn.indexer.wk.weight: expected");
}

TEST(InspectTest, ShowsOverridesAndWhatTheyDo) {
  const Arguments arguments = {"inspect",           kReleasedConfig, "--override",
                               "index_topk_freq=4", "--override",    "index_share_for_mtp_iteration=true"};
  const ProgramResult result = run_levin(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_in(result.out, "override    index_topk_freq=4, index_share_for_mtp_iteration=true\n");
  expect_in(result.out, "top-k 2048; in 16 layers, the others share their indices, and so do drafts");
  Arguments as_json = arguments;
  as_json.emplace_back("--json");
  const io::JsonValue document = json_of(run_levin(as_json));
  const io::JsonFields fields = must(io::JsonFields::of(document, "the output"));
  EXPECT_EQ(must(must(fields.get_fields("overrides")).get<int64_t>("index_topk_freq")), 4);
}

TEST(BenchTest, ShowsOverridesAtTheStart) {
  const ProgramResult result = run_levin({"bench", kDemo, "--override", "index_topk_freq=2", "--depths", "0",
                                          "--decode-tokens", "1", "--repetitions", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_in(result.err, "override  index_topk_freq=2\n");
}

TEST(BenchTest, TheCacheHasRoomForTheBatch) {
  const ProgramResult result = run_levin({"bench", kDemo, "--max-model-len", "512", "--depths", "0", "--batch", "8",
                                          "--decode-tokens", "2", "--chunk", "64", "--repetitions", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_in(result.err, "cache     1024 tokens, at most 512 per request, ");
}

TEST(OverrideTest, OfAnUnknownKeyATwiceGivenOneOrNoValueIsRefused) {
  const auto refused = [](const Arguments& overrides, const char* message) {
    Arguments arguments = {"inspect", kReleasedConfig};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const ProgramResult result = run_levin(arguments);
    EXPECT_EQ(result.exit_code, 2);
    expect_in(result.err, message);
  };
  refused({"--override", "index_topk_frq=4"}, "did you mean \"index_topk_freq\"?");
  refused({"--override", "index_topk_freq"}, "KEY=VALUE, a key of config.json and its value as JSON");
  refused({"--override", "index_topk_freq=2", "--override", "index_topk_freq=4"},
          "each key only once; index_topk_freq was given before");
}

TEST(InspectTest, PrintsJson) {
  const io::JsonValue document = json_of(run_levin({"inspect", kDemo, "--json"}));
  const io::JsonFields fields = must(io::JsonFields::of(document, "the output"));
  EXPECT_EQ(must(fields.get<int64_t>("parameters")), 21'328'160);
  EXPECT_EQ(must(fields.get<int64_t>("n_tensors")), 342);
  EXPECT_TRUE(must(fields.get<bool>("has_mtp")));
  const io::JsonFields official = must(must(fields.get_fields("memory")).get_fields("official"));
  EXPECT_EQ(must(official.get<int64_t>("latent_bytes_per_token")), 5 * 656);
  EXPECT_EQ(must(official.get<int64_t>("index_bytes_per_token")), 5 * 132);
}

TEST(InspectTest, WarnsOfWhatIsIgnored) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  model.set_config("moon_phase", "full");
  for (const std::string& name : model.tensor_names()) {
    if (name.starts_with("model.layers.4.")) model.remove_tensor(name);
  }
  const ProgramResult result = run_levin({"inspect", model.write().string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_in(result.out, "MTP no");
  expect_in(result.out, "moon_phase is not known to this version and was ignored");
  expect_in(result.out, "running without speculation");
}

// Every tensor that was recorded, in its shape, and the same tokens and rounds. How close the others are is in
// tests/engine/oracle_test.cc.
TEST(TraceTest, OfABlockDrafterHasItsRounds) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v4-dspark");
  const std::string folder = model.write().string(), ids = folder + "/ids", out = folder + "/trace.safetensors";
  const io::Checkpoint oracle = must(io::Checkpoint::open(fixture_folder("v4-dspark") / "oracle.safetensors"));
  std::string text;
  const std::span<const std::byte> prompt = oracle.find("input_ids")->bytes;
  for (size_t i = 0; i < prompt.size(); i += sizeof(int64_t)) {
    int64_t id = 0;
    std::memcpy(&id, prompt.data() + i, sizeof(id));
    text += std::to_string(id) + " ";
  }
  must(io::write_file_atomically(ids, text));
  const ProgramResult result = run_levin({"trace", folder, "--ids-file", ids, "--out", out, "--numerics", "reference",
                                          "--greedy", "24", "--drafts", "5", "--threads", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const io::Checkpoint traced = must(io::Checkpoint::open(out));
  EXPECT_EQ(traced.names(), oracle.names());
  for (const io::StoredTensor& expected : oracle.tensors()) {
    const io::StoredTensor* found = traced.find(expected.name);
    ASSERT_NE(found, nullptr) << expected.name;
    EXPECT_EQ(found->shape, expected.shape) << expected.name;
    if (expected.dtype != io::StoredDtype::kI64) continue;
    EXPECT_TRUE(std::ranges::equal(found->bytes, expected.bytes)) << expected.name;
  }
  const ProgramResult refused = run_levin({"trace", folder, "--ids-file", ids, "--out", out, "--drafts", "6"});
  EXPECT_EQ(refused.exit_code, 2);
  expect_in(refused.err, "--drafts is 6, and 5 can be drafted and verified at once (dspark_block_size is 5)");
}

TEST(DoctorTest, NamesTheKernels) {
  const ProgramResult result = run_levin({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"processor", "kernels", "memory", "gpu", "CUDA"}) expect_in(result.out, part);
  const io::JsonValue document = json_of(run_levin({"doctor", "--json"}));
  EXPECT_TRUE(document.as_object()->contains("kernels"));
}

TEST(HelpTest, IsGroupedAndComplete) {
  const ProgramResult result = run_levin({"trace", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* part : {"Usage: levin trace [OPTIONS] MODEL", "\nModel:\n", "\nEngine:\n", "\nGeneral:\n",
                           "\nExamples:\n", "--threads N", "LEVIN_THREADS", "default: fast"}) {
    expect_in(result.out, part);
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"}, {"-h"}, {"--help-all"}, {"--version"}, {"inspect", "-h"}}) {
    EXPECT_EQ(run_levin(words).exit_code, 0) << words.back();
  }
}

TEST(HelpTest, IsThereHoweverItIsAskedFor) {
  EXPECT_EQ(run_levin({"help", "run"}).out, run_levin({"run", "--help"}).out);
  EXPECT_EQ(run_levin({"help"}).out, run_levin({"--help"}).out);
  EXPECT_EQ(run_levin({"-v"}).out, run_levin({"--version"}).out);
  const ProgramResult unknown = run_levin({"help", "rnu"});
  EXPECT_EQ(unknown.exit_code, 2);
  expect_in(unknown.err, "unknown command 'rnu'; did you mean 'run'?");
}

TEST(HelpTest, HasOneColumnOfPurposes) {
  const std::string help = run_levin({"--help"}).out;
  for (const char* line : {"\n  run          Answer", "\n  export-gguf  Write the weights"}) expect_in(help, line);
}

TEST(HelpTest, LeavesOutWhatMeansNothingToACommand) {
  for (const char* command : {"tokenize", "inspect", "export-gguf"}) {
    const std::string help = run_levin({command, "--help"}).out;
    for (const char* option : {"--device", "--graphs", "--kernels", "--threads"}) {
      EXPECT_EQ(help.find(option), std::string::npos) << command << ' ' << option;
    }
    expect_in(help, "--revision");
  }
  EXPECT_EQ(run_levin({"inspect", kDemo, "--threads", "1"}).exit_code, 0);  // as in a config file of all commands
}

TEST(EnvironmentTest, ComesAfterTheCommandLineAndBeforeTheFile) {
  const TempDir dir;
  const std::string file = (dir / "levin.conf").string();
  must(io::write_file_atomically(file, "chunk = 1k\n[inspect]\nmax-model-len = 4k\n"));
  const auto context = [&](std::vector<std::string> more,
                           std::vector<std::pair<std::string, std::string>> environment) {
    more.insert(more.begin(), {"inspect", kDemo, "--json", "--config", file});
    return must(must(io::JsonFields::of(json_of(run_levin(more, {.environment = environment})), "the output"))
                    .get<int64_t>("context_tokens"));
  };
  EXPECT_EQ(context({}, {}), 4096);
  EXPECT_EQ(context({}, {{"LEVIN_MAX_MODEL_LEN", "2k"}}), 2048);
  EXPECT_EQ(context({"--max-model-len", "1k"}, {{"LEVIN_MAX_MODEL_LEN", "2k"}}), 1024);
}

TEST(EnvironmentTest, MisspeltVariablesAreNoticed) {
  const ProgramResult result = run_levin({"inspect", kDemo}, {.environment = {{"LEVIN_THREAD", "2"}}});
  EXPECT_EQ(result.exit_code, 0);
  expect_in(result.err, "warning: unknown environment variable LEVIN_THREAD; did you mean 'LEVIN_THREADS'?");
  const ProgramResult refused = run_levin({"inspect", kDemo}, {.environment = {{"LEVIN_THREADS", "none"}}});
  EXPECT_EQ(refused.exit_code, 2);
  expect_in(refused.err, "the environment variable LEVIN_THREADS is 'none'");
}

TEST(TraceTest, ThePromptMayFillTheContext) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-official");
  model.set_config("max_position_embeddings", 8);
  model.set_config("rope_scaling", nullptr);
  const std::string folder = model.write().string();
  model.write_text("ids", "1 2 3 4 5 6 7 8");
  const ProgramResult result = run_levin({"trace", folder, "--ids-file", folder + "/ids", "--out", folder + "/out"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(DummyTest, NeedsTheConfigAlone) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-official");
  model.write();
  model.remove_file("model.safetensors");
  model.write_text("ids", "1 2 3 4 5");
  const std::string folder = model.path().string();
  for (const char* out : {"/a", "/b"}) {
    const ProgramResult result =
        run_levin({"trace", folder, "--ids-file", folder + "/ids", "--out", folder + out, "--load-format", "dummy"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(must(io::read_file(folder + "/a")), must(io::read_file(folder + "/b")));
}

}  // namespace
}  // namespace levin::test
