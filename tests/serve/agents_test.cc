// Requests of the shape that coding agents send, through whole turns: Codex on /v1/responses, Claude Code on /v1/messages.
// The shapes are those of their releases of 2026, texts shortened; the model is made to call where the agents' models do.
#include <gtest/gtest.h>

#include "serve/served_demo.h"

namespace levin::test {
namespace {

class AgentsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { demo_ = std::make_unique<ServedDemo>(serve::ServerOptions{.any_model_name = true}); }
  static void TearDownTestSuite() { demo_ = nullptr; }
  static Reply post(const std::string& path, const std::string& body) {
    return ask(demo_->port(), path, body,
               {{"Authorization", "Bearer none"},
                {"anthropic-version", "2023-06-01"},
                {"anthropic-beta", "claude-code-20250219"}});
  }
  static std::unique_ptr<ServedDemo> demo_;
};
std::unique_ptr<ServedDemo> AgentsTest::demo_;

// ---- Codex -------------------------------------------------------------------------------------------------------

constexpr char kCodexTools[] = R"([
  {"type": "function", "name": "exec_command", "description": "Runs a command", "strict": false,
   "parameters": {"type": "object", "properties": {"cmd": {"type": "string", "maxLength": 6}, "yield_time_ms": {"type": "number",
      "minimum": 0, "maximum": 9}}, "required": ["cmd"], "additionalProperties": false}},
  {"type": "function", "name": "update_plan", "strict": false, "parameters": {"type": "object", "properties": {"plan": {"type": "array",
      "maxItems": 1, "items": {"type": "object", "properties": {"step": {"type": "string", "maxLength": 4}, "status": {"type": "string",
      "enum": ["pending", "in_progress", "completed"]}}, "required": ["step", "status"], "additionalProperties": false}}},
      "required": ["plan"], "additionalProperties": false}},
  {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
  {"type": "namespace", "name": "mcp__docs__", "description": "d", "tools": [{"type": "function", "name": "search", "parameters":
      {"type": "object", "properties": {"q": {"type": "string", "maxLength": 3}}, "required": ["q"]}}]},
  {"type": "web_search", "external_web_access": true}, {"type": "image_generation", "output_format": "png"}])";

std::string codex(const std::string& input, const std::string& choice = R"("auto")") {
  return R"({"model": "gpt-5-codex", "instructions": "You are Codex.", "input": )" + input + R"(, "tools": )" +
         kCodexTools + R"(, "tool_choice": )" + choice +
         R"(, "parallel_tool_calls": false, "reasoning": {"effort": "medium", "summary": "auto"},
         "store": false, "stream": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-a1",
         "text": {"verbosity": "low"}, "client_metadata": {"x-codex-installation-id": "1"}, "service_tier": null,
         "temperature": 0, "max_output_tokens": 200})";
}

constexpr char kCodexFirst[] = R"([
  {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions instructions>"}]},
  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is the capital of Japan?"}]})";

// The items of the answer, as response.output_item.done brings them, and the last event's type.
struct Turn {
  std::vector<io::JsonValue> items;
  std::string last;
};

Turn turn_of(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  Turn out;
  int64_t n = 0;
  for (const std::string& data : events_of(reply.body)) {
    const io::JsonValue event = json(data);
    EXPECT_EQ(at(event, "sequence_number"), io::JsonValue(n++));
    out.last = *at(event, "type").as_string();
    if (out.last == "response.output_item.done") out.items.push_back(at(event, "item"));
  }
  return out;
}

TEST_F(AgentsTest, CodexGoesThroughATurnWithACall) {
  const std::string first = kCodexFirst;
  const Turn call =
      turn_of(post("/v1/responses", codex(first + "]", R"({"type": "function", "name": "exec_command"})")));
  EXPECT_EQ(call.last, "response.completed");
  ASSERT_EQ(call.items.size(), 2u);
  EXPECT_EQ(at(call.items[0], "type"), io::JsonValue("reasoning"));
  EXPECT_EQ(at(call.items[1], "name"), io::JsonValue("exec_command"));
  EXPECT_NE(at(json(*at(call.items[1], "arguments").as_string()), "cmd").as_string(), nullptr);
  std::string history = first;
  for (const io::JsonValue& item : call.items) history += ", " + io::dump_json(item);
  history += R"(, {"type": "function_call_output", "call_id": )" + io::dump_json(at(call.items[1], "call_id")) +
             R"(, "output": "Exit code: 0\nWall time: 0 seconds\nOutput:\nok"})";
  const Turn answer = turn_of(post("/v1/responses", codex(history + "]")));
  EXPECT_TRUE(answer.last == "response.completed" || answer.last == "response.incomplete") << answer.last;
  EXPECT_FALSE(answer.items.empty());
}

// What a session leaves comes back in all its kinds: those of other servers are ignored.
TEST_F(AgentsTest, CodexSendsWholeHistories) {
  const std::string history = std::string(kCodexFirst) + R"(,
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": null, "encrypted_content": null},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch", "status": "completed"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    {"type": "local_shell_call", "call_id": "c2", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "compaction", "encrypted_content": "x"}, {"type": "ghost_snapshot", "ghost_commit": {}},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is the capital of Japan?"}]}])";
  EXPECT_FALSE(turn_of(post("/v1/responses", codex(history))).items.empty());
  const Reply probe = post("/v1/responses", R"({"model": "x", "input": [], "max_output_tokens": 1, "stream": false})");
  EXPECT_EQ(probe.status, 200) << probe.body;
}

TEST_F(AgentsTest, CodexAsksForASchemaOnce) {
  std::string body = codex(std::string(kCodexFirst) + "]");
  const std::string form = R"("text": {"verbosity": "low", "format": {"type": "json_schema", "strict": true, "name":
      "codex_output_schema", "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
      "additionalProperties": false}}})";
  const std::string plain = R"("text": {"verbosity": "low"})";
  body.replace(body.find(plain), plain.size(), form);
  body.replace(body.find(R"("auto")"), 6, R"("none")");
  const Turn answer = turn_of(post("/v1/responses", body));
  ASSERT_FALSE(answer.items.empty());
  EXPECT_NE(at(json(*at(answer.items.back(), "content.0.text").as_string()), "ok").as_bool(), nullptr);
}

