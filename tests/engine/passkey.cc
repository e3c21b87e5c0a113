#include "engine/passkey.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <iterator>
#include <random>
#include <string_view>

namespace levin::test {
namespace {

constexpr std::string_view kFirst[] = {"apple", "river", "stone", "cloud", "maple", "tiger",
                                       "lemon", "piano", "ocean", "green", "seven", "candle"};
constexpr std::string_view kSecond[] = {"window", "garden", "silver",  "rocket", "planet", "marble", "forest",
                                        "copper", "violet", "thunder", "pepper", "button", "saddle", "ribbon",
                                        "walnut", "falcon", "island",  "harbor", "meadow"};
constexpr std::string_view kVerbs[] = {"read",   "write",  "open",  "close", "parse", "find",
                                       "split",  "merge",  "check", "load",  "store", "update",
                                       "remove", "append", "count", "build", "flush", "reset"};
constexpr std::string_view kNouns[] = {"file",  "line",   "name",   "path",   "value",  "index",
                                       "table", "buffer", "header", "state",  "entry",  "token",
                                       "group", "field",  "option", "result", "record", "stream"};

// {a}, {b}: nouns; {v}: a verb; {n}: a number.
constexpr std::string_view kConditions[] = {
    "if not {a}:", "if {a} is None:",      "if len({a}) > {n}:", "for {b} in {a}:",
    "while {a}:",  "if {b} in self.{a}s:", "if {a} == {n}:"};
constexpr std::string_view kStatements[] = {"self.{a} = {b}",
                                            "{a} = self.{v}_{b}({a})",
                                            "{a} = {b}[{n}]",
                                            "{a} += {n}",
                                            "{b} = len({a})",
                                            "self._{a}s.append({b})",
                                            "raise ValueError('bad {a}: %r' % {b})",
                                            "return {a}",
                                            "{a} = {b}.get('{a}', {n})",
                                            "{a}, {b} = {b}, {a}",
                                            "{a} = str({b}).strip()",
                                            "print({a}, {b})",
                                            "# {v} the {a} of the {b}",
                                            "del self.{a}[{n}]",
                                            "{a} = [{b} for {b} in {a} if {b}]"};

// Draws that are the same everywhere (the standard distributions are not).
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t n) { return engine_() % n; }
  template <size_t N>
  std::string_view one_of(const std::string_view (&words)[N]) {
    return words[below(N)];
  }

 private:
  std::mt19937_64 engine_;
};

struct Names {
  std::string_view a, b, v;
  uint64_t n;
};

Names draw_names(Dice& dice) {
  return {.a = dice.one_of(kNouns), .b = dice.one_of(kNouns), .v = dice.one_of(kVerbs), .n = dice.below(100)};
}

std::string fill(std::string_view pattern, const Names& names) {
  return fmt::format(fmt::runtime(pattern), fmt::arg("a", names.a), fmt::arg("b", names.b), fmt::arg("v", names.v),
                     fmt::arg("n", names.n));
}

// One function of made-up Python, as lines.
std::vector<std::string> function_lines(Dice& dice) {
  const Names f = draw_names(dice);
  std::string verb(f.v);
  verb[0] = static_cast<char>(std::toupper(verb[0]));
  std::vector<std::string> lines = {fmt::format("def {}_{}(self, {}, {}=None):", f.v, f.a, f.a, f.b),
                                    fmt::format("    \"\"\"{} the {} and return the {}.\"\"\"", verb, f.a, f.b)};
  size_t depth = 1;
  for (uint64_t i = 3 + dice.below(10); i > 0; --i) {
    if (depth < 3 && dice.below(10) < 3) {
      lines.push_back(std::string(4 * depth, ' ') + fill(dice.one_of(kConditions), draw_names(dice)));
      ++depth;
    } else if (depth > 1 && dice.below(2) == 0) {
      --depth;
    }
    lines.push_back(std::string(4 * depth, ' ') + fill(dice.one_of(kStatements), draw_names(dice)));
  }
  lines.insert(lines.end(), {"", ""});
  return lines;
}

std::string draw_key(Dice& dice, const std::vector<std::pair<std::string, std::string>>& taken) {
  while (true) {
    std::string key = fmt::format("{}-{}", dice.one_of(kFirst), dice.one_of(kSecond));
    if (std::none_of(taken.begin(), taken.end(), [&](const auto& pair) { return pair.first == key; })) return key;
  }
}

}  // namespace

PasskeyDocument passkey_document(uint64_t seed, size_t n_characters) {
  Dice dice(seed);
  std::vector<std::pair<std::string, std::string>> keys;
  for (uint64_t n = 1 + dice.below(6); n > 0; --n) {
    keys.emplace_back(draw_key(dice, keys), std::to_string(10000 + dice.below(90000)));
  }
  std::vector<std::string> lines;
  for (size_t length = 0; length < n_characters;) {
    for (std::string& line : function_lines(dice)) {
      length += line.size() + 1;
      lines.push_back(std::move(line));
    }
  }
  for (const auto& [key, answer] : keys) {
    // In the first three quarters: what stands near the end needs no look back.
    lines.insert(lines.begin() + static_cast<int64_t>(dice.below(lines.size() * 3 / 4)),
                 fmt::format("# The passkey of {} is {}.", key, answer));
  }
  PasskeyDocument document;
  for (const std::string& line : lines) document.text += line + "\n";
  for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[dice.below(i)]);
  for (const auto& [key, answer] : keys) {
    document.text += fmt::format("# What is the passkey of {}? It is ", key);
    document.answers.emplace_back(document.text.size(), document.text.size() + answer.size());
    document.text += answer + ".\n";
  }
  return document;
}

std::vector<PasskeyDocument> passkey_documents(const PasskeyChoice& choice, size_t n_characters) {
  std::vector<PasskeyDocument> documents;
  for (int i = 0; i < choice.n_drawn; ++i)
    documents.push_back(passkey_document(choice.first_seed + static_cast<uint64_t>(i), n_characters));
  std::ranges::stable_sort(documents, std::greater(), [](const PasskeyDocument& d) { return d.answers.size(); });
  documents.resize(static_cast<size_t>(choice.n));
  return documents;
}

}  // namespace levin::test
