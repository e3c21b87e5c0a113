// The chat formats of DeepSeek-V4 and V4.1. They have no turns of tools: their results stand in the turn of the user, with what the
// user says with them.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "io/mapped_file.h"
#include "text/chat_deepseek.h"

namespace levin::text {
namespace {

using deepseek::append_calls;
using deepseek::append_response_format;
using deepseek::append_tools;
using deepseek::developer_without_content;
using deepseek::kAssistant;
using deepseek::kBos;
using deepseek::kEos;
using deepseek::kThinkBegin;
using deepseek::kThinkEnd;
using deepseek::kUser;
using deepseek::Marks;

constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kSystem = "<｜System｜>";
constexpr DsmlTags kTags{.block = "tool_calls"};
constexpr DsmlTags kSpacedTags{.block = " calls", .invoke = " invoke", .parameter = " parameter"};
constexpr size_t kMaxEncoderBytes = size_t{16} << 20;

// The words of the format, letter by letter from the reference encoder (NOTICE).
// Calls are shown with the names of the tags: block, invoke, parameter.
constexpr std::string_view kToolsBegin = R"(

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜{0}>" block like the following:

<｜DSML｜{0}>
<｜DSML｜{1} name="$TOOL_NAME">
<｜DSML｜{2} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜{2}>
...
</｜DSML｜{1}>
<｜DSML｜{1} name="$TOOL_NAME2">
...
</｜DSML｜{1}>
</｜DSML｜{0}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsEnd =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

constexpr std::string_view kAbsoluteMaximum =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
constexpr std::string_view kBeyondMaximum =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that "
    "no assumption remains unchecked and no error remains undiscovered.\n\n";

// What stands before everything else in thinking mode. The releases of V4 moved the words one level down when they found
// stronger ones; without an effort both say nothing. V4.1 says a number.
struct EffortWords {
  std::string_view high;
  std::string_view max;

  std::string_view of(std::optional<Effort> effort) const {
    if (effort == Effort::kHigh) return high;
    return effort == Effort::kExtraHigh || effort == Effort::kMax ? max : std::string_view();
  }
};

std::string budget_words(std::optional<Effort> effort) {
  const auto budget = [effort] {
    switch (effort.value_or(Effort::kHigh)) {
      case Effort::kLow:
        return 25;
      case Effort::kHigh:
        return 50;
      case Effort::kExtraHigh:
        return 75;
      case Effort::kMax:
        break;
    }
    return 100;
  };
  return fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                     budget());
}

struct Variant {
  std::string_view name;
  DsmlTags tags;
  std::optional<EffortWords> words;  // empty: a number
  // V4.1: a system message has a mark, and one inside the conversation asks for an answer. What stands first has the mark
  // too.
  bool marks_system = false;

  std::string effort_words(std::optional<Effort> effort) const {
    return words ? std::string(words->of(effort)) : budget_words(effort);
  }
};
constexpr Variant kFirst{
    .name = "DeepSeek-V4", .tags = kTags, .words = EffortWords{.high = "", .max = kAbsoluteMaximum}};
constexpr Variant kRefreshed{.name = "DeepSeek-V4 (three efforts)",
                             .tags = kTags,
                             .words = EffortWords{.high = kAbsoluteMaximum, .max = kBeyondMaximum}};
constexpr Variant kV41{.name = "DeepSeek-V4.1", .tags = kSpacedTags, .words = std::nullopt, .marks_system = true};

// Of V4, by what the encoder that comes with the model says, or a template made from it.
Result<const Variant*> variant_of(const ChatSource& source) {
  std::string words = source.chat_template;
  const std::filesystem::path encoder = source.folder / "encoding" / "encoding_dsv4.py";
  std::error_code ignored;
  if (!source.folder.empty() && std::filesystem::exists(encoder, ignored)) {
    LEVIN_ASSIGN(const std::string text, io::read_file(encoder, {.max_bytes = kMaxEncoderBytes}));
    words += text;
  }
  return words.find("Reasoning Effort: Beyond maximum") != std::string::npos ? &kRefreshed : &kFirst;
}

// A turn: one message, or a run of the user's and tools' messages.
struct Turn {
  Role role = Role::kUser;  // kUser also where tools speak
  int first = 0;            // place of its first message, for errors
  std::vector<const Message*> parts;

