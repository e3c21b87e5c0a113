#include "apps/load/load_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <thread>
#include <utility>

namespace levin::app {
namespace {

constexpr size_t kWords = 6000;  // that prompts are cut from; longer ones go round
constexpr const char* kVocabulary[] = {"river", "stone", "apple", "tiger", "cloud",  "lamp",   "chair", "green",
                                       "seven", "paper", "north", "quiet", "engine", "silver", "under", "window",
                                       "a",     "of",    "and",   "the",   "letter", "walks",  "long",  "before"};

const io::JsonValue* member(const io::JsonValue* value, std::string_view key) {
  const io::JsonObject* object = value != nullptr ? value->as_object() : nullptr;
  return object != nullptr ? object->find(key) : nullptr;
}

int64_t integer(const io::JsonValue* value) { return value != nullptr ? value->to_int64().value_or(0) : 0; }

bool has_text(const io::JsonValue* value) {
  return value != nullptr && value->as_string() != nullptr && !value->as_string()->empty();
}

// Whether a choice of a stream's piece shows something, in either dialect's form.
bool shows_something(const io::JsonValue& choice) {
  const io::JsonValue* delta = member(&choice, "delta");
  const io::JsonValue* calls = member(delta, "tool_calls");
  return has_text(member(&choice, "text")) || has_text(member(delta, "content")) ||
         has_text(member(delta, "reasoning")) || has_text(member(delta, "reasoning_content")) ||
         (calls != nullptr && calls->as_array() != nullptr);
}

std::string error_text(const io::JsonValue& error) {
  const io::JsonValue* message = member(&error, "message");
  return has_text(message) ? *message->as_string() : io::dump_json(error);
}

// The value of a metric's line, with the text between its braces.
struct Metric {
  std::string_view labels;
  double value = 0;
};
std::vector<Metric> metrics_named(std::string_view text, std::string_view name) {
  std::vector<Metric> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(name)) continue;
    const size_t space = line.rfind(' ');
    if (space == std::string_view::npos || (line[name.size()] != '{' && line[name.size()] != ' ')) continue;
    Metric metric{.labels = line.substr(name.size(), space - name.size())};
    std::from_chars(line.data() + space + 1, line.data() + line.size(), metric.value);
    out.push_back(metric);
  }
  return out;
}

double difference(double after, double before) { return std::max(0.0, after - before); }

}  // namespace

// ---- what to ask -------------------------------------------------------------------------------------------------

Result<LoadClient> LoadClient::connect(LoadOptions options) {
  LoadClient client(std::move(options));
  LEVIN_TRY(client.find_model());
  client.find_tokens();
  return client;
}

HttpCall LoadClient::call(std::string method, std::string path, std::string body) const {
  HttpCall out{.method = std::move(method), .path = std::move(path), .body = std::move(body), .headers = {}};
  out.timeout = std::chrono::seconds(options_.timeout_s);
  if (!options_.api_key.empty()) out.headers.emplace_back("Authorization", "Bearer " + options_.api_key);
  return out;
}

Status LoadClient::find_model() {
  if (!options_.model.empty()) return {};
  LEVIN_ASSIGN(const HttpReply reply, http_call(options_.url, call("GET", "/v1/models")));
  const Result<io::JsonValue> document = io::parse_json(reply.body, "/v1/models");
  const io::JsonValue* list = document.ok() ? member(&*document, "data") : nullptr;
  const io::JsonArray* models = list != nullptr ? list->as_array() : nullptr;
  const io::JsonValue* id = models != nullptr && !models->empty() ? member(&models->front(), "id") : nullptr;
  if (reply.status != 200 || !has_text(id)) {
    return Error{ErrorKind::kRuntime, fmt::format("GET {}/v1/models: status {}, {}; name the model with --model-name",
                                                  options_.url.base, reply.status, reply.body.substr(0, 200))};
  }
  options_.model = *id->as_string();
  return {};
}

