#include "text/chat.h"

#include "text/chat_deepseek_v32.h"

namespace levin::text {

Result<ChatFormat> ChatFormat::make(ChatFamily family, const Tokenizer& tokenizer) {
  LEVIN_ASSIGN(const ChatTokens tokens, deepseek_v32_tokens(tokenizer));
  return ChatFormat(family, tokens);
}

Result<std::vector<Segment>> ChatFormat::render(const ChatRequest& request) const {
  return render_deepseek_v32(request, tokens_);
}

}  // namespace levin::text
