// What the routes need to know of the model that is served.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "serve/answer_form.h"
#include "serve/engine_service.h"
#include "serve/generation_fields.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace levin::serve {

struct Route;  // serve/routes.h

enum class ReasoningField : uint8_t { kBoth, kReasoningContent, kReasoning };  // what answers call it

struct ServedModel {
  EngineService* service = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatFormat* format = nullptr;
  AnswerForms* forms = nullptr;
  Metrics* metrics = nullptr;
  std::string version;             // of the program
  std::vector<std::string> names;  // the first is the one answers carry
  bool any_name = false;           // requests may ask for any other
  GenerationDefaults defaults;     // of requests
  bool thinking = false;           // where a request does not say
  ReasoningField reasoning_field = ReasoningField::kBoth;
  int64_t max_queued = 1024;      // requests that are open at once
  int64_t created_s = 0;          // Unix time
  std::span<const Route> routes;  // for the OpenAPI document
  // For tests: gets the path of a request that was read, and the fields of its body that were looked at.
  std::function<void(const std::string& path, const std::set<std::string, std::less<>>& fields)> on_fields;

  const std::string& name() const { return names.front(); }
  int64_t n_context() const { return service->engine().max_context_tokens(); }
  bool has(const std::string& asked) const {
    return any_name || asked.empty() || std::find(names.begin(), names.end(), asked) != names.end();
  }
};

}  // namespace levin::serve
