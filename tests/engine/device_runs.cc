#include "engine/device_runs.h"

#include <algorithm>
#include <random>
#include <span>

#include "support/must.h"

namespace levin::test {

Ids random_ids(uint32_t seed, size_t n, int64_t n_vocab) {
  std::mt19937 random(seed);
  Ids ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(n_vocab));
  return ids;
}

std::vector<Ids> prompts_for(const Model& model) {
  std::vector<Ids> prompts;
  for (const size_t n : {3, 70, 200, 33}) {
    prompts.push_back(random_ids(static_cast<uint32_t>(n), n, model.config().n_vocab));
  }
  return prompts;
}

std::vector<std::unique_ptr<Generation>> answer(Runner& runner, const std::vector<Ids>& prompts,
                                                const Circumstances& c) {
  StepLoop loop(runner, {.chunk_tokens = c.chunk_tokens,
                         .n_spec_steps = c.n_spec_steps,
                         .max_context_tokens = kContextTokens,
                         .max_running = c.max_running,
                         .share_prefixes = false,
                         .overlap = c.overlap});
  std::vector<RequestId> ids;
  for (const Ids& prompt : prompts) {
    GenerateRequest request{.prompt = prompt, .max_tokens = kAnswerTokens};
    request.sampling.temperature = ids.size() % 2 == 0 ? 0 : 0.8;
    request.sampling.seed = 5;
    ids.push_back(must(loop.submit(std::move(request))));
  }
  std::vector<std::unique_ptr<Generation>> answers(ids.size());
  while (loop.step()) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (answers[i] == nullptr) answers[i] = loop.take(ids[i]);
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (answers[i] == nullptr) answers[i] = loop.take(ids[i]);
  }
  return answers;
}

std::vector<Ids> tokens_of(const std::vector<std::unique_ptr<Generation>>& answers) {
  std::vector<Ids> out;
  for (const std::unique_ptr<Generation>& a : answers) {
    for (out.emplace_back(); const TokenEvent& event : a->tokens) out.back().push_back(event.token);
  }
  return out;
}

namespace {

std::vector<float> copy_of(const View& rows) { return {rows.data<float>(), rows.data<float>() + rows.n_elements()}; }

}  // namespace

std::vector<float> bits_of(const Model& model, RunnerOptions options, const GraphRun& run, size_t n_text_tokens) {
  options.graphs = run.graphs;
  Runner runner(model, options);
  must(runner.ready());
  std::vector<Ids> texts;
  std::vector<std::unique_ptr<SequencePages>> pages;
  for (size_t i = 0; i <= run.n_company; ++i) {
    texts.push_back(random_ids(static_cast<uint32_t>(i + 1), n_text_tokens, model.config().n_vocab));
    pages.push_back(std::make_unique<SequencePages>(runner.pools()));
    must(pages.back()->grow(static_cast<int64_t>(n_text_tokens) + 13));
  }
  const auto chunks = [&](size_t begin, size_t n) {
    std::vector<SequenceChunk> out;
    for (size_t i = texts.size(); i-- > 0;) {  // the one looked at comes last
      out.push_back({.tokens = std::span(texts[i]).subspan(begin, n),
                     .first_position = static_cast<int32_t>(begin),
                     .pages = pages[i].get()});
    }
    return out;
  };
  std::vector<float> out;
  const auto keep = [&](const View& rows) {
    const std::vector<float> values = copy_of(rows);
    out.insert(out.end(), values.begin(), values.end());
  };
  constexpr size_t kVerified = 3;
  const size_t n_prompt = n_text_tokens - kVerified;
  for (size_t begin = 0; begin < n_prompt; begin += static_cast<size_t>(run.chunk_tokens)) {
    runner.begin_step();
    runner.trunk(chunks(begin, std::min(static_cast<size_t>(run.chunk_tokens), n_prompt - begin)));
  }
  runner.begin_step();
  const ForwardRows rows = runner.trunk(chunks(n_prompt, kVerified));
  const int64_t first = static_cast<int64_t>(run.n_company * kVerified);
  keep(runner.logits(rows.hidden.slice_first(first, kVerified)));
  if (const BlockDrafting* drafting = model.block_drafting()) {
    const int64_t n_block = model.config().n_draft_block;
    std::vector<Ids> tokens;
    for (const Ids& text : texts) {
      tokens.emplace_back(static_cast<size_t>(n_block), drafting->noise_token()).front() = text.back();
    }
    std::vector<SequenceChunk> blocks = chunks(n_prompt + kVerified - 1, 1);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i].tokens = tokens[blocks.size() - 1 - i];
    const ForwardRows drafted = runner.draft_blocks(blocks);
    const View last = drafted.hidden.slice_first(static_cast<int64_t>(run.n_company) * n_block, n_block);
    keep(runner.to_host(last));
    keep(runner.draft_logits(last));
    return out;
  }
  if (!model.has_mtp()) return out;
  std::vector<SequenceChunk> pairs = chunks(n_prompt + 1, kVerified - 1);
  for (SequenceChunk& pair : pairs) pair.first_position -= 1;
  std::vector<int32_t> wanted, taps;
  for (size_t i = 0; i < pairs.size(); ++i) {
    for (size_t j = 0; j + 1 < kVerified; ++j) taps.push_back(static_cast<int32_t>(i * kVerified + j));
    wanted.push_back(static_cast<int32_t>((i + 1) * (kVerified - 1) - 1));
  }
  ForwardRows drafted = runner.mtp(pairs, {.state = rows.state, .rows = taps}, wanted);
  for (int step = 0; step < 3; ++step) {
    const auto last = static_cast<int64_t>(run.n_company);
    keep(runner.to_host(drafted.hidden.slice_first(last, 1)));
    keep(runner.draft_logits(drafted.hidden).slice_first(last, 1));
    std::vector<SequenceChunk> chain = chunks(static_cast<size_t>(step), 1);  // drafts that are wrong
    for (SequenceChunk& c : chain) c.first_position = static_cast<int32_t>(n_prompt + kVerified - 1 + step);
    const bool share = model.config().share_topk_across_drafts;
    drafted = runner.mtp(chain, {.state = drafted.state, .topk = share ? drafted.topk : View()});
  }
  return out;
}

}  // namespace levin::test
