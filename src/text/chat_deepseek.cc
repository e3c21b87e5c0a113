#include "text/chat_deepseek.h"

#include <fmt/core.h>

#include <string>

namespace levin::text::deepseek {
namespace {

void append_parameters(SegmentBuilder& out, std::string_view tag, const io::JsonObject& arguments) {
  for (size_t i = 0; i < arguments.n_members(); ++i) {
    const io::JsonMember& argument = arguments.members()[i];
    const std::string* text = argument.value.as_string();
    if (i > 0) out.format("\n");
    out.format(fmt::format("<｜DSML｜{} name=\"", tag));
    out.user(argument.key);
    out.format(text != nullptr ? "\" string=\"true\">" : "\" string=\"false\">");
    out.user(text != nullptr ? *text : python_json(argument.value));
    out.format(fmt::format("</｜DSML｜{}>", tag));
  }
}

}  // namespace

std::vector<MarkSlot> Marks::slots() {
  return {{kBos, &bos},
          {kEos, &eos},
          {kUser, &user},
          {kAssistant, &assistant},
          {kThinkBegin, &think_begin},
          {kThinkEnd, &think_end},
          {kDsml, &dsml}};
}

std::vector<SegmentBuilder::Mark> Marks::words() const {
  return {{kBos, bos},
          {kEos, eos},
          {kUser, user},
          {kAssistant, assistant},
          {kThinkBegin, think_begin},
          {kThinkEnd, think_end},
          {kDsml, dsml}};
}

OutputMarks Marks::output_marks(const DsmlTags& tags) const {
  return {.think_begin = think_begin,
          .think_end = think_end,
          .silent = {bos, eos, user, assistant},
          .calls = DsmlCalls{.mark = dsml, .tags = tags}};
}

void append_calls(SegmentBuilder& out, const DsmlTags& tags, const std::vector<ToolCall>& calls) {
  if (calls.empty()) return;
  out.format(fmt::format("\n\n<｜DSML｜{}>\n", tags.block));
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) out.format("\n");
    out.format(fmt::format("<｜DSML｜{} name=\"", tags.invoke));
    out.user(calls[i].name);
    out.format("\">\n");
    append_parameters(out, tags.parameter, arguments_of(calls[i]));
    out.format(fmt::format("\n</｜DSML｜{}>", tags.invoke));
  }
  out.format(fmt::format("\n</｜DSML｜{}>", tags.block));
}

void append_tools(SegmentBuilder& out, const std::vector<io::JsonValue>& tools) {
  for (size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) out.format("\n");
    out.user(python_json(tools[i]));
  }
}

void append_response_format(SegmentBuilder& out, const io::JsonValue& response_format) {
  if (response_format.is_null()) return;
  out.format("\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
  out.user(python_json(response_format));
}

Error developer_without_content(int message) {
  return {ErrorKind::kUsage, fmt::format("messages[{}]: a developer message needs content", message)};
}

}  // namespace levin::text::deepseek
