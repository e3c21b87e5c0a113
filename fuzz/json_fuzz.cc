// Any text: the JSON parser answers with a value or an error, and what it accepts it writes and reads back the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "io/json.h"

namespace levin {
namespace {

void read_fields(const io::JsonValue& value) {
  const Result<io::JsonFields> fields = io::JsonFields::of(value, "fuzz");
  if (!fields.ok()) return;
  for (const io::JsonMember& member : fields->object().members()) {
    LEVIN_CHECK(fields->find(member.key) == &member.value, "a key is found at another place");
    (void)fields->get<int64_t>(member.key);
    (void)fields->get<uint64_t>(member.key);
    (void)fields->get<double>(member.key);
    (void)fields->get<std::vector<std::string>>(member.key);
    if (const Result<io::JsonFields> inner = fields->get_fields(member.key); inner.ok()) read_fields(member.value);
  }
}

void check_text(std::string_view text) {
  const Result<io::JsonValue> strict = io::parse_json(text, "fuzz");
  const Result<io::JsonValue> lenient = io::parse_json(text, "fuzz", {.duplicates = io::DuplicateKeys::kLastWins});
  if (strict.ok()) LEVIN_CHECK(lenient.ok(), "strict accepts what lenient refuses");
  if (!lenient.ok()) return;
  if (strict.ok()) LEVIN_CHECK(*strict == *lenient, "strict and lenient differ");

  for (const bool compact : {false, true}) {
    const Result<io::JsonValue> again = io::parse_json(io::dump_json(*lenient, {.compact = compact}), "the dump");
    LEVIN_CHECK(again.ok(), "the dump is not readable: {}", again.error().message);
    LEVIN_CHECK(*again == *lenient, "the dump reads back differently");
  }
  (void)io::dump_json(*lenient, {.numbers = io::JsonNumbers::kAsPython});
  read_fields(*lenient);
}

}  // namespace
}  // namespace levin

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  levin::check_text({reinterpret_cast<const char*>(data), size});
  return 0;
}
