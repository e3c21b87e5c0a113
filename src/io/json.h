// JSON documents as an owning tree that keeps what the text said: the order of keys and the text of numbers.
//
//   LEVIN_ASSIGN(JsonValue document, parse_json(text, "config.json"));
//   LEVIN_ASSIGN(JsonFields config, JsonFields::of(document, "config.json"));
//   LEVIN_ASSIGN(int64_t n_layers, config.get<int64_t>("num_hidden_layers"));
//   LEVIN_ASSIGN(double theta, config.get_or("rope_theta", 10000.0));
//
// Accepted   RFC 8259 in UTF-8, nesting up to kMaxJsonDepth; NaN and Infinity, which Python writes, are errors that say
// so Errors     name the document, the line and column, and what was found Access     never fails hard: asking a value
// for another type than it has gives nullptr or nullopt
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace levin::io {

inline constexpr int kMaxJsonDepth = 128;

class JsonValue;
struct JsonMember;
using JsonArray = std::vector<JsonValue>;

// A number as it was written. Conversions are exact or nullopt, except to double, which rounds to nearest.
class JsonNumber {
 public:
  explicit JsonNumber(std::integral auto value) : text_(std::to_string(value)) {}
  explicit JsonNumber(double value);  // text as Python's repr; NaN, Infinity and -Infinity as Python's json writes them

  // nullopt unless `text` is a JSON number.
  static std::optional<JsonNumber> from_text(std::string_view text);

  const std::string& text() const { return text_; }
  bool is_integer() const;                    // written without fraction and exponent
  std::optional<int64_t> to_int64() const;    // also from 16.0 or 1e3: if the value is whole and fits
  std::optional<uint64_t> to_uint64() const;  // as to_int64
  std::optional<double> to_double() const;    // nullopt when too large for a double; too small is a (signed) zero

  bool operator==(const JsonNumber&) const = default;  // by text

 private:
  JsonNumber() = default;
  bool is_finite_text() const;

  std::string text_;
};

// Members in the order of the text; keys are unique. Lookup takes logarithmic time.
class JsonObject {
 public:
  JsonObject();
  JsonObject(std::initializer_list<JsonMember> members);
  // A later member replaces the value of an earlier one of the same key. `duplicate`, if given, receives such a key.
  explicit JsonObject(std::vector<JsonMember> members, std::optional<std::string>* duplicate = nullptr);
  JsonObject(const JsonObject&);
  JsonObject(JsonObject&&) noexcept;
  JsonObject& operator=(const JsonObject&);
  JsonObject& operator=(JsonObject&&) noexcept;
  ~JsonObject();

  size_t n_members() const;
  std::span<const JsonMember> members() const;
  const JsonValue* find(std::string_view key) const;  // nullptr when absent
  JsonValue* find(std::string_view key);
  bool contains(std::string_view key) const { return find(key) != nullptr; }

  // Adds at the end, or replaces the value of a key that is there (its place is kept, as in a Python dict).
  void set(std::string_view key, JsonValue value);
  bool erase(std::string_view key);  // false when absent

  bool operator==(const JsonObject& other) const;  // order counts

 private:
  void drop_duplicates();
  size_t place_of(std::string_view key) const;  // first entry of by_key_ whose key is not below `key`
  bool holds(size_t place, std::string_view key) const;

  std::vector<JsonMember> members_;
  std::vector<uint32_t> by_key_;  // indices into members_, ascending by key
};

class JsonValue {
 public:
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };

  JsonValue() = default;  // null
  // Implicit on purpose: object.set("stream", true).
  JsonValue(std::nullptr_t) {}                                 // NOLINT
  JsonValue(std::same_as<bool> auto value) : value_(value) {}  // NOLINT
  template <class T>
    requires(std::integral<T> && !std::same_as<T, bool>)
  JsonValue(T value) : value_(JsonNumber(value)) {}                  // NOLINT
  JsonValue(double value) : value_(JsonNumber(value)) {}             // NOLINT
  JsonValue(JsonNumber value) : value_(std::move(value)) {}          // NOLINT
  JsonValue(std::string value) : value_(std::move(value)) {}         // NOLINT
  JsonValue(std::string_view value) : value_(std::string(value)) {}  // NOLINT
  JsonValue(const char* value) : value_(std::string(value)) {}       // NOLINT
  JsonValue(JsonArray value);                                        // NOLINT
  JsonValue(JsonObject value);                                       // NOLINT

  Type type() const { return static_cast<Type>(value_.index()); }
  bool is_null() const { return type() == Type::kNull; }

  // The value, or nullptr when it is of another type.
  const bool* as_bool() const { return std::get_if<bool>(&value_); }
  const JsonNumber* as_number() const { return std::get_if<JsonNumber>(&value_); }
  const std::string* as_string() const { return std::get_if<std::string>(&value_); }
  const JsonArray* as_array() const { return std::get_if<JsonArray>(&value_); }
  const JsonObject* as_object() const { return std::get_if<JsonObject>(&value_); }
  JsonArray* as_array() { return std::get_if<JsonArray>(&value_); }
  JsonObject* as_object() { return std::get_if<JsonObject>(&value_); }

  // The number, or nullopt when it is no number or does not fit (see JsonNumber).
  std::optional<int64_t> to_int64() const;
  std::optional<uint64_t> to_uint64() const;
  std::optional<double> to_double() const;

  bool operator==(const JsonValue& other) const;  // numbers by their text, objects by order too

 private:
  std::variant<std::nullptr_t, bool, JsonNumber, std::string, JsonArray, JsonObject> value_;
};

