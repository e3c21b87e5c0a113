// levin eval: how well a model scores given answers, or the perplexity of a text.
#include <fmt/core.h>

#include <cmath>
#include <memory>

#include "apps/levin/commands.h"
#include "apps/levin/conversation.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/generation_options.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace levin::app {
namespace {

struct EvalCommand {
  std::string answers_file;
  std::string text_file;
  bool json = false;
};

struct Pair {
  std::string where;  // file and line
  std::string prompt;
  std::string answer;
};

Result<std::vector<Pair>> read_pairs(const std::string& file) {
  LEVIN_ASSIGN(const std::string text, io::read_file(file, {.kind = ErrorKind::kUsage, .accept_pipes = true}));
  std::vector<Pair> pairs;
  int line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", file, line_number);
    Result<io::JsonValue> document = io::parse_json(line, where);
    if (!document.ok()) return Error{ErrorKind::kUsage, document.error().message};
    LEVIN_ASSIGN(const io::JsonFields fields, io::JsonFields::of(*document, where, ErrorKind::kUsage));
    Pair pair{.where = where};
    LEVIN_ASSIGN(pair.prompt, fields.get<std::string>("prompt"));
    LEVIN_ASSIGN(pair.answer, fields.get<std::string>("answer"));
    if (pair.answer.empty())
      return Error{ErrorKind::kUsage, fmt::format("{}: answer is empty, expected the text to score", where)};
    pairs.push_back(std::move(pair));
  }
  if (pairs.empty())
    return Error{ErrorKind::kUsage, fmt::format("{} has no lines of {{\"prompt\", \"answer\"}}", file)};
  return pairs;
}

struct Sum {
  double logprob = 0;
  int64_t n_tokens = 0;
  double mean() const { return n_tokens > 0 ? logprob / static_cast<double>(n_tokens) : 0; }
};

// Adds the log probabilities of ids[first..] given what stands before each.
Status add_logprobs(Engine& engine, const std::vector<int32_t>& ids, size_t first, Sum* sum) {
  LEVIN_ASSIGN(const std::vector<double> logprobs, engine.score(ids));
  for (size_t i = std::max<size_t>(first, 1); i < ids.size(); ++i) sum->logprob += logprobs[i];
  sum->n_tokens += static_cast<int64_t>(ids.size() - std::max<size_t>(first, 1));
  return {};
}

// Adds the answer's log probabilities, and says whether it is the model's own.
Result<bool> eval_answer(const ChatModel& model, const Pair& pair, const GenerationOptions& options, Sum* sum) {
  text::ChatRequest request;
  request.messages.push_back({.role = text::Role::kUser, .content = pair.prompt});
  LEVIN_ASSIGN(const std::vector<text::Segment> segments, model.format->render(request));
  LEVIN_ASSIGN(std::vector<int32_t> ids, model.tokenizer->encode(segments));
  const size_t n_prompt = ids.size();
  LEVIN_ASSIGN(const Answer answer, answer_prompt(model, {.ids = ids}, options, {}));
  LEVIN_ASSIGN(const std::vector<int32_t> expected, model.tokenizer->encode_plain(pair.answer));
  ids.insert(ids.end(), expected.begin(), expected.end());
  LEVIN_TRY(add_logprobs(*model.engine, ids, n_prompt, sum));
  return answer.content == pair.answer;
}

Status eval_answers(const std::vector<Pair>& pairs, const EngineOptions& engine_options,
                    const GenerationOptions& options, bool json) {
  LEVIN_ASSIGN(const ChatModel model, ChatModel::load(engine_options));
  Sum sum;
  int64_t n_exact = 0;
  for (const Pair& pair : pairs) {
    const Result<bool> exact = eval_answer(model, pair, options, &sum);
    if (!exact.ok()) return Error{exact.error().kind, fmt::format("{}: {}", pair.where, exact.error().message)};
    n_exact += *exact ? 1 : 0;
  }
  const double exact = static_cast<double>(n_exact) / static_cast<double>(pairs.size());
  if (json) {
    fmt::print("{}\n",
               io::dump_json(io::JsonObject{
                   {"prompts", static_cast<int64_t>(pairs.size())}, {"mean_logprob", sum.mean()}, {"exact", exact}}));
  } else {
    fmt::print("{} prompts: mean log probability per answer token {:.4f}, {:.1f}% answered exactly\n", pairs.size(),
               sum.mean(), 100 * exact);
  }
  return {};
}