// ---- Claude Code -------------------------------------------------------------------------------------------------

std::string claude(const std::string& messages, const std::string& more = "", const std::string& stamp = "a1") {
  return R"({"model": "claude-sonnet-4-5-20250929", "max_tokens": 32000, "temperature": 0, "stream": true, "system": [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=)" +
         stamp + R"(;"},
    {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "tools": [{"name": "Bash", "description": "Runs", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "properties": {"command": {"type": "string", "maxLength": 6}, "timeout": {"type": "number", "minimum": 0,
        "maximum": 5, "multipleOf": 1}}, "required": ["command"], "additionalProperties": false}},
      {"name": "TodoWrite", "input_schema": {"type": "object", "properties": {"todos": {"type": "array", "maxItems": 1, "items":
        {"type": "object", "properties": {"content": {"type": "string", "minLength": 1, "maxLength": 4}}, "required": ["content"]}}},
        "required": ["todos"]}, "cache_control": {"type": "ephemeral"}},
      {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "metadata": {"user_id": "user_1_account__session_2"}, "messages": )" +
         messages + (more.empty() ? "" : ", " + more) + "}";
}

constexpr char kThinking[] =
    R"("thinking": {"type": "enabled", "budget_tokens": 31999}, "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})";

constexpr char kClaudeFirst[] = R"([{"role": "user", "content": [
    {"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "What is the capital of Japan?",
     "cache_control": {"type": "ephemeral"}}]})";

TEST_F(AgentsTest, ClaudeCodeGoesThroughATurnWithACall) {
  const std::string first = kClaudeFirst;
  const Reply reply =
      post("/v1/messages?beta=true",
           claude(first + "]", std::string(kThinking) + R"(, "tool_choice": {"type": "tool", "name": "Bash"})"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  std::string thinking, partial, id, stop;
  for (const std::string& data : events_of(reply.body)) {
    const io::JsonValue event = json(data);
    if (const auto text = at(event, "delta.thinking"); !text.is_null()) thinking += *text.as_string();
    if (const auto text = at(event, "delta.partial_json"); !text.is_null()) partial += *text.as_string();
    if (const auto found = at(event, "content_block.id"); !found.is_null()) id = *found.as_string();
    if (const auto reason = at(event, "delta.stop_reason"); !reason.is_null()) stop = *reason.as_string();
  }
  EXPECT_EQ(stop, "tool_use");
  EXPECT_FALSE(thinking.empty());
  ASSERT_NE(at(json(partial), "command").as_string(), nullptr) << partial;
  const std::string history =
      first + R"(, {"role": "assistant", "content": [{"type": "thinking", "thinking": )" + io::dump_json(thinking) +
      R"(, "signature": "levin"}, {"type": "tool_use", "id": ")" + id + R"(", "name": "Bash", "input": )" + partial +
      R"(, "cache_control": {"type": "ephemeral"}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": ")" +
      id + R"(", "content": "Tokyo", "is_error": false}, {"type": "text", "text": "<system-reminder>"}]}])";
  const Reply answer = post("/v1/messages?beta=true", claude(history, kThinking));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(answer.body.find("message_stop"), std::string::npos);
  EXPECT_EQ(post("/v1/messages/count_tokens?beta=true", claude(history, kThinking)).status, 200);
}

// Its first system block changes with every request and says nothing to a model; in the prompt it would undo the cache.
TEST_F(AgentsTest, ClaudeCodesStampIsNotInThePrompt) {
  const std::string messages = std::string(kClaudeFirst) + "]";
  const auto n_tokens = [&](const std::string& stamp) {
    return at(json(post("/v1/messages/count_tokens", claude(messages, "", stamp)).body), "input_tokens");
  };
  EXPECT_EQ(n_tokens("a1"), n_tokens("a much longer stamp than the other one"));
  // titles and warm-ups: no tools, a system text, one token
  const Reply title =
      post("/v1/messages?beta=true", R"({"model": "claude-haiku", "max_tokens": 1, "system": "Title.", "messages":
      [{"role": "user", "content": "quota"}], "metadata": {"user_id": "u"}})");
  EXPECT_EQ(title.status, 200) << title.body;
  EXPECT_EQ(ask(demo_->port(), "/", "").status, 200);
}

}  // namespace
}  // namespace levin::test