  const Message& message() const { return *parts.front(); }
};

std::vector<Turn> turns_of(const std::vector<Message>& messages) {
  std::vector<Turn> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Role role = messages[i].role == Role::kTool ? Role::kUser : messages[i].role;
    if (role == Role::kUser && !turns.empty() && turns.back().role == Role::kUser) {
      turns.back().parts.push_back(&messages[i]);
    } else {
      turns.push_back({.role = role, .first = static_cast<int>(i), .parts = {&messages[i]}});
    }
  }
  return turns;
}

// The results of a turn in the order of the calls that they answer; results that name no call count as the first's.
// What the user said between them stays where it is.
void sort_results(const std::vector<ToolCall>& calls, Turn& turn) {
  std::map<std::string_view, int> place;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].id.empty()) place[calls[i].id] = static_cast<int>(i);
  }
  std::vector<const Message*> results;
  for (const Message* part : turn.parts) {
    if (part->role == Role::kTool) results.push_back(part);
  }
  const auto place_of = [&](const Message* result) {
    const auto found = place.find(result->call_id);
    return found == place.end() ? 0 : found->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const Message* a, const Message* b) { return place_of(a) < place_of(b); });
  auto next = results.begin();
  for (const Message*& part : turn.parts) {
    if (part->role == Role::kTool) part = *next++;
  }
}

class Renderer {
 public:
  Renderer(const ChatRequest& request, const Variant& variant, std::vector<SegmentBuilder::Mark> marks)
      : request_(request), variant_(variant), out_(std::move(marks)), turns_(turns_of(request.messages)) {
    const std::vector<ToolCall>* calls = nullptr;
    for (Turn& turn : turns_) {
      if (turn.role == Role::kAssistant && !turn.message().tool_calls.empty()) calls = &turn.message().tool_calls;
      if (turn.role == Role::kUser && calls != nullptr) sort_results(*calls, turn);
    }
    keeps_reasoning_ = request.keep_reasoning.value_or(std::any_of(request.messages.begin(), request.messages.end(),
                                                                   [](const Message& m) { return !m.tools.empty(); }));
    find_last_user();
    if (request.thinking && !keeps_reasoning_) drop_earlier_developer_turns();
  }

  Result<std::vector<Segment>> render() {
    out_.format(kBos);
    if (variant_.marks_system && (request_.thinking || at(0).role == Role::kSystem)) out_.format(kSystem);
    if (request_.thinking) out_.format(variant_.effort_words(request_.effort));
    for (int i = 0; i < n_turns(); ++i) {
      LEVIN_TRY(turn(i));
      const bool answer_follows =
          i + 1 == n_turns() || at(i + 1).role == Role::kAssistant || at(i + 1).role == Role::kReminder;
      if (asks(i) && answer_follows) begin_answer(i);
    }
    return out_.take();
  }

 private:
  // Whether an answer may follow the turn.
  bool asks(int i) const {
    const Role role = at(i).role;
    return role == Role::kUser || role == Role::kDeveloper || (role == Role::kSystem && variant_.marks_system && i > 0);
  }

  int n_turns() const { return static_cast<int>(turns_.size()); }
  const Turn& at(int i) const { return turns_[static_cast<size_t>(i)]; }

  void find_last_user() {
    last_user_ = -1;
    for (int i = 0; i < n_turns(); ++i) {
      if (asks(i)) last_user_ = i;
    }
  }

  // They are forgotten together with the reasoning they led to.
  void drop_earlier_developer_turns() {
    std::vector<Turn> kept;
    for (int i = 0; i < n_turns(); ++i) {
      if (i >= last_user_ || at(i).role != Role::kDeveloper) kept.push_back(at(i));
    }
    turns_ = std::move(kept);
    find_last_user();
  }

  Status turn(int i) {
    const Message& message = at(i).message();
    switch (at(i).role) {
      case Role::kSystem:
        if (variant_.marks_system && i > 0) out_.format(kSystem);
        out_.user(message.content);
        tools_and_response_format(message);
        break;
      case Role::kDeveloper:
        if (message.content.empty()) return developer_without_content(at(i).first);
        out_.format(kUser);
        out_.user(message.content);
        tools_and_response_format(message);
        break;
      case Role::kReminder:
        out_.format(kReminder);
        out_.user(message.content);
        break;
      case Role::kAssistant:
        answer(i);
        break;
      case Role::kUser:
      case Role::kTool:
        question(at(i));
        break;
    }
    return {};
  }

