#include "text/chat.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "io/mapped_file.h"
#include "text/chat_renderer.h"

namespace levin::text {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{16} << 20;

struct Family {
  ChatFamily family;
  std::string_view model_type;  // of config.json
  ChatMaker make;
};
constexpr Family kFamilies[] = {
    {ChatFamily::kDeepSeekV32, "deepseek_v32", make_deepseek_v32_chat},
    {ChatFamily::kDeepSeekV4, "deepseek_v4", make_deepseek_v4_chat},
    {ChatFamily::kGlm, "glm_moe_dsa", make_glm_chat},
};

Result<io::JsonValue> read_json(const std::filesystem::path& path) {
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = kMaxTemplateBytes}));
  return io::parse_json(text, path.string());
}

Result<const Family*> family_of(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  LEVIN_ASSIGN(const io::JsonValue document, read_json(path));
  LEVIN_ASSIGN(const io::JsonFields fields, io::JsonFields::of(document, path.string()));
  LEVIN_ASSIGN(const std::string type, fields.get<std::string>("model_type"));
  const auto family =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return f.model_type == type; });
  if (family != std::end(kFamilies)) return family;
  return Error{ErrorKind::kModelInvalid, fmt::format("{} is \"{}\", whose chat format is not known to this version",
                                                     fields.name_of("model_type"), type)};
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

Result<ChatFormat> ChatFormat::load(const std::filesystem::path& model_folder, const Tokenizer& tokenizer) {
  LEVIN_ASSIGN(const Family* family, family_of(model_folder));
  ChatSource source{.folder = model_folder, .chat_template = {}};
  LEVIN_ASSIGN(source.chat_template, read_template(model_folder));
  LEVIN_ASSIGN(std::shared_ptr<const ChatRenderer> renderer, family->make(tokenizer, source));
  return ChatFormat(std::move(renderer));
}

Result<ChatFormat> ChatFormat::make(ChatFamily family, const Tokenizer& tokenizer, std::string_view chat_template) {
  const auto row =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return f.family == family; });
  LEVIN_ASSIGN(std::shared_ptr<const ChatRenderer> renderer,
               row->make(tokenizer, {.folder = {}, .chat_template = std::string(chat_template)}));
  return ChatFormat(std::move(renderer));
}

Result<std::vector<Segment>> ChatFormat::render(const ChatRequest& request) const {
  if (request.messages.empty()) return Error{ErrorKind::kUsage, "the conversation has no messages"};
  return renderer_->render(request);
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
