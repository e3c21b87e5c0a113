// Requests of all kinds at a time through the whole server: a fault in one of them is its own, and once the server is ready
// nothing is left to prepare.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "serve/served_demo.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

constexpr int32_t kPoisoned = 4000;  // "exception"

uint16_t& bf16_at(DrawnTensor& tensor, int64_t i) {
  EXPECT_EQ(tensor.dtype, io::StoredDtype::kBF16) << tensor.name;
  return reinterpret_cast<uint16_t*>(tensor.bytes.data())[i];
}

// The demonstration model, in which one token is more than f32 holds. Weights have to be finite: it has an element that other
// tokens lack, whose weight in the first norm is 2^124.
std::filesystem::path poison(TempCheckpoint& model) {
  constexpr uint16_t kOne = 0x3F80, kHuge = 0x7D80;
  DrawnTensor& embedding = model.tensor("model.embed_tokens.weight");
  const int64_t n_tokens = embedding.shape[0], d = embedding.shape[1];
  for (int64_t t = 0; t < n_tokens; ++t) bf16_at(embedding, t * d) = 0;
  for (int64_t i = 0; i < d; ++i) bf16_at(embedding, kPoisoned * d + i) = i == 0 ? kOne : 0;
  bf16_at(model.tensor("model.layers.0.input_layernorm.weight"), 0) = kHuge;
  return model.write();
}

std::string ids_text(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += (out.empty() ? "[" : ", ") + std::to_string(id);
  return out + "]";
}

// Greedy, or sampled.
std::string completion(const std::vector<int32_t>& prompt, int i, int max_tokens) {
  return R"({"prompt": )" + ids_text(prompt) + R"(, "ignore_eos": true, "max_tokens": )" + std::to_string(max_tokens) +
         R"(, "temperature": )" + (i % 2 == 0 ? "0" : "0.8") + R"(, "seed": )" + std::to_string(i) + "}";
}

// Of 30 tokens and more; from i = 4 on attention selects.
std::vector<int32_t> prompt_of(int i) {
  std::vector<int32_t> ids;
  for (int32_t j = 0; j < 30 + 60 * i; ++j) ids.push_back(100 + (j * (17 + i) + 31 * i) % 3000);
  return ids;
}

