// The chat format of one family; use it through chat.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/json.h"
#include "text/chat.h"

namespace levin::text {

class ChatRenderer {
 public:
  virtual ~ChatRenderer() = default;
  virtual Result<std::vector<Segment>> render(const ChatRequest& request) const = 0;

  std::string_view name() const { return name_; }
  const OutputMarks& output_marks() const { return output_marks_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 protected:
  std::string name_;
  OutputMarks output_marks_;
  std::vector<std::string> warnings_;
};

// ---- what the families share ---------------------------------------------------------------------------------------

// Marks of a format by name, to be filled with their ids; the error names the first that the tokenizer lacks.
using MarkSlot = std::pair<std::string_view, TokenId*>;
Status find_marks(const Tokenizer& tokenizer, const std::vector<MarkSlot>& slots, std::string_view format_name);

// JSON as Python's json.dumps() writes it without ensure_ascii, which is what the official formats use.
std::string python_json(const io::JsonValue& value);

// The arguments of a call; what is no JSON object becomes one.
io::JsonObject arguments_of(const ToolCall& call);

}  // namespace levin::text
