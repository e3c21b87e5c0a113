#include "engine/same_tokens.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "arch/load_config.h"
#include "base/check.h"
#include "engine/demo_text.h"
#include "engine/passkey.h"
#include "engine/step_loop.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace levin::test {
namespace {

constexpr std::array<int64_t, 3> kChunks = {64, 256, 1024};
constexpr int64_t kCompany = 7;

// A circumstance as indices into the choices, for counting pairs.
using Choices = std::array<int, 6>;
constexpr Choices kCounts = {2, 3, 2, 3, kMaxDrafts + 1, 2};

Circumstance from_choices(const Choices& c) {
  return {.temperature = kTemperatures[c[0]],
          .numerics = kAllNumerics[c[1]],
          .n_threads = 1 + c[2],
          .chunk_tokens = kChunks[c[3]],
          .n_spec_steps = c[4],
          .in_company = c[5] == 1};
}

std::vector<Choices> all_choices() {
  std::vector<Choices> out = {{}};
  for (size_t kind = 0; kind < kCounts.size(); ++kind) {
    std::vector<Choices> longer;
    for (const Choices& c : out) {
      for (int i = 0; i < kCounts[kind]; ++i) {
        longer.push_back(c);
        longer.back()[kind] = i;
      }
    }
    out.swap(longer);
  }
  return out;
}

using Pair = std::tuple<size_t, int, size_t, int>;

std::set<Pair> pairs_of(const Choices& c) {
  std::set<Pair> out;
  for (size_t a = 0; a < c.size(); ++a) {
    for (size_t b = a + 1; b < c.size(); ++b) out.emplace(a, c[a], b, c[b]);
  }
  return out;
}

struct RequestChoices {
  double temperature = 0;
  uint64_t seed = 0;
  int64_t max_tokens = 0;
};

GenerateRequest request_for(const Model& model, const std::vector<int32_t>& prompt, const RequestChoices& choices) {
  GenerateRequest request{.prompt = prompt, .max_tokens = choices.max_tokens};
  request.sampling = {
      .temperature = choices.temperature, .stop_tokens = model.config().eos_tokens, .seed = choices.seed};
  return request;
}

}  // namespace

std::string Circumstance::describe() const {
  return fmt::format("temperature {}, {}, {} threads, chunks of {}, {}{} drafts, {}", temperature,
                     numerics_mode_name(numerics), n_threads, chunk_tokens, adapt_depth ? "up to " : "", n_spec_steps,
                     in_company ? "in a batch" : "alone");
}

std::vector<Circumstance> all_circumstances() {
  std::vector<Circumstance> out;
  for (const Choices& c : all_choices()) out.push_back(from_choices(c));
  return out;
}

// Greedy cover: always the first combination that adds the most pairs.
std::vector<Circumstance> covering_circumstances() {
  const std::vector<Choices> all = all_choices();
  std::set<Pair> open;
  for (const Choices& c : all) open.merge(pairs_of(c));
  std::vector<Circumstance> out;
  while (!open.empty()) {
    size_t most = 0;
    const Choices* best = nullptr;
    for (const Choices& c : all) {
      const std::set<Pair> pairs = pairs_of(c);
      const size_t added = static_cast<size_t>(
          std::count_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return open.contains(p); }));
      if (added > most) {
        most = added;
        best = &c;
      }
    }
    for (const Pair& p : pairs_of(*best)) open.erase(p);
    out.push_back(from_choices(*best));
  }
  return out;
}