struct JsonMember {
  std::string key;
  JsonValue value;

  bool operator==(const JsonMember&) const = default;
};

enum class DuplicateKeys {
  kError,     // files: two values for one key is a mistake of its writer
  kLastWins,  // as Python reads them: the last value at the place of the first
};

struct JsonParseOptions {
  ErrorKind kind = ErrorKind::kModelInvalid;
  DuplicateKeys duplicates = DuplicateKeys::kError;
};

// `what` names the document in errors: "config.json", "the request body".
Result<JsonValue> parse_json(std::string_view text, std::string_view what, const JsonParseOptions& options = {});

enum class JsonNumbers {
  kAsWritten,  // the text of the document
  kAsPython,   // as json.dumps(json.loads(text)): 1.50 becomes 1.5, 1E2 becomes 100.0, -0 becomes 0
};

struct JsonDumpOptions {
  bool compact = false;  // "," and ":" instead of Python's ", " and ": "
  JsonNumbers numbers = JsonNumbers::kAsWritten;
};

// The text Python's json.dumps(value, ensure_ascii=False) writes.
std::string dump_json(const JsonValue& value, const JsonDumpOptions& options = {});

// Python's repr of a float: shortest text that reads back the same, 1e+16, 1e-05, 1.0, nan, inf.
std::string python_float_repr(double value);

// A short account of a value for errors: `"61" (a string)`, `3.5 (a number)`, `null`, `a list of 3`, `an object`.
std::string describe_json(const JsonValue& value);

// What JsonFields can read: a scalar or a list of scalars.
template <class T, class... Any>
concept OneOf = (std::same_as<T, Any> || ...);
template <class T>
concept JsonScalar = OneOf<T, bool, int64_t, uint64_t, double, std::string>;
template <class T>
concept JsonField = JsonScalar<T> || OneOf<T, std::vector<bool>, std::vector<int64_t>, std::vector<uint64_t>,
                                           std::vector<double>, std::vector<std::string>>;

// The members of one object by key, with errors that name where, the value found and what was expected:
//   config.json: rope_scaling.factor is "40" (a string), expected a number
// Refers to the document, which must outlive it.
class JsonFields {
 public:
  // `where` names the document.
  static Result<JsonFields> of(const JsonValue& document, std::string_view where,
                               ErrorKind kind = ErrorKind::kModelInvalid);

  const JsonObject& object() const { return *object_; }
  const std::string& where() const { return where_; }
  bool contains(std::string_view key) const { return object_->contains(key); }
  const JsonValue* find(std::string_view key) const { return object_->find(key); }  // nullptr when absent
  bool has(std::string_view key) const;  // present and not null; configs write null for "not set"

  // Missing and null are errors.
  template <JsonField T>
  Result<T> get(std::string_view key) const;

  // As get(), but a missing or null member gives the fallback.
  template <JsonField T>
  Result<T> get_or(std::string_view key, T fallback) const {
    if (!has(key)) return fallback;
    return get<T>(key);
  }
  Result<std::string> get_or(std::string_view key, const char* fallback) const {
    return get_or<std::string>(key, std::string(fallback));
  }

  // As get(), but nullopt for a missing or null member.
  template <JsonField T>
  Result<std::optional<T>> get_optional(std::string_view key) const {
    if (!has(key)) return std::optional<T>();
    LEVIN_ASSIGN(T value, get<T>(key));
    return std::optional<T>(std::move(value));
  }

  // The fields of a member that is an object; errors from them name the path.
  Result<JsonFields> get_fields(std::string_view key) const;

  // An Error of this document's kind: "<where>: <path of key> is <value>, expected <expected>".
  Error unexpected(std::string_view key, std::string_view expected) const;
  // "config.json: rope_scaling.factor", for errors of the caller's own.
  std::string name_of(std::string_view key) const;
  std::string path_of(std::string_view key) const;  // "rope_scaling.factor"

 private:
  JsonFields(const JsonObject* object, std::string where, std::string path, ErrorKind kind)
      : object_(object), where_(std::move(where)), path_(std::move(path)), kind_(kind) {}

  const JsonObject* object_;
  std::string where_;
  std::string path_;  // of this object inside the document, with a trailing dot; empty for the document itself
  ErrorKind kind_;
};

}  // namespace levin::io
