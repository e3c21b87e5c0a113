// levin tokenize: text to token ids and back.
#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <memory>

#include "apps/levin/commands.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/standard_input.h"
#include "text/tokenizer.h"

namespace levin::app {
namespace {

struct TokenizeCommand {
  std::string file;
  bool decode = false;
  bool special = true;
};

// Ids in text, separated by white space.
Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    while (at != end && std::isspace(static_cast<unsigned char>(*at))) ++at;
    if (at == end) return ids;
    int32_t id = 0;
    const auto [next, code] = std::from_chars(at, end, id);
    if (code != std::errc() || (next != end && !std::isspace(static_cast<unsigned char>(*next)))) {
      const std::string_view rest(at, static_cast<size_t>(end - at));
      return Error{ErrorKind::kUsage, fmt::format("'{}' (number {}) is not a token id",
                                                  rest.substr(0, rest.find_first_of(" \n\t\r")), ids.size())};
    }
    ids.push_back(id);
    at = next;
  }
}

Status decode(const text::Tokenizer& tokenizer, const std::string& input) {
  LEVIN_ASSIGN(const std::vector<int32_t> ids, parse_ids(input));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer.is_token(ids[i])) continue;
    return Error{ErrorKind::kUsage,
                 fmt::format("token id {} (number {}) is not in the tokenizer, which has ids below {}", ids[i], i,
                             tokenizer.n_ids())};
  }
  const std::string text = tokenizer.decode(ids, false);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

Status run_tokenize(const EngineOptions& options, const TokenizeCommand& command) {
  LEVIN_ASSIGN(const text::Tokenizer tokenizer, text::Tokenizer::load(options.model_folder));
  LEVIN_ASSIGN(const std::string input, read_input(command.file.empty() ? "-" : command.file));
  if (command.decode) return decode(tokenizer, input);
  LEVIN_ASSIGN(const std::vector<int32_t> ids,
               command.special ? tokenizer.encode(input) : tokenizer.encode_plain(input));
  fmt::print("{}\n", fmt::join(ids, " "));
  return {};
}

}  // namespace

void add_tokenize(CommandLine& line) {
  Command& command = line.add({.name = "tokenize",
                               .purpose = "Convert text to token ids and back",
                               .examples = "  echo 'Hello, world' | levin tokenize models/demo-v32\n"
                                           "  levin tokenize models/demo-v32 book.txt > ids.txt\n"
                                           "  levin tokenize models/demo-v32 --decode < ids.txt\n"});
  const std::shared_ptr<EngineOptions> options = add_engine_options(command, ModelArgument::kRequired);
  command.hide({"load-format", "override", "max-model-len", "device", "kernels", "graphs", "threads", "isa", "numerics",
                "kv-cache-dtype", "chunk"});
  const auto tokenize = std::make_shared<TokenizeCommand>();
  command.positional(
      {.name = "FILE", .purpose = "File with text, or with ids if --decode is given; default: standard input"},
      set_text(&tokenize->file));
  command.option({.names = "--decode", .purpose = "Convert ids to text", .group = "Tokenize"},
                 set_flag(&tokenize->decode));
  command.option({.names = "--special",
                  .value = "on|off",
                  .purpose = "Recognise added tokens (<think>, ...) in the text",
                  .default_text = "on",
                  .group = "Tokenize"},
                 set_flag(&tokenize->special));
  command.action([options, tokenize] { return run_tokenize(*options, *tokenize); });
}

}  // namespace levin::app