// The text in windows of the context, each after the tokens that begin a raw text.
Status eval_perplexity(const std::string& text, const EngineOptions& engine_options, const EvalCommand& command) {
  LEVIN_ASSIGN(const ChatModel model, ChatModel::load(engine_options));
  LEVIN_ASSIGN(const std::vector<int32_t> body, model.tokenizer->encode_plain(text));
  const auto prefix = model.tokenizer->raw_prefix();
  if (body.size() + prefix.size() < 2)
    return Error{ErrorKind::kUsage, fmt::format("{} has too little text", command.text_file)};
  const auto n_context = static_cast<size_t>(model.engine->max_context_tokens());
  const size_t n_before = std::max<size_t>(prefix.size(), 1);  // the first scored token of a window needs one before it
  if (n_context <= n_before) {
    return Error{ErrorKind::kUsage,
                 fmt::format("--max-model-len is {}, expected at least {}: a text is scored in windows of that length",
                             n_context, n_before + 1)};
  }
  const size_t window = n_context - prefix.size();
  Sum sum;
  for (size_t begin = 0; begin < body.size(); begin += window) {
    const size_t end = std::min(begin + window, body.size());
    std::vector<int32_t> ids(prefix.begin(), prefix.end());
    ids.insert(ids.end(), body.begin() + static_cast<int64_t>(begin), body.begin() + static_cast<int64_t>(end));
    LEVIN_TRY(add_logprobs(*model.engine, ids, prefix.size(), &sum));
  }
  const double perplexity = std::exp(-sum.mean());
  if (command.json) {
    fmt::print("{}\n", io::dump_json(io::JsonObject{
                           {"tokens", sum.n_tokens}, {"mean_logprob", sum.mean()}, {"perplexity", perplexity}}));
  } else {
    fmt::print("{} tokens: perplexity {:.4f}\n", sum.n_tokens, perplexity);
  }
  return {};
}

// Reads before it loads: a mistake in the file is met at once.
Status run_eval(const EngineOptions& engine_options, const GenerationOptions& options, const EvalCommand& command) {
  if (!command.answers_file.empty()) {
    LEVIN_ASSIGN(const std::vector<Pair> pairs, read_pairs(command.answers_file));
    return eval_answers(pairs, engine_options, options, command.json);
  }
  LEVIN_ASSIGN(const std::string text,
               io::read_file(command.text_file, {.kind = ErrorKind::kUsage, .accept_pipes = true}));
  return eval_perplexity(text, engine_options, command);
}

}  // namespace

void add_eval(CommandLine& line) {
  Command& command = line.add(
      {.name = "eval",
       .purpose = "Score the answers of a JSONL file, or measure the perplexity of a text",
       .examples = "  levin eval models/demo-v32 answers.jsonl --temperature 0     lines of {\"prompt\", \"answer\"}\n"
                   "  levin eval models/demo-v32 --perplexity book.txt\n"});
  const std::shared_ptr<EngineOptions> engine = add_engine_options(command, ModelArgument::kRequired);
  const std::shared_ptr<GenerationOptions> options = add_generation_options(command, engine);
  add_speculation_options(command, engine);
  const auto eval = std::make_shared<EvalCommand>();
  command.positional({.name = "FILE", .purpose = "JSONL file with a prompt and an answer on every line"},
                     set_text(&eval->answers_file));
  command.option({.names = "--perplexity",
                  .value = "FILE",
                  .purpose = "Measure the perplexity of this text file",
                  .group = "Eval"},
                 set_text(&eval->text_file));
  command.option({.names = "--json", .purpose = "Print one JSON object", .group = "Eval"}, set_flag(&eval->json));
  command.check([eval](const Environment&) -> Status {
    if (eval->answers_file.empty() == eval->text_file.empty()) {
      return Error{ErrorKind::kUsage, "give either FILE, a JSONL of prompts and answers, or --perplexity FILE"};
    }
    return {};
  });
  command.action([engine, options, eval] { return run_eval(*engine, *options, *eval); });
}

}  // namespace levin::app
