#include "text/chat.h"

#include <fmt/core.h>

#include <utility>

#include "io/mapped_file.h"
#include "text/chat_renderer.h"

namespace levin::text {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{16} << 20;

Result<io::JsonValue> read_json(const std::filesystem::path& path) {
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = kMaxTemplateBytes}));
  return io::parse_json(text, path.string());
}

// chat_template.jinja, else the template inside tokenizer_config.json, where older files have it.
Result<std::string> read_template(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path path = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  if (std::filesystem::exists(path, ignored)) return io::read_file(path, {.max_bytes = kMaxTemplateBytes});
  if (!std::filesystem::exists(config, ignored)) return std::string();
  LEVIN_ASSIGN(const io::JsonValue document, read_json(config));
  LEVIN_ASSIGN(const io::JsonFields fields, io::JsonFields::of(document, config.string()));
  return fields.get_or("chat_template", "");
}

}  // namespace

Result<ChatFormat> ChatFormat::load(ChatMaker maker, const std::filesystem::path& model_folder,
                                    const Tokenizer& tokenizer) {
  ChatSource source{.folder = model_folder, .chat_template = {}};
  LEVIN_ASSIGN(source.chat_template, read_template(model_folder));
  LEVIN_ASSIGN(std::shared_ptr<const ChatRenderer> renderer, maker(tokenizer, source));
  return ChatFormat(std::move(renderer));
}

Result<ChatFormat> ChatFormat::make(ChatMaker maker, const Tokenizer& tokenizer, std::string_view chat_template) {
  LEVIN_ASSIGN(std::shared_ptr<const ChatRenderer> renderer,
               maker(tokenizer, {.folder = {}, .chat_template = std::string(chat_template)}));
  return ChatFormat(std::move(renderer));
}

Result<std::vector<Segment>> ChatFormat::render(const ChatRequest& request) const {
  if (request.messages.empty()) return Error{ErrorKind::kUsage, "the conversation has no messages"};
  return request.continue_last ? render_continued(request) : renderer_->render(request);
}

bool ChatRequest::begins_in_reasoning() const {
  if (!continue_last || messages.empty()) return thinking;
  return messages.back().content.empty() && !messages.back().reasoning.empty();
}

// The prompt for the answer to what came before, and the beginning of that answer as it would have been written.
Result<std::vector<Segment>> ChatFormat::render_continued(ChatRequest request) const {
  const size_t place = request.messages.size() - 1;
  const bool in_reasoning = request.begins_in_reasoning();
  const Message begun = std::move(request.messages.back());
  request.messages.pop_back();
  const auto refuse = [place](const char* what) {
    return Error{ErrorKind::kUsage, fmt::format("messages[{}] {}", place, what)};
  };
  if (begun.role != Role::kAssistant) return refuse("is to be continued and is not the assistant's");
  if (!begun.tool_calls.empty()) return refuse("is to be continued and has tool calls, which are complete");
  const Role before = request.messages.empty() ? Role::kSystem : request.messages.back().role;
  if (before != Role::kUser && before != Role::kTool && before != Role::kDeveloper) {
    return refuse("is to be continued but does not follow a message by the user or a tool");
  }
  request.continue_last = false;
  request.thinking = !begun.reasoning.empty();
  LEVIN_ASSIGN(std::vector<Segment> segments, renderer_->render(request));
  if (!begun.reasoning.empty()) segments.push_back({.text = begun.reasoning, .from_user = true});
  if (!begun.reasoning.empty() && !in_reasoning) segments.push_back({.token = output_marks().think_end});
  if (!begun.content.empty()) segments.push_back({.text = begun.content, .from_user = true});
  return segments;
}

std::string_view ChatFormat::name() const { return renderer_->name(); }
const OutputMarks& ChatFormat::output_marks() const { return renderer_->output_marks(); }
const std::vector<std::string>& ChatFormat::warnings() const { return renderer_->warnings(); }

// ---- what the families share ---------------------------------------------------------------------------------------

Status find_marks(const Tokenizer& tokenizer, const std::vector<MarkSlot>& slots, std::string_view format_name) {
  for (const auto& [name, id] : slots) {
    const std::optional<TokenId> found = tokenizer.added_id(name);
    if (!found) {
      return Error{ErrorKind::kModelInvalid,
                   fmt::format("tokenizer.json: added_tokens lacks \"{}\", which the chat format of {} needs", name,
                               format_name)};
    }
    *id = *found;
  }
  return {};
}

std::string python_json(const io::JsonValue& value) {
  return io::dump_json(value, {.compact = false, .numbers = io::JsonNumbers::kAsPython});
}

io::JsonObject arguments_of(const ToolCall& call) {
  const Result<io::JsonValue> parsed = io::parse_json(
      call.arguments, "arguments", {.kind = ErrorKind::kUsage, .duplicates = io::DuplicateKeys::kLastWins});
  if (parsed.ok() && parsed->as_object() != nullptr) return *parsed->as_object();
  return io::JsonObject{{"arguments", call.arguments}};
}

}  // namespace levin::text
