// Random JSON trees for property tests (RapidCheck).
#pragma once

#include <rapidcheck.h>

#include <string>
#include <utility>

#include "io/json.h"

namespace levin::test {

// Any Unicode text but surrogates, control characters and quotes included.
inline rc::Gen<std::string> arbitrary_text() {
  return rc::gen::map(rc::gen::container<std::u32string>(rc::gen::oneOf(
                          rc::gen::inRange<char32_t>(0, 0x80), rc::gen::inRange<char32_t>(0x80, 0x800),
                          rc::gen::inRange<char32_t>(0xE000, 0x10000), rc::gen::inRange<char32_t>(0x10000, 0x110000))),
                      [](const std::u32string& points) {
                        std::string text;
                        for (const char32_t c : points) {
                          const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
                          if (c < 0x80) {
                            text += static_cast<char>(c);
                          } else if (c < 0x800) {
                            text += {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
                          } else if (c < 0x10000) {
                            text += {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
                          } else {
                            text += {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
                          }
                        }
                        return text;
                      });
}

inline rc::Gen<io::JsonValue> arbitrary_json(int depth = 3) {
  using io::JsonValue;
  auto leaf = rc::gen::oneOf(rc::gen::just(JsonValue()),
                             rc::gen::map(rc::gen::arbitrary<bool>(), [](bool v) { return JsonValue(v); }),
                             rc::gen::map(rc::gen::arbitrary<int64_t>(), [](int64_t v) { return JsonValue(v); }),
                             rc::gen::map(rc::gen::arbitrary<double>(), [](double v) { return JsonValue(v); }),
                             rc::gen::map(arbitrary_text(), [](std::string v) { return JsonValue(std::move(v)); }));
  if (depth == 0) return leaf;
  const auto list = rc::gen::map(rc::gen::container<io::JsonArray>(arbitrary_json(depth - 1)),
                                 [](io::JsonArray v) { return JsonValue(std::move(v)); });
  const auto object = rc::gen::map(rc::gen::container<std::vector<std::pair<std::string, JsonValue>>>(
                                       rc::gen::pair(arbitrary_text(), arbitrary_json(depth - 1))),
                                   [](std::vector<std::pair<std::string, JsonValue>> members) {
                                     io::JsonObject out;
                                     for (auto& [key, value] : members) out.set(key, std::move(value));
                                     return JsonValue(std::move(out));
                                   });
  return rc::gen::resize(8, rc::gen::oneOf(leaf, list, object));
}

}  // namespace levin::test
