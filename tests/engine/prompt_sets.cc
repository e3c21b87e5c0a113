#include "engine/prompt_sets.h"

#include <fstream>

#include "arch/load_config.h"
#include "engine/demo_text.h"
#include "io/json.h"
#include "support/must.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace levin::test {
namespace {

std::vector<int32_t> prompt_ids(const io::JsonFields& fields, const text::Tokenizer& tokenizer,
                                const text::ChatFormat& format) {
  if (fields.has("text")) return encode_document(tokenizer, must(fields.get<std::string>("text")));
  text::ChatRequest request{.messages = {}, .thinking = must(fields.get<bool>("thinking"))};
  request.messages.push_back({.role = text::Role::kUser, .content = must(fields.get<std::string>("question"))});
  return must(tokenizer.encode(must(format.render(request))));
}

}  // namespace

std::vector<std::vector<int32_t>> prompt_set(const std::string& set, const std::filesystem::path& model_folder) {
  const text::Tokenizer tokenizer = must(text::Tokenizer::load(model_folder));
  const text::ChatFormat format =
      must(load_chat_format(*must(load_model_config(model_folder)).config.family, model_folder, tokenizer));
  std::ifstream file(std::filesystem::path(LEVIN_SOURCE_DIR) / "tests" / "engine" / "prompts.jsonl");
  std::vector<std::vector<int32_t>> out;
  for (std::string line; std::getline(file, line);) {
    const io::JsonValue document = must(io::parse_json(line, "prompts.jsonl"));
    const io::JsonFields fields = must(io::JsonFields::of(document, "prompts.jsonl"));
    if (must(fields.get<std::string>("set")) == set) out.push_back(prompt_ids(fields, tokenizer, format));
  }
  return out;
}

}  // namespace levin::test