void LoadClient::find_tokens() {
  std::mt19937_64 random(static_cast<uint64_t>(options_.seed));
  std::string text;
  for (size_t i = 0; i < kWords; ++i) {
    words_.emplace_back(kVocabulary[random() % std::size(kVocabulary)]);
    text += words_.back() + " ";
  }
  const std::string body =
      io::dump_json(io::JsonObject{{"model", options_.model}, {"prompt", text}, {"add_special_tokens", false}});
  const Result<HttpReply> reply = http_call(options_.url, call("POST", "/tokenize", body));
  if (!reply.ok() || reply->status != 200) return;
  const Result<io::JsonValue> document = io::parse_json(reply->body, "/tokenize");
  const io::JsonValue* list = document.ok() ? member(&*document, "tokens") : nullptr;
  if (list == nullptr || list->as_array() == nullptr || list->as_array()->empty()) return;
  for (const io::JsonValue& token : *list->as_array()) tokens_.push_back(integer(&token));
  tokens_per_word_ = static_cast<double>(tokens_.size()) / static_cast<double>(kWords);
}

// A shared beginning, then a piece of its own.
io::JsonValue LoadClient::prompt(std::mt19937_64& random) const {
  std::vector<double> weights;
  for (const PromptShare& share : options_.prompts) weights.push_back(share.weight);
  const int64_t n_own =
      options_.prompts[std::discrete_distribution<size_t>(weights.begin(), weights.end())(random)].n_tokens;
  const uint64_t prefix = random() % static_cast<uint64_t>(options_.n_prefixes);
  const uint64_t own = random();
  const bool as_tokens = !tokens_.empty() && !options_.chat;
  const size_t n_all = as_tokens ? tokens_.size() : words_.size();
  io::JsonArray tokens;
  std::string text;
  const auto append = [&](uint64_t start, int64_t n_tokens) {
    const double n_pieces =
        as_tokens ? static_cast<double>(n_tokens) : static_cast<double>(n_tokens) / tokens_per_word_;
    for (size_t i = 0; i < static_cast<size_t>(std::max(1.0, n_pieces)); ++i) {
      const size_t at = static_cast<size_t>((start + i) % n_all);
      if (as_tokens) {
        tokens.emplace_back(tokens_[at]);
      } else {
        text += words_[at] + " ";
      }
    }
  };
  if (options_.n_shared_tokens > 0) append(prefix * 7919, options_.n_shared_tokens);
  append(own, n_own);
  if (as_tokens) return tokens;
  return text;
}

std::string LoadClient::body(int64_t i) const {
  std::mt19937_64 random(static_cast<uint64_t>(options_.seed) * 1'000'003 + static_cast<uint64_t>(i));
  io::JsonObject body = {{"model", options_.model},
                         {"max_tokens", options_.n_answer_tokens},
                         {"temperature", options_.temperature},
                         {"seed", i},
                         {"stream", true},
                         {"stream_options", io::JsonObject{{"include_usage", true}}}};
  if (options_.ignore_eos) body.set("ignore_eos", true);
  io::JsonValue text = prompt(random);
  if (options_.chat) {
    body.set("messages", io::JsonArray{io::JsonObject{{"role", "user"}, {"content", std::move(text)}}});
  } else {
    body.set("prompt", std::move(text));
  }
  return io::dump_json(body);
}

// ---- one request -------------------------------------------------------------------------------------------------

bool take_event(std::string_view data, double now_s, RequestRecord* record) {
  if (data == "[DONE]") return false;
  const Result<io::JsonValue> document = io::parse_json(std::string(data), "an event");
  if (!document.ok()) {
    record->error = document.error().message;
    return false;
  }
  if (const io::JsonValue* error = member(&*document, "error"); error != nullptr && !error->is_null()) {
    record->error = error_text(*error);
    return false;
  }
  if (const io::JsonValue* usage = member(&*document, "usage"); usage != nullptr && !usage->is_null()) {
    record->n_prompt = integer(member(usage, "prompt_tokens"));
    record->n_answer = integer(member(usage, "completion_tokens"));
    record->n_found = integer(member(member(usage, "prompt_tokens_details"), "cached_tokens"));
  }
  const io::JsonValue* choices = member(&*document, "choices");
  const io::JsonArray* list = choices != nullptr ? choices->as_array() : nullptr;
  if (list == nullptr || std::none_of(list->begin(), list->end(), shows_something)) return true;
  if (record->first_s == 0) {
    record->first_s = now_s;
  } else {
    record->gaps_s.push_back(now_s - record->ended_s);
  }
  record->ended_s = now_s;
  return true;
}

