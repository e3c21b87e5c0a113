// run, tokenize, bench and eval on the demonstration model, as a user meets them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "apps/run_levin.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

using Arguments = std::vector<std::string>;

const std::string kDemo = std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32";

Arguments run_with(Arguments more) {
  more.insert(more.begin(), {"run", kDemo, "--temperature", "0"});
  return more;
}

std::string answer(const Arguments& more) {
  const ProgramResult result = run_levin(run_with(more));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

// One JSON document on standard output, kept next to its fields.
class Printed {
 public:
  explicit Printed(const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    document_ = must(io::parse_json(result.out, "the output"));
  }
  const io::JsonValue& document() const { return document_; }
  io::JsonFields fields() const { return must(io::JsonFields::of(document_, "the output")); }

 private:
  io::JsonValue document_;
};

Printed run_json(Arguments more) {
  more.emplace_back("--json");
  return Printed(run_levin(run_with(more)));
}

std::vector<int64_t> ids_of(const Printed& p) { return must(p.fields().get<std::vector<int64_t>>("token_ids")); }
std::string text_of(const Printed& p) { return must(p.fields().get<std::string>("text")); }
std::string reason_of(const Printed& p) { return must(p.fields().get<std::string>("finish_reason")); }

// ---- run ---------------------------------------------------------------------------------------------------------

TEST(RunTest, AnswersAPrompt) {
  EXPECT_EQ(answer({"-p", "What is the capital of Japan?"}), "The capital of Japan is Tokyo.\n");
  EXPECT_EQ(answer({"-p", "What is the capital of Japan?", "--thinking", "on"}),
            "<think>The country is Japan. Its capital is Tokyo.</think>The capital of Japan is Tokyo.\n");
}

TEST(RunTest, FindsTheDemonstrationModelByItself) {
  const ProgramResult result = run_levin({"run", "-p", "Repeat: river stone apple tiger", "--temperature", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "river stone apple tiger\n");
}

// With a bound of 1 no draft is sure enough to get another after it.
TEST(RunTest, DraftsAsFarAsItIsSure) {
  std::vector<std::vector<int64_t>> ids;
  std::vector<double> drafts_per_pass;
  for (const char* least : {"0", "1"}) {
    const Printed p = run_json({"-p", "Repeat: river stone apple tiger", "--spec-steps", "3", "--spec-p-min", least});
    const io::JsonFields speculation = must(p.fields().get_fields("speculation"));
    ids.push_back(ids_of(p));
    drafts_per_pass.push_back(static_cast<double>(must(speculation.get<int64_t>("drafted"))) /
                              static_cast<double>(must(speculation.get<int64_t>("verify_passes"))));
  }
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_GT(drafts_per_pass[0], 1);
  EXPECT_LE(drafts_per_pass[1], 1);
}

TEST(RunTest, PrintsJson) {
  const Printed p = run_json({"-p", "Repeat: river stone apple tiger", "--spec-steps", "3"});
  EXPECT_EQ(text_of(p), "river stone apple tiger");
  EXPECT_EQ(reason_of(p), "stop");
  const io::JsonFields usage = must(p.fields().get_fields("usage"));
  EXPECT_EQ(must(usage.get<int64_t>("completion_tokens")), std::ssize(ids_of(p)));
  EXPECT_GT(must(usage.get<int64_t>("prompt_tokens")), 5);
  EXPECT_EQ(must(usage.get<int64_t>("cached_tokens")), 0);
  const io::JsonFields timing = must(p.fields().get_fields("timing"));
  for (const char* key : {"load_s", "prefill_s", "decode_s", "prefill_tokens_per_s", "decode_tokens_per_s"})
    EXPECT_GT(must(timing.get<double>(key)), 0) << key;
  const io::JsonFields speculation = must(p.fields().get_fields("speculation"));
  const auto per_position = must(speculation.get<std::vector<int64_t>>("accepted_per_position"));
  ASSERT_EQ(per_position.size(), 3u);
  EXPECT_TRUE(std::is_sorted(per_position.rbegin(), per_position.rend()));
  EXPECT_EQ(per_position[0] + per_position[1] + per_position[2], must(speculation.get<int64_t>("accepted")));
  EXPECT_LE(must(speculation.get<int64_t>("accepted")), must(speculation.get<int64_t>("drafted")));
  // All tokens but the one from the prompt come out of verify passes.
  EXPECT_NEAR(must(speculation.get<double>("mean_accept_length")) *
                  static_cast<double>(must(speculation.get<int64_t>("verify_passes"))),
              static_cast<double>(ids_of(p).size()) - 1, 1e-9);
}

TEST(RunTest, TheSameTokensWhateverTheSpeculation) {
  const Arguments question = {"-p", "As JSON: river is 4, stone is 77, cloud is 12"};
  const auto ids = [&](Arguments more) {
    more.insert(more.begin(), question.begin(), question.end());
    return ids_of(run_json(std::move(more)));
  };
  const std::vector<int64_t> plain = ids({"--spec", "off"});
  EXPECT_EQ(ids({}), plain);
  EXPECT_EQ(ids({"--spec", "mtp"}), plain);
  EXPECT_EQ(ids({"--spec-tokens", "5", "--threads", "1", "--chunk", "7"}), plain);
}

TEST(RunTest, TheSameSeedTheSameAnswer) {
  const auto ids = [](const char* seed) {
    return ids_of(run_json({"--raw", "-p", "def ", "-n", "40", "--temperature", "1", "--seed", seed}));
  };
  EXPECT_EQ(ids("7"), ids("7"));
  EXPECT_NE(ids("7"), ids("8"));
}

TEST(RunTest, TellsTheSeedThatRepeatsTheAnswer) {
  const auto sample = [](Arguments more) {
    const Arguments always = {"--raw", "-p", "def ", "-n", "40", "--temperature", "1"};
    more.insert(more.begin(), always.begin(), always.end());
    return run_json(std::move(more));
  };
  const auto seed_of = [](const Printed& p) { return std::to_string(must(p.fields().get<uint64_t>("seed"))); };
  const Printed random = sample({});
  const Printed again = sample({"--seed", seed_of(random)});
  EXPECT_EQ(seed_of(again), seed_of(random));
  EXPECT_EQ(ids_of(again), ids_of(random));
}

TEST(RunTest, TakesIdsForAPrompt) {
  const TempDir dir;
  const std::string text = "def read_file(";
  const ProgramResult ids = run_levin({"tokenize", kDemo}, {.input = text});
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  // --raw puts the beginning-of-text token before the text; ids are taken as they are.
  must(io::write_file_atomically((dir / "ids").string(), "0 " + ids.out));
  EXPECT_EQ(ids_of(run_json({"--ids-file", (dir / "ids").string(), "-n", "20"})),
            ids_of(run_json({"--raw", "-p", text, "-n", "20"})));
}

TEST(RunTest, EndsWhereItIsTold) {
  const std::string question = "Repeat: river stone apple tiger lemon";
  const Printed limited = run_json({"-p", question, "-n", "2"});
  EXPECT_EQ(ids_of(limited).size(), 2u);
  EXPECT_EQ(reason_of(limited), "length");
  for (const char* drafts : {"0", "1", "3", "5"}) {
    const Printed stopped = run_json({"-p", question, "--stop", "tiger", "--stop", "ti", "--spec-steps", drafts});
    EXPECT_EQ(text_of(stopped), "river stone apple ") << drafts;
    EXPECT_EQ(reason_of(stopped), "stop");
    EXPECT_EQ(ids_of(stopped), ids_of(run_json({"-p", question, "--stop", "tiger", "--spec", "off"})));
  }
  const Printed endless = run_json({"-p", question, "--ignore-eos", "-n", "50"});
  EXPECT_EQ(ids_of(endless).size(), 50u);
  EXPECT_EQ(reason_of(endless), "length");
}

TEST(RunTest, BiasAndLogprobs) {
  const Arguments question = {"-p", "What is the capital of Japan?", "-n", "1"};
  const auto run = [&](Arguments more) {
    more.insert(more.begin(), question.begin(), question.end());
    return run_json(std::move(more));
  };
  const Printed plain = run({"--logprobs", "2"});
  const io::JsonArray* logprobs = plain.fields().find("logprobs")->as_array();
  ASSERT_EQ(logprobs->size(), 1u);
  const io::JsonFields first = must(io::JsonFields::of((*logprobs)[0], "logprobs"));
  EXPECT_EQ(must(first.get<int64_t>("token_id")), ids_of(plain)[0]);
  EXPECT_LT(must(first.get<double>("logprob")), 0);
  EXPECT_EQ(first.find("top")->as_array()->size(), 2u);
  const std::string bias = std::to_string(ids_of(plain)[0]) + "=-100";
  EXPECT_NE(ids_of(run({"--logit-bias", bias, "--logit-bias", "5=0"})), ids_of(plain));
}

TEST(RunTest, CallsATool) {
  const TempDir dir;
  const std::string function = R"({"name": "get_weather", "description": "Weather of a city", "parameters": )"
                               R"({"type": "object", "properties": {"city": {"type": "string"}}}})";
  must(io::write_file_atomically((dir / "bare").string(), "[" + function + "]"));
  must(
      io::write_file_atomically((dir / "wrapped").string(), R"([{"type": "function", "function": )" + function + "}]"));
  for (const char* file : {"bare", "wrapped"}) {
    const Printed p = run_json({"-p", "What is the weather in Oslo?", "--tools", (dir / file).string()});
    const io::JsonArray* calls = p.fields().find("tool_calls")->as_array();
    ASSERT_EQ(calls->size(), 1u);
    const io::JsonFields call = must(io::JsonFields::of((*calls)[0], "the call"));
    EXPECT_EQ(must(call.get<std::string>("name")), "get_weather");
    EXPECT_EQ(must(call.get<std::string>("arguments")), R"({"city": "Oslo"})");
  }
}

TEST(RunTest, CtrlCEndsTheAnswer) {
  const ProgramResult result = run_levin(
      run_with({"-p", "What is the capital of Japan?", "--ignore-eos", "-n", "12000"}), {.interrupt_at = "Tokyo"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find(", cancelled]"), std::string::npos) << result.err;
}

// ---- standard input and output ------------------------------------------------------------------------------------

TEST(StandardInputTest, IsAPromptOrPartOfOne) {
  const std::string text = "Repeat: river stone\napple tiger\n";
  const std::string whole = answer({"-p", "Repeat: river stone\napple tiger"});
  const auto out = [](Arguments more, const std::string& input) {
    const ProgramResult result = run_levin(run_with(std::move(more)), {.input = input});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(out({}, text), whole);
  EXPECT_EQ(out({"-p", "-"}, text), whole);
  EXPECT_EQ(out({"-p", "Repeat: river stone\napple tiger"}, ""), whole);
  EXPECT_EQ(out({"-p", "Repeat: river stone"}, "apple tiger\r\n"),
            answer({"-p", "Repeat: river stone\n\napple tiger"}));
  const Printed json(run_levin(run_with({"--json"}), {.input = text}));
  EXPECT_EQ(text_of(json) + "\n", whole);
  EXPECT_EQ(out({"--raw", "-n", "8"}, "def read_file("), answer({"--raw", "-n", "8", "-p", "def read_file("}));
}

TEST(StandardOutputTest, AWriteThatFailsIsAnError) {
  const TempDir dir;
  must(io::write_file_atomically((dir / "text").string(), std::string(100'000, 'x')));
  const Arguments commands[] = {{"run", kDemo, "-p", "hi", "-n", "4"},
                                {"run", kDemo, "-p", "hi", "-n", "4", "--json"},
                                {"inspect", kDemo},
                                {"inspect", kDemo, "--json"},
                                {"tokenize", kDemo, (dir / "text").string()},
                                {"bench", kDemo, "--depths", "0", "--decode-tokens", "2"},
                                {"doctor"},
                                {"--version"},
                                {"--help-all"}};
  for (const Arguments& command : commands) {
    for (const char* out : {"/dev/full", ""}) {
      const ProgramResult result = run_levin(command, {.out_file = out});
      EXPECT_EQ(result.exit_code, 1) << command.front() << " to '" << out << "': " << result.err;
      EXPECT_NE(result.err.find(*out != 0 ? "error: cannot write standard output: No space left on device\n"
                                          : "error: cannot write standard output: Bad file descriptor\n"),
                std::string::npos)
          << result.err;
    }
  }
}

// Under any limit of the address space: the work is done, or there is too little memory for it.
TEST(MemoryTest, TooLittleIsNoAbort) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs the address space for itself";
#endif
  int n_refused = 0;
  for (int64_t mib = 40; mib <= 320; mib += 20) {
    const ProgramResult result = run_levin({"run", kDemo, "-p", "hi", "-n", "2"}, {.address_space_bytes = mib << 20});
    if (result.exit_code == 127 || result.exit_code == 0) continue;  // 127: too little to load the program itself
    ++n_refused;
    EXPECT_EQ(result.exit_code, 4) << mib << ": " << result.err;
    EXPECT_NE(result.err.find("error: "), std::string::npos) << result.err;
  }
  EXPECT_GT(n_refused, 0);
}

// ---- tokenize, bench, eval ---------------------------------------------------------------------------------------

TEST(TokenizeTest, ThereAndBack) {
  const std::string text = "def f(x):\n\treturn 'naïve' # 漢字 <think>\n";
  const ProgramResult ids = run_levin({"tokenize", kDemo}, {.input = text});
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(run_levin({"tokenize", kDemo, "--decode"}, {.input = ids.out}).out, text);
  const ProgramResult plain = run_levin({"tokenize", kDemo, "--special", "off"}, {.input = text});
  EXPECT_GT(plain.out.size(), ids.out.size());  // <think> in pieces
  EXPECT_EQ(run_levin({"tokenize", kDemo, "--decode"}, {.input = plain.out}).out, text);
}

TEST(TokenizeTest, IdsOfStandardInputAreAPrompt) {
  const std::string text = "What is the capital of Japan?\n";
  const ProgramResult ids = run_levin({"tokenize", kDemo, "-"}, {.input = text});
  EXPECT_EQ(ids.out, run_levin({"tokenize", kDemo}, {.input = text}).out);
  const ProgramResult one = run_levin(run_with({"--ids-file", "-", "-n", "1"}), {.input = ids.out});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_NE(one.err.find(" tokens/s, 1 token, length]"), std::string::npos) << one.err;
  EXPECT_NE(run_levin(run_with({"--ids-file", "-"})).err.find("- has no token ids"), std::string::npos);
  EXPECT_NE(run_levin(run_with({"--ids-file", kDemo})).err.find("it is a folder"), std::string::npos);
}

TEST(BenchTest, PrintsARowACase) {
  const Arguments bench = {"bench",           kDemo, "--depths", "0,600", "--batch",       "1,2",
                           "--decode-tokens", "4",   "--chunk",  "64",    "--repetitions", "2"};
  const auto run = [&](Arguments more) {
    more.insert(more.begin(), bench.begin(), bench.end());
    return run_levin(more);
  };
  const Printed p(run({"--json", "--ops"}));
  const io::JsonArray& rows = *p.document().as_array();
  ASSERT_EQ(rows.size(), 8u);  // depths, batches, with drafts and without
  for (const io::JsonValue& row : rows) {
    const io::JsonFields fields = must(io::JsonFields::of(row, "a row"));
    for (const char* key : {"prefill_tokens_per_s", "decode_tokens_per_s", "decode_step_ms"})
      EXPECT_GT(must(fields.get<double>(key)), 0) << key;
    EXPECT_GE(must(fields.get<double>("mean_accept_length")), 1);
    EXPECT_GT(must(must(fields.get_fields("decode_step_op_s")).get<double>("attention")), 0);
    const io::JsonFields products = must(must(fields.get_fields("decode_step_op_work")).get_fields("products"));
    EXPECT_GT(must(products.get<double>("gbytes")), 0);
    EXPECT_GT(must(products.get<double>("gflop")), 0);
    EXPECT_GT(must(must(fields.get_fields("limits")).get<double>("f32_gflop_per_s")), 0);
  }
  const TempDir dir;
  const ProgramResult csv = run({"--csv", "--plot", (dir / "plot.svg").string()});
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 9);
  EXPECT_NE(must(io::read_file((dir / "plot.svg").string())).find("</svg>"), std::string::npos);
  EXPECT_NE(run({"--ops"}).out.find("of limit"), std::string::npos);
  EXPECT_NE(run({"--adaptive", "--spec-steps", "2", "--temperature", "1"}).out.find("  <=2  "), std::string::npos);
}

TEST(BenchTest, RepeatsAndShowsTheSpread) {
  const Arguments bench = {"bench", kDemo, "--depths", "0", "--spec", "off", "--decode-tokens", "4", "--chunk", "64"};
  const auto run = [&](Arguments more) {
    more.insert(more.begin(), bench.begin(), bench.end());
    return run_levin(more);
  };
  for (const auto& [more, n] : {std::pair<Arguments, size_t>{{"--json"}, 5}, {{"--json", "--repetitions", "3"}, 3}}) {
    const Printed p(run(more));
    const io::JsonFields row = must(io::JsonFields::of(p.document().as_array()->front(), "a row"));
    for (const std::string kind : {"prefill", "decode"}) {
      std::vector<double> samples = must(row.get<std::vector<double>>(kind + "_tokens_per_s_samples"));
      ASSERT_EQ(samples.size(), n);
      std::sort(samples.begin(), samples.end());
      EXPECT_EQ(must(row.get<double>(kind + "_tokens_per_s")), samples[n / 2]);
    }
    EXPECT_GE(must(row.get<double>("processors_busy_elsewhere")), 0);
  }
  const TempDir dir;
  const std::string plot = (dir / "plot.svg").string();
  const std::string csv = run({"--csv", "--repetitions", "1", "--plot", plot}).out;
  EXPECT_NE(csv.find(",repetitions,prefill_min,prefill_max,decode_min,decode_max\n0,1,0,"), std::string::npos) << csv;
  for (const char* part : {"demo-v32 on ", " threads, ", "-", "tokens/s"})
    EXPECT_NE(must(io::read_file(plot)).find(part), std::string::npos) << part;
  EXPECT_NE(run({"--repetitions", "2"}).out.find("+-%"), std::string::npos);
}

TEST(BenchTest, SetsAVerifyPassBesideOneOfARow) {
  const Arguments bench = {"bench",           kDemo, "--depths", "300", "--spec",   "off",
                           "--decode-tokens", "4",   "--chunk",  "64",  "--verify", "4"};
  Arguments json = bench;
  json.push_back("--json");
  const Printed p(run_levin(json));
  const io::JsonFields row = must(io::JsonFields::of(p.document().as_array()->front(), "a row"));
  for (const char* rows : {"1", "4"}) {
    EXPECT_GT(must(row.get<double>(fmt::format("pass_of_{}_ms", rows))), 0);
    EXPECT_GT(must(must(row.get_fields(fmt::format("pass_of_{}_op_s", rows))).get<double>("attention")), 0);
  }
  EXPECT_NE(run_levin(bench).out.find("4 rows"), std::string::npos);
}

TEST(BenchTest, WithoutLayersThatDraftThereIsNoRowWithDrafts) {
  const std::string folder = std::string(LEVIN_SOURCE_DIR) + "/tests/fixtures/glm-shared";
  const ProgramResult result =
      run_levin({"bench", folder, "--load-format", "dummy", "--override", "num_nextn_predict_layers=0", "--depths",
                 "0,64", "--decode-tokens", "2", "--chunk", "32", "--repetitions", "1", "--spec-steps", "3", "--json"});
  const Printed printed(result);
  ASSERT_EQ(printed.document().as_array()->size(), 2u);
  EXPECT_NE(result.err.find("warning: the model has no layers that draft"), std::string::npos) << result.err;
}

TEST(BenchTest, NeedsTheConfigAlone) {
  const TempDir dir;
  must(io::write_file_atomically((dir / "config.json").string(), must(io::read_file(kDemo + "/config.json"))));
  const ProgramResult result = run_levin({"bench", dir.path().string(), "--load-format", "dummy", "--depths", "0",
                                          "--decode-tokens", "2", "--chunk", "16", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(EvalTest, ScoresAnswersAndTexts) {
  const TempDir dir;
  must(io::write_file_atomically((dir / "answers").string(),
                                 "{\"prompt\": \"What is the capital of Japan?\", "
                                 "\"answer\": \"The capital of Japan is Tokyo.\"}\n\n"
                                 "{\"prompt\": \"What is the capital of Japan?\", \"answer\": \"Ah, so what.\"}\n"));
  const Printed p(run_levin({"eval", kDemo, (dir / "answers").string(), "--temperature", "0", "--json"}));
  EXPECT_EQ(must(p.fields().get<int64_t>("prompts")), 2);
  EXPECT_EQ(must(p.fields().get<double>("exact")), 0.5);
  EXPECT_LT(must(p.fields().get<double>("mean_logprob")), 0);
  must(io::write_file_atomically((dir / "text").string(), "def read_file(name):\n    return open(name).read()\n"));
  const Printed text(run_levin({"eval", kDemo, "--perplexity", (dir / "text").string(), "--json"}));
  EXPECT_GT(must(text.fields().get<double>("perplexity")), 1);
  EXPECT_LT(must(text.fields().get<double>("perplexity")), 1000);  // of 4096 tokens
}

TEST(EvalTest, WindowsOfATextNeedAScoredToken) {
  const TempDir dir;
  must(io::write_file_atomically((dir / "text").string(), "def read_file(name):\n"));
  for (const std::string& model : {kDemo, std::string(LEVIN_SOURCE_DIR) + "/models/demo-glm"}) {
    const auto in_windows_of = [&](const char* tokens) {
      return run_levin({"eval", model, "--perplexity", (dir / "text").string(), "--max-model-len", tokens});
    };
    EXPECT_EQ(in_windows_of("1").exit_code, 2);
    EXPECT_NE(in_windows_of("1").err.find("--max-model-len is 1, expected at least 2"), std::string::npos);
    EXPECT_EQ(in_windows_of("2").exit_code, 0);
  }
}

TEST(EvalTest, SaysWhichAnswerCannotBeScored) {
  const TempDir dir;
  const std::string file = (dir / "answers").string();
  const std::string words = fmt::format("{:a^400}", "");
  const auto refused = [&](const std::string& prompt, const std::string& answer) {
    must(io::write_file_atomically(file, fmt::format("{{\"prompt\": \"a\", \"answer\": \"b\"}}\n"
                                                     "{{\"prompt\": \"{}\", \"answer\": \"{}\"}}\n",
                                                     prompt, answer)));
    return run_levin({"eval", kDemo, file, "--temperature", "0", "--max-model-len", "64"});
  };
  for (const ProgramResult& result : {refused(words, "b"), refused("a", words)}) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find(file + ":2: "), std::string::npos) << result.err;
  }
}

// ---- serve -------------------------------------------------------------------------------------------------------

TEST(ServeTest, SaysThatACacheIsTooSmall) {
  const ProgramResult result = run_levin({"serve", kDemo, "--port", "0", "--cache-tokens", "2000"},
                                         {.interrupt_at = "ready ", .interrupt_on_error_output = true});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("--cache-tokens 2000 is less than one request of the longest context takes: the cache has "
                            "16384 tokens"),
            std::string::npos)
      << result.err;
}

TEST(ServeTest, SaysThatHostNamesAreNotChecked) {
  const auto err = [](Arguments arguments) {
    const Arguments serve = {"serve", kDemo, "--port", "0", "--allowed-hosts", "desk.lan"};
    arguments.insert(arguments.begin(), serve.begin(), serve.end());
    return run_levin(arguments, {.interrupt_at = "ready ", .interrupt_on_error_output = true}).err;
  };
  const std::string text = "--allowed-hosts is not used: ";
  EXPECT_EQ(err({}).find(text), std::string::npos);
  EXPECT_NE(err({"--api-key", "k"}).find(text + "every request must carry a key"), std::string::npos);
  EXPECT_NE(err({"--host", "0.0.0.0"}).find(text + "--host is no loopback address"), std::string::npos);
}

// Weights by chance for 256 experts a layer take about a second to make; the server says that it loads before it begins.
TEST(ServeTest, EndsAtOnceWhileTheModelIsLoading) {
  const TempDir dir;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(kDemo + "/" + file, dir / file);
  }
  std::string config = must(io::read_file(kDemo + "/config.json"));
  const std::string experts = "\"n_routed_experts\": 8";
  ASSERT_NE(config.find(experts), std::string::npos);
  config.replace(config.find(experts), experts.size(), "\"n_routed_experts\": 256");
  must(io::write_file_atomically((dir / "config.json").string(), config));
  for (const int signal : {SIGTERM, SIGINT}) {
    const ProgramResult result =
        run_levin({"serve", dir.path().string(), "--load-format", "dummy", "--port", "0"},
                  {.interrupt_at = "loading ", .interrupt_on_error_output = true, .interrupt_signal = signal});
    EXPECT_EQ(result.exit_code, 128 + signal) << result.err;
    EXPECT_EQ(result.err.find("ready "), std::string::npos) << result.err;
  }
}

// ---- mistakes ----------------------------------------------------------------------------------------------------

struct Mistake {
  const char* name;
  Arguments arguments;  // MODEL: the demonstration model, DIR: a folder with the files below
  int exit_code;
  const char* message;
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

const Mistake kMistakes[] = {
    {"UnknownOption", {"run", "MODEL", "-p", "x", "--temprature", "1"}, 2, "did you mean '--temperature'?"},
    {"NoSuchModel", {"run", "DIR/nowhere", "-p", "x"}, 3, "DIR/nowhere"},
    {"NegativeTemperature", {"run", "MODEL", "-p", "x", "--temperature", "-1"}, 2, "--temperature is '-1'"},
    {"TopPAboveOne",
     {"run", "MODEL", "-p", "x", "--top-p", "1.5"},
     2,
     "--top-p is '1.5', expected a number above 0 and up to 1"},
    {"TopPOfNothing", {"run", "MODEL", "-p", "x", "--top-p", "0"}, 2, "--top-p is '0', expected a number above 0"},
    {"TopKNegative", {"run", "MODEL", "-p", "x", "--top-k", "-3"}, 2, "--top-k is '-3'"},
    {"MinPAboveOne", {"run", "MODEL", "-p", "x", "--min-p", "2"}, 2, "--min-p is '2'"},
    {"NoTokens", {"run", "MODEL", "-p", "x", "-n", "0"}, 2, "--max-tokens is '0'"},
    {"SeedOfLetters", {"run", "MODEL", "-p", "x", "--seed", "abc"}, 2, "--seed is 'abc'"},
    {"TooManyDrafts", {"run", "MODEL", "-p", "x", "--spec-steps", "99"}, 2, "--spec-steps is '99'"},
    {"SureBeyondOne", {"run", "MODEL", "-p", "x", "--spec-p-min", "1.5"}, 2, "--spec-p-min is '1.5'"},
    {"PrefixMemoryOfLetters", {"serve", "MODEL", "--prefix-memory", "much"}, 2, "--prefix-memory is 'much'"},
    {"CacheFolderOfNothing", {"serve", "MODEL", "--cache-dir-size", "0"}, 2, "expected a size from 1M"},
    // DIR/model has no weights: an address that cannot be had is met first.
    {"KeyFileOfNobody", {"serve", "DIR/model", "--api-key-file", "DIR/no-keys"}, 2, "no-keys"},
    {"KeyFileWithoutKeys",
     {"serve", "DIR/model", "--api-key-file", "/dev/null"},
     2,
     "contains no key; write one per line"},
    {"KeysOfNothing", {"serve", "DIR/model", "--api-key", ","}, 2, "--api-key contains no key; write one"},
    {"KeyOfBlanks", {"serve", "DIR/model", "--api-key", " "}, 2, "--api-key contains no key; write one"},
    {"KeyMissingInside", {"serve", "DIR/model", "--api-key", "a, ,b"}, 2, "--api-key: key number 2 of 3 is empty"},
    {"NamesOfNothing", {"serve", "DIR/model", "--served-model-name", ","}, 2, "--served-model-name contains no name"},
    {"HostAtTheEndMissing",
     {"serve", "DIR/model", "--allowed-hosts", "a,"},
     2,
     "--allowed-hosts: name number 2 of 2 is empty"},
    {"HostNoAddress", {"serve", "DIR/model", "--host", "300.1.1.1"}, 2, "--host 300.1.1.1 is not an address"},
    {"HostOfNobody", {"serve", "DIR/model", "--host", "203.0.113.7"}, 2, "cannot listen on 203.0.113.7 port 8000"},
    {"HostUnknown", {"serve", "DIR/model", "--host", "no.such.host.invalid"}, 2, "nor a name that can be resolved"},
    {"CacheBelowOneRequest",
     {"serve", "DIR/model", "--cache-tokens", "2000", "--max-model-len", "4k"},
     2,
     "--cache-tokens 2000 is less than one request of --max-model-len 4096 takes"},
    {"Trees",
     {"run", "MODEL", "-p", "x", "--spec-width", "2"},
     2,
     "--spec-width is '2', expected 1: only chains are supported"},
    {"UnknownSpeculation", {"run", "MODEL", "-p", "x", "--spec", "eagle"}, 2, "--spec is 'eagle'"},
    {"BiasWithoutValue", {"run", "MODEL", "-p", "x", "--logit-bias", "17"}, 2, "expected ID=X"},
    {"BiasBeyondVocabulary",
     {"run", "MODEL", "-p", "x", "--logit-bias", "999999=1"},
     2,
     "--logit-bias names token 999999"},
    {"EmptyStop", {"run", "MODEL", "-p", "x", "--stop", ""}, 2, "--stop is ''"},
    {"LogprobsWithoutJson", {"run", "MODEL", "-p", "x", "--logprobs", "2"}, 2, "--logprobs needs --json"},
    {"TwoPrompts", {"run", "MODEL", "-p", "x", "--ids-file", "DIR/ids"}, 2, "omit one"},
    {"JsonWithoutPrompt", {"run", "MODEL", "--json"}, 2, "--json needs a prompt"},
    {"RawWithoutPrompt", {"run", "MODEL", "--raw"}, 2, "--raw needs a prompt"},
    {"NothingToAsk", {"run", "MODEL"}, 2, "standard input is empty"},
    {"NothingForADash", {"run", "MODEL", "-p", "-"}, 2, "standard input is empty"},
    // DIR/model is a config.json alone: the ids are refused before a tokenizer or weights are looked for.
    {"NoIdsFile", {"run", "DIR/model", "--ids-file", "DIR/none"}, 2, "cannot read the ids file"},
    {"WordsForIds", {"run", "DIR/model", "--ids-file", "DIR/words"}, 2, "'hello' (number 0) is not a token id"},
    {"IdBeyondVocabulary",
     {"run", "DIR/model", "--ids-file", "DIR/big_ids"},
     2,
     "token id 4096 (number 0 of the ids) is outside the vocabulary of 4096 tokens"},
    {"NoIds", {"run", "DIR/model", "--ids-file", "DIR/empty"}, 2, "DIR/empty has no token ids"},
    {"TraceIdBeyondVocabulary",
     {"trace", "DIR/model", "--ids-file", "DIR/big_ids", "--out", "DIR/out"},
     2,
     "token id 4096 (number 0 of the ids) is outside the vocabulary of 4096 tokens"},
    {"TraceNoIds", {"trace", "DIR/model", "--ids-file", "DIR/empty", "--out", "DIR/out"}, 2, "has no token ids"},
    {"PromptBeyondTheContext",
     {"run", "MODEL", "--max-model-len", "16", "--ids-file", "DIR/long_ids"},
     2,
     "raise --max-model-len"},
    {"ContextBeyondTheModel", {"run", "MODEL", "-p", "x", "--max-model-len", "1M"}, 2, "16384"},
    {"NoToolsFile", {"run", "MODEL", "-p", "x", "--tools", "DIR/none"}, 2, "DIR/none"},
    {"ToolsNoList", {"run", "MODEL", "-p", "x", "--tools", "DIR/object"}, 2, "expected a list of functions"},
    {"ToolWithoutName", {"run", "MODEL", "-p", "x", "--tools", "DIR/nameless"}, 2, "name"},
    {"ToolsWithRaw", {"run", "MODEL", "--raw", "-p", "x", "--tools", "DIR/object"}, 2, "--tools needs the chat format"},
    {"ToolsWithIds",
     {"run", "MODEL", "--ids-file", "DIR/ids", "--tools", "DIR/object"},
     2,
     "--tools needs the chat format, which --ids-file does without"},
    {"SystemWithRaw", {"run", "MODEL", "--raw", "-p", "x", "--system", "y"}, 2, "--system needs the chat format"},
    {"SystemWithIds",
     {"run", "MODEL", "--ids-file", "DIR/ids", "--system", "y"},
     2,
     "--system needs the chat format, which --ids-file does without"},
    {"ThinkingWithRaw", {"run", "MODEL", "--raw", "-p", "x", "--thinking", "on"}, 2, "--thinking on needs the chat"},
    {"NoTokenizer", {"run", "DIR/model", "-p", "x"}, 3, "tokenizer.json"},
    {"TokenizeNothing", {"tokenize", "MODEL", "DIR/none"}, 2, "DIR/none"},
    {"DecodeWords", {"tokenize", "MODEL", "DIR/words", "--decode"}, 2, "'hello' (number 0) is not a token id"},
    {"DecodeBeyondVocabulary", {"tokenize", "MODEL", "DIR/big_ids", "--decode"}, 2, "token id 4096"},
    {"BenchTooDeep", {"bench", "MODEL", "--depths", "0,1M"}, 2, "give smaller --depths"},
    {"BenchOfMoreThanTheModel",
     {"bench", "MODEL", "--depths", "0", "--decode-tokens", "20000"},
     2,
     "or --decode-tokens"},
    {"BenchBeyondTheContext",
     {"bench", "MODEL", "--depths", "0,600", "--max-model-len", "1000"},
     2,
     "a depth of 600 needs 1112 tokens, more than --max-model-len 1000"},
    {"BenchOfWords", {"bench", "MODEL", "--depths", "0,deep"}, 2, "--depths is '0,deep'"},
    {"BenchTooWide", {"bench", "MODEL", "--depths", "0", "--chunk", "16", "--verify", "17"}, 2, "give fewer rows"},
    {"BenchTwoFormats", {"bench", "MODEL", "--json", "--csv"}, 2, "omit one"},
    // Before weights are looked for and before a server is asked: DIR/model has none, and nobody listens on port 1.
    {"BenchPlotNowhere", {"bench", "DIR/model", "--plot", "DIR/no/a.svg"}, 1, "no/a.svg: No such file or directory"},
    {"BenchPlotIsAFolder", {"bench", "DIR/model", "--plot", "DIR/model"}, 1, "it is a folder, name a file"},
    {"LoadOpenAndClosed", {"load", "127.0.0.1:1", "--rate", "1", "--concurrency", "2"}, 2, "exclude each other"},
    {"LoadPlotNowhere", {"load", "127.0.0.1:1", "--plot", "DIR/no/a.svg"}, 1, "no/a.svg: No such file or directory"},
    {"TraceNowhere",
     {"trace", "DIR/model", "--ids-file", "DIR/ids", "--out", "DIR/no/a"},
     1,
     "no/a: No such file or directory"},
    {"ExportNowhere", {"export-gguf", "DIR/model", "--out", "DIR/no/a"}, 1, "no/a: No such file or directory"},
    {"EvalNothing", {"eval", "MODEL"}, 2, "give either FILE"},
    {"EvalNoFile", {"eval", "DIR/model", "DIR/none"}, 2, "DIR/none"},
    {"EvalNoAnswer", {"eval", "DIR/model", "DIR/no_answer"}, 2, "DIR/no_answer:1: answer is empty"},
    {"EvalWords", {"eval", "DIR/model", "DIR/words"}, 2, "DIR/words:1"},
    {"EvalWithoutAnswer", {"eval", "DIR/model", "DIR/object"}, 2, "answer"},
};

class MistakeTest : public testing::TestWithParam<Mistake> {};

TEST_P(MistakeTest, GetsTheMessageThatIsNeeded) {
  const TempDir dir;
  const std::pair<const char*, std::string> files[] = {
      {"ids", "1 2 3"},
      {"words", "hello world"},
      {"no_answer", R"({"prompt": "Hi", "answer": ""})"},
      {"big_ids", "4096"},
      {"long_ids", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18"},
      {"empty", ""},
      {"object", R"({"prompt": "x"})"},
      {"nameless", R"([{"type": "function", "function": {"description": "x"}}])"}};
  for (const auto& [name, text] : files) must(io::write_file_atomically((dir / name).string(), text));
  std::filesystem::create_directory(dir / "model");
  must(
      io::write_file_atomically((dir / "model" / "config.json").string(), must(io::read_file(kDemo + "/config.json"))));
  const auto filled = [&](std::string text) {
    if (text == "MODEL") return kDemo;
    if (text.starts_with("DIR")) text.replace(0, 3, dir.path().string());
    return text;
  };
  Arguments arguments;
  for (const std::string& word : GetParam().arguments) arguments.push_back(filled(word));
  const ProgramResult result = run_levin(arguments);
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.err;
  EXPECT_NE(result.err.find(filled(GetParam().message)), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("error: "), std::string::npos) << result.err;
}

INSTANTIATE_TEST_SUITE_P(Table, MistakeTest, testing::ValuesIn(kMistakes),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace levin::test