// No step begins before so many requests have come, so that they are computed side by side.
class StartGate {
 public:
  void await(int n) { n_awaited_ = n_come_ + n; }
  void come() { ++n_come_; }
  void pass() const {
    while (n_come_ < n_awaited_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int> n_come_ = 0, n_awaited_ = 0;
};

class PoisonedRequestTest : public ::testing::Test {
 protected:
  static constexpr int kGood = 7;
  static constexpr int kTokens = 40;  // ten steps and more

  PoisonedRequestTest() : model_(TempCheckpoint::from_folder(LEVIN_SOURCE_DIR "/models/demo-v32")) {
    serve::ServerOptions options;
    options.before_step = [this] { gate_.pass(); };
    options.on_fields = [this](const std::string&, const std::set<std::string, std::less<>>&) { gate_.come(); };
    demo_ = std::make_unique<ServedDemo>(options, EngineOptions{.model_folder = poison(model_), .max_running = 64});
    for (int i = 0; i < kGood; ++i) alone_.push_back(answer(i));
  }

  std::string answer(int i) const {
    const Reply reply = ask(demo_->port(), "/v1/completions", completion(prompt_of(i), i, kTokens));
    EXPECT_EQ(reply.status, 200) << reply.body;
    const io::JsonValue text = at(json(reply.body), "choices.0.text");
    return text.as_string() != nullptr ? *text.as_string() : "";
  }
  // Of a request that starts together with the good ones, each of which is answered as if it were alone.
  Reply among_good_ones(const std::string& request) {
    gate_.await(kGood + 1);
    std::vector<std::future<std::string>> good;
    for (int i = 0; i < kGood; ++i)
      good.push_back(std::async(std::launch::async, &PoisonedRequestTest::answer, this, i));
    const Reply reply = ask(demo_->port(), "/v1/completions", request);
    for (size_t i = 0; i < good.size(); ++i) EXPECT_EQ(good[i].get(), alone_[i]) << i;
    return reply;
  }

  TempCheckpoint model_;
  StartGate gate_;
  std::unique_ptr<ServedDemo> demo_;
  std::vector<std::string> alone_;
};

TEST_F(PoisonedRequestTest, EndsWithAnErrorAmongSevenOthers) {
  for (const size_t place : {size_t{0}, size_t{300}}) {
    const bool stream = place > 0;
    SCOPED_TRACE(testing::Message() << "token " << place << (stream ? ", streamed" : ""));
    std::vector<int32_t> prompt = prompt_of(5);
    prompt[place] = kPoisoned;
    std::string request = completion(prompt, 0, kTokens);
    if (stream) request.insert(1, R"("stream": true, )");
    const Reply reply = among_good_ones(request);
    EXPECT_EQ(reply.status, stream ? 200 : 500) << reply.body;
    const std::string error = stream && reply.status == 200 ? events_of(reply.body).back() : reply.body;
    EXPECT_NE(error.find("NaN or infinite at position " + std::to_string(place)), std::string::npos) << error;
  }
  EXPECT_EQ(ask(demo_->port(), "/health").status, 200);
  EXPECT_EQ(answer(3), alone_[3]);
}

// ---- ready ----

// What clients ask for: tokens that a device chooses and such that the host chooses, scores of prompts, structures, several answers.
std::vector<std::pair<std::string, std::string>> requests_of_all_kinds() {
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "What is the capital of Japan?"}], "max_tokens": 40)";
  std::vector<std::pair<std::string, std::string>> out;
  for (const char* more :
       {"", R"("temperature": 0.9, "seed": 5)", R"("stream": true)", R"("top_p": 0.9, "temperature": 1)",
        R"("presence_penalty": 1, "logit_bias": {"17": 3})", R"("logprobs": true, "top_logprobs": 4)",
        R"("n": 3, "temperature": 0.7)", R"("response_format": {"type": "json_object"})"})
    out.emplace_back("/v1/chat/completions", chat + (*more == 0 ? "" : ", ") + more + "}");
  for (int i = 0; i < 7; ++i) out.emplace_back("/v1/completions", completion(prompt_of(4 * i), i, 10 + 20 * i));
  out.emplace_back("/v1/completions",
                   R"({"prompt": )" + ids_text(prompt_of(6)) + R"(, "echo": true, "logprobs": 2, "max_tokens": 5})");
  out.emplace_back("/v1/messages", chat + "}");
  return out;
}

// One after another, all at a time, and clients that leave in the middle of an answer.
void serve_all_kinds(ServedDemo& demo) {
  const std::vector<std::pair<std::string, std::string>> requests = requests_of_all_kinds();
  const auto answer = [&](const std::pair<std::string, std::string>& request) {
    const Reply reply = ask(demo.port(), request.first, request.second);
    EXPECT_EQ(reply.status, 200) << request.second << "\n" << reply.body;
  };
  for (const auto& request : requests) answer(request);
  for (int i = 0; i < 3; ++i) {
    HttpClient leaves(demo.port());
    const std::string body = R"({"stream": true, )" + completion(prompt_of(i), i, 1000).substr(1);
    leaves.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    leaves.read_some();
  }
  std::vector<std::future<void>> together;
  for (int i = 0; i < 3; ++i) {
    for (const auto& request : requests) together.push_back(std::async(std::launch::async, answer, request));
  }
  for (std::future<void>& done : together) done.get();
}

double late_graphs(ServedDemo& demo) {
  const std::string page = ask(demo.port(), "/metrics").body;
  const size_t found = page.find("\nlevin_late_graphs_total");
  return found == std::string::npos ? -1 : std::atof(page.c_str() + page.find(' ', found));
}

TEST(ReadyTest, NoGraphIsRecordedAfterTheStartWhateverIsAskedFor) {
  if (tested_device() == "cpu") GTEST_SKIP() << "the CPU has no graphs";
  ServedDemo demo({}, {.graphs_at_load = true, .max_running = 64});
  serve_all_kinds(demo);
  EXPECT_EQ(late_graphs(demo), 0);
}

// So that the counter's 0 means something.
TEST(ReadyTest, GraphsThatAreRecordedWhenTheyAreNeededAreCounted) {
  if (tested_device() == "cpu") GTEST_SKIP() << "the CPU has no graphs";
  ServedDemo demo;
  serve_all_kinds(demo);
  EXPECT_GT(late_graphs(demo), 0);
}

}  // namespace
}  // namespace levin::test