RequestRecord LoadClient::send(int64_t i, Clock::time_point begin) const {
  const std::string path = options_.chat ? "/v1/chat/completions" : "/v1/completions";
  const HttpCall what = call("POST", path, body(i));
  RequestRecord record{.begun_s = seconds_since(begin)};
  EventLines events;
  std::string refusal;  // of a server that answers with something else than events
  const Result<int> status = http_call(options_.url, what, [&](std::string_view bytes) {
    if (refusal.size() < 500) refusal += bytes.substr(0, 500);
    events.feed(bytes, [&](std::string_view data) { take_event(data, seconds_since(begin), &record); });
  });
  if (!status.ok()) {
    record.error = status.error().message;
  } else if (*status != 200) {
    record.error = fmt::format("status {}: {}", *status, refusal);
  } else if (record.ok() && record.first_s == 0) {
    record.error = "the answer is empty";
  }
  if (record.n_answer == 0) record.n_answer = 1 + std::ssize(record.gaps_s);  // the server does not count
  return record;
}

// ---- a level -----------------------------------------------------------------------------------------------------

SpeculationCount LoadClient::speculation() const {
  SpeculationCount out;
  const Result<HttpReply> reply = http_call(options_.url, call("GET", "/metrics"));
  if (!reply.ok() || reply->status != 200) return out;
  const auto sum = [&](std::string_view name) {
    double total = 0;
    for (const Metric& metric : metrics_named(reply->body, name)) total += metric.value;
    return total;
  };
  out.n_passes = sum("vllm:spec_decode_num_drafts_total");
  out.n_drafted = sum("vllm:spec_decode_num_draft_tokens_total");
  out.n_accepted = sum("vllm:spec_decode_num_accepted_tokens_total");
  for (const Metric& metric : metrics_named(reply->body, "vllm:spec_decode_num_accepted_tokens_per_pos_total")) {
    out.accepted_per_position.push_back(metric.value);
  }
  return out;
}

LevelResult LoadClient::run(const LoadLevel& level, int64_t first) const {
  LevelResult out{.level = level, .seconds = 0, .requests = {}, .speculation = speculation()};
  out.requests.resize(static_cast<size_t>(options_.n_requests));
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  if (level.rate > 0) {
    std::mt19937_64 random(static_cast<uint64_t>(options_.seed) + 17);
    std::exponential_distribution<double> gap(level.rate);
    double at_s = 0;
    for (int64_t i = 0; i < options_.n_requests; ++i) {
      std::this_thread::sleep_until(begin +
                                    std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at_s)));
      threads.emplace_back([&, i] { out.requests[static_cast<size_t>(i)] = send(first + i, begin); });
      at_s += options_.poisson ? gap(random) : 1 / level.rate;
    }
    for (std::thread& thread : threads) thread.join();
  } else {
    std::atomic<int64_t> next = 0;
    for (int64_t c = 0; c < std::min(level.concurrency, options_.n_requests); ++c) {
      threads.emplace_back([&] {
        for (int64_t i = next++; i < options_.n_requests; i = next++)
          out.requests[static_cast<size_t>(i)] = send(first + i, begin);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  out.seconds = seconds_since(begin);
  const SpeculationCount before = std::exchange(out.speculation, speculation());
  SpeculationCount& after = out.speculation;
  after.n_passes = difference(after.n_passes, before.n_passes);
  after.n_drafted = difference(after.n_drafted, before.n_drafted);
  after.n_accepted = difference(after.n_accepted, before.n_accepted);
  for (size_t i = 0; i < std::min(after.accepted_per_position.size(), before.accepted_per_position.size()); ++i) {
    after.accepted_per_position[i] = difference(after.accepted_per_position[i], before.accepted_per_position[i]);
  }
  return out;
}

}  // namespace levin::app