std::vector<std::vector<int32_t>> answers(const Model& model, const Circumstance& circumstance,
                                          const std::vector<std::vector<int32_t>>& prompts, int64_t max_tokens) {
  int64_t longest = 0, total = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
    total += static_cast<int64_t>(prompt.size()) + max_tokens + 2 * kPageTokens;
  }
  total += kCompany * (200 + max_tokens + 2 * kPageTokens);
  Runner runner(model, runner_options(total, circumstance.n_threads));
  must(runner.ready());
  // Every draft is made, however doubtful, so that passes are as wide as the circumstance says
  StepLoop loop(runner, {.chunk_tokens = circumstance.chunk_tokens,
                         .n_spec_steps = circumstance.n_spec_steps,
                         .adapt_depth = circumstance.adapt_depth,
                         .min_confidence = circumstance.adapt_depth ? kDefaultMinConfidence : 0,
                         .max_context_tokens = longest + max_tokens + 1,
                         .overlap = circumstance.in_company});  // either order of the loop's work
  std::vector<std::vector<int32_t>> out(prompts.size());
  std::vector<RequestId> company;
  for (size_t i = 0; i < prompts.size(); ++i) {
    // Of other lengths and seeds, around the request that is looked at
    if (circumstance.in_company && company.empty()) {
      for (int64_t j = 0; j < kCompany; ++j) {
        const std::vector<int32_t>& other = prompts[static_cast<size_t>(j) % prompts.size()];
        const std::vector<int32_t> shorter(other.begin(),
                                           other.begin() + std::min<int64_t>(std::ssize(other), 20 + 23 * j));
        const RequestChoices choices{
            .temperature = j % 2 == 0 ? 0.0 : 0.9, .seed = static_cast<uint64_t>(1000 + j), .max_tokens = max_tokens};
        company.push_back(must(loop.submit(request_for(model, shorter, choices))));
      }
    }
    const RequestId id = must(loop.submit(request_for(
        model, prompts[i], {.temperature = circumstance.temperature, .seed = 77 + i, .max_tokens = max_tokens})));
    std::unique_ptr<Generation> done;
    while (done == nullptr && loop.step()) done = loop.take(id);
    LEVIN_CHECK(done != nullptr, "request {} was lost", id);
    for (const TokenEvent& event : done->tokens) out[i].push_back(event.token);
    std::erase_if(company, [&](RequestId other) { return loop.take(other) != nullptr; });
  }
  return out;
}

std::vector<std::string> broken_promises(const std::vector<Circumstance>& circumstances,
                                         const std::filesystem::path& model_folder,
                                         const std::vector<std::vector<int32_t>>& prompts, int64_t max_tokens) {
  std::vector<std::string> out;
  for (const NumericsMode mode : kAllNumerics) {
    if (std::none_of(circumstances.begin(), circumstances.end(), [&](const auto& c) { return c.numerics == mode; }))
      continue;
    const std::unique_ptr<Model> model = load_model(model_folder, {.numerics = mode});
    std::map<double, std::vector<std::vector<int32_t>>> plain;
    for (const Circumstance& c : circumstances) {
      if (c.numerics != mode) continue;
      if (!plain.contains(c.temperature)) {
        plain[c.temperature] = answers(*model, {.temperature = c.temperature, .numerics = mode}, prompts, max_tokens);
      }
      const std::vector<std::vector<int32_t>> found = answers(*model, c, prompts, max_tokens);
      for (size_t i = 0; i < prompts.size(); ++i) {
        if (found[i] == plain[c.temperature][i]) continue;
        const auto at = std::mismatch(found[i].begin(), found[i].end(), plain[c.temperature][i].begin(),
                                      plain[c.temperature][i].end());
        out.push_back(fmt::format("{}: prompt {} differs at token {}", c.describe(), i, at.first - found[i].begin()));
      }
    }
  }
  return out;
}

std::vector<std::vector<int32_t>> chat_prompts(const std::filesystem::path& model_folder) {
  const text::Tokenizer tokenizer = must(text::Tokenizer::load(model_folder));
  const text::ChatFormat format =
      must(load_chat_format(*must(load_model_config(model_folder)).config.family, model_folder, tokenizer));
  std::vector<std::vector<int32_t>> out;
  for (const auto& [question, thinking] :
       std::initializer_list<std::pair<const char*, bool>>{{"What is the capital of Japan?", true},
                                                           {"Repeat: river stone apple tiger", false},
                                                           {"As JSON: river is 4, stone is 77, cloud is 12", false},
                                                           {"What is speculative decoding?", true}}) {
    text::ChatRequest request{.messages = {}, .thinking = thinking};
    request.messages.push_back({.role = text::Role::kUser, .content = question});
    out.push_back(must(tokenizer.encode(must(format.render(request)))));
  }
  return out;
}

std::vector<int32_t> text_prompt(const std::filesystem::path& model_folder, uint64_t seed, size_t n_tokens) {
  const text::Tokenizer tokenizer = must(text::Tokenizer::load(model_folder));
  std::vector<int32_t> ids = encode_document(tokenizer, passkey_document(seed, 5 * n_tokens).text);
  LEVIN_CHECK(ids.size() >= n_tokens, "the text has {} tokens, {} are needed", ids.size(), n_tokens);
  ids.resize(n_tokens);
  return ids;
}

std::vector<std::vector<int32_t>> random_prompts(const std::filesystem::path& model_folder, uint32_t seed,
                                                 const std::vector<size_t>& lengths) {
  const auto n_vocab = static_cast<uint32_t>(must(load_model_config(model_folder)).config.n_vocab);
  std::mt19937 random(seed);
  std::vector<std::vector<int32_t>> out;
  for (const size_t n_tokens : lengths) {
    std::vector<int32_t>& ids = out.emplace_back(n_tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % n_vocab);
  }
  return out;
}

}  // namespace levin::test
