// What the chat formats of DeepSeek have in common: the marks, and calls as DSML. For chat_deepseek_v*.cc.
#pragma once

#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/chat_renderer.h"
#include "text/segment_builder.h"

namespace levin::text::deepseek {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";

struct Marks {
  TokenId bos = kNoToken, eos = kNoToken, user = kNoToken, assistant = kNoToken;
  TokenId think_begin = kNoToken, think_end = kNoToken, dsml = kNoToken;

  std::vector<MarkSlot> slots();
  std::vector<SegmentBuilder::Mark> words() const;

  OutputMarks output_marks(const DsmlTags& tags) const;
};

// The end of an answer that makes calls: a block of invokes; nothing without calls.
void append_calls(SegmentBuilder& out, const DsmlTags& tags, const std::vector<ToolCall>& calls);

// One function object a line, without a line break at the end.
void append_tools(SegmentBuilder& out, const std::vector<io::JsonValue>& tools);

// The schema to answer in, if there is one.
void append_response_format(SegmentBuilder& out, const io::JsonValue& response_format);

Error developer_without_content(int message);

}  // namespace levin::text::deepseek
