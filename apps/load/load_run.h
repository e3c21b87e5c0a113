// Load on a server: requests made up from a seed, sent at chosen times, each with a record of when its tokens came.
//
//   closed loop   `concurrency` clients, each sending its next request when the last one's answer has ended
//   open loop     requests at `rate` a second whatever the server does; the times between them are exponential (Poisson
//                 arrivals) or all the same
//
// Prompts are token ids where the server tokenizes (POST /tokenize) and completions are asked for, else words of about
// as many tokens. The same seed gives the same requests in the same order.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "apps/load/http_client.h"
#include "base/clock.h"
#include "base/result.h"
#include "io/json.h"

namespace levin::app {

struct PromptShare {
  int64_t n_tokens = 0;
  double weight = 1;
};

struct LoadOptions {
  Url url;
  std::string api_key;  // empty: none
  std::string model;    // empty: the first of /v1/models
  bool chat = false;    // /v1/chat/completions instead of /v1/completions
  int64_t n_requests = 100;
  std::vector<PromptShare> prompts = {{256, 1}};
  int64_t n_shared_tokens = 0;  // that prompts begin with, in front of those
  int64_t n_prefixes = 1;       // different beginnings; each request has one by chance
  int64_t n_answer_tokens = 64;
  bool ignore_eos = true;
  double temperature = 0;
  bool poisson = true;
  int64_t seed = 0;
  int64_t timeout_s = 600;
};

struct LoadLevel {
  double rate = 0;  // requests a second; 0: a closed loop
  int64_t concurrency = 1;
};

// Seconds since the level's begin; a request that failed has an error and whatever came before it.
struct RequestRecord {
  std::string error;
  double begun_s = 0;
  double first_s = 0;  // first piece of the answer
  double ended_s = 0;
  int64_t n_prompt = 0;
  int64_t n_found = 0;  // of the prompt, in the server's cache
  int64_t n_answer = 0;
  std::vector<double> gaps_s;  // between pieces of the answer

  bool ok() const { return error.empty(); }
};

// What the server counted during the level, where it has /metrics.
struct SpeculationCount {
  double n_passes = 0;
  double n_drafted = 0;
  double n_accepted = 0;
  std::vector<double> accepted_per_position;
};

struct LevelResult {
  LoadLevel level;
  double seconds = 0;
  std::vector<RequestRecord> requests;
  SpeculationCount speculation;
};

class LoadClient {
 public:
  // Asks the server for its model and how it tokenizes. Errors say what it answered.
  static Result<LoadClient> connect(LoadOptions options);

  const LoadOptions& options() const { return options_; }
  // Sends requests first, first + 1, ...: levels that are to meet a cold cache begin where the one before ended.
  LevelResult run(const LoadLevel& level, int64_t first = 0) const;

  // The body of request i. For tests too
  std::string body(int64_t i) const;

 private:
  explicit LoadClient(LoadOptions options) : options_(std::move(options)) {}
  HttpCall call(std::string method, std::string path, std::string body = "") const;
  Status find_model();
  void find_tokens();
  io::JsonValue prompt(std::mt19937_64& random) const;
  RequestRecord send(int64_t i, Clock::time_point begin) const;
  SpeculationCount speculation() const;

  LoadOptions options_;
  std::vector<std::string> words_;  // that prompts are cut from
  std::vector<int64_t> tokens_;     // of words_; empty: the server does not say
  double tokens_per_word_ = 1.3;    // as English text has with most vocabularies
};

// One piece of an answer's stream, into the record. False: it is the last one. Errors of the server go to record.error.
bool take_event(std::string_view data, double now_s, RequestRecord* record);

}  // namespace levin::app
