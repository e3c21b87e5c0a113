// The fields of a request that say how tokens are chosen and when an answer ends, the same in every dialect.
//
// Unknown fields are ignored; a known one of the wrong type is refused by name, and so is one that asks for what is not
// built and would change the answer (kUnsupported in the .cc). Missing and null mean the model's default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "serve/body.h"
#include "serve/fields.h"
#include "text/answer_text.h"

namespace levin::serve {

// What holds for requests that leave a field out.
struct GenerationDefaults {
  SamplingParams sampling;                // of the model; its stop tokens end an answer. Its seed is not used
  bool ignore_eos = false;                // these do not
  std::optional<uint64_t> seed;           // none: a random one for every request
  std::vector<std::string> stop_strings;  // that end an answer
  int64_t max_tokens = 0;                 // 0: what the context holds, or the route's own
};

struct GenerationAsk {
  SamplingParams sampling;               // the seed is set: the request's, or a random one
  std::vector<int32_t> own_stop_tokens;  // of those in sampling: what the request asked for
  int64_t n_choices = 1;
  int64_t max_tokens = 0;  // 0: what the context holds; at first the default's
  int32_t priority = 0;
  text::AnswerText::Options text;
  bool logprobs = false;
  int n_top_logprobs = 0;
  bool stream = false;
  bool include_usage = false;     // a last chunk of a stream has it
  bool continuous_usage = false;  // every chunk has it
};

// All but max_tokens and logprobs, which dialects name differently.
Result<GenerationAsk> read_generation(const Body& body, const GenerationDefaults& defaults);

// "stop": a string, a list of them, or null.
Result<std::vector<std::string>> read_strings(const Body& body, std::string_view key);

// The field that an error of the engine's about a request is about: the first that it names (SamplingPlan::make). Empty: none.
std::string field_of(const std::string& message);

FieldList generation_fields();                   // that read_generation() reads
std::vector<std::string_view> refused_fields();  // whatever they ask for, unless it is nothing

uint64_t fresh_seed();
std::string random_id(std::string_view prefix);  // "chatcmpl-" and 24 letters and digits

}  // namespace levin::serve