  void tools_and_response_format(const Message& message) {
    if (!message.tools.empty()) {
      const DsmlTags& tags = variant_.tags;
      out_.format(fmt::format(kToolsBegin, tags.block, tags.invoke, tags.parameter));
      append_tools(out_, message.tools);
      out_.format(kToolsEnd);
    }
    append_response_format(out_, message.response_format);
  }

  void question(const Turn& turn) {
    out_.format(kUser);
    for (size_t i = 0; i < turn.parts.size(); ++i) {
      const bool result = turn.parts[i]->role == Role::kTool;
      if (i > 0) out_.format("\n\n");
      if (result) out_.format("<tool_result>");
      out_.user(turn.parts[i]->content);
      if (result) out_.format("</tool_result>");
    }
  }

  void answer(int i) {
    const Message& message = at(i).message();
    if (request_.thinking && (keeps_reasoning_ || i > last_user_)) {
      out_.user(message.reasoning);
      out_.format(kThinkEnd);
    }
    out_.user(message.content);
    append_calls(out_, variant_.tags, message.tool_calls);
    out_.format(kEos);
  }

  void begin_answer(int i) {
    out_.format(kAssistant);
    out_.format(request_.thinking && (keeps_reasoning_ || i >= last_user_) ? kThinkBegin : kThinkEnd);
  }

  const ChatRequest& request_;
  const Variant& variant_;
  SegmentBuilder out_;
  std::vector<Turn> turns_;
  bool keeps_reasoning_ = false;  // of answers before the last question
  int last_user_ = -1;            // the last turn that asks
};

class DeepSeekV4Chat : public ChatRenderer {
 public:
  static Result<std::shared_ptr<const ChatRenderer>> make(const Tokenizer& tokenizer, const Variant& variant) {
    auto chat = std::make_shared<DeepSeekV4Chat>();
    chat->variant_ = &variant;
    chat->name_ = variant.name;
    std::vector<MarkSlot> slots = chat->marks_.slots();
    if (variant.marks_system) slots.emplace_back(kSystem, &chat->system_);
    LEVIN_TRY(find_marks(tokenizer, slots, chat->name_));
    chat->reminder_ = tokenizer.added_id(kReminder).value_or(kNoToken);
    chat->output_marks_ = chat->marks_.output_marks(variant.tags);
    for (const TokenId mark : {chat->reminder_, chat->system_}) {
      if (mark != kNoToken) chat->output_marks_.silent.push_back(mark);
    }
    return std::shared_ptr<const ChatRenderer>(std::move(chat));
  }

  Result<std::vector<Segment>> render(const ChatRequest& request) const override {
    for (size_t i = 0; i < request.messages.size() && reminder_ == kNoToken; ++i) {
      if (request.messages[i].role != Role::kReminder) continue;
      return Error{ErrorKind::kUsage,
                   fmt::format("messages[{}]: a reminder, for which the tokenizer of this model lacks \"{}\"; send it "
                               "as a system message",
                               i, kReminder)};
    }
    return Renderer(request, *variant_, words()).render();
  }

 private:
  std::vector<SegmentBuilder::Mark> words() const {
    std::vector<SegmentBuilder::Mark> all = marks_.words();
    if (reminder_ != kNoToken) all.push_back({kReminder, reminder_});
    if (system_ != kNoToken) all.push_back({kSystem, system_});
    return all;
  }

  const Variant* variant_ = &kFirst;
  Marks marks_;
  TokenId reminder_ = kNoToken, system_ = kNoToken;
};

}  // namespace

Result<std::shared_ptr<const ChatRenderer>> make_deepseek_v4_chat(const Tokenizer& tokenizer,
                                                                  const ChatSource& source) {
  LEVIN_ASSIGN(const Variant* variant, variant_of(source));
  return DeepSeekV4Chat::make(tokenizer, *variant);
}

Result<std::shared_ptr<const ChatRenderer>> make_deepseek_v41_chat(const Tokenizer& tokenizer, const ChatSource&) {
  return DeepSeekV4Chat::make(tokenizer, kV41);
}

}  // namespace levin::text
