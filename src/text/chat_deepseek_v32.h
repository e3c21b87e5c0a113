// The chat format of DeepSeek-V3.2; use it through chat.h.
#pragma once

#include <vector>

#include "base/result.h"
#include "text/chat.h"

namespace levin::text {

Result<ChatTokens> deepseek_v32_tokens(const Tokenizer& tokenizer);

Result<std::vector<Segment>> render_deepseek_v32(const ChatRequest& request, const ChatTokens& tokens);

}  // namespace levin::text
