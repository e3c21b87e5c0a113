#include <fmt/core.h>

#include "io/json.h"

namespace levin::io {
namespace {

// How one type is read from a value, and what it is called in errors.
template <class T>
struct Scalar;

template <>
struct Scalar<bool> {
  static constexpr std::string_view kOne = "true or false";
  static constexpr std::string_view kList = "a list of true and false";
  static std::optional<bool> read(const JsonValue& v) {
    return v.as_bool() != nullptr ? std::optional<bool>(*v.as_bool()) : std::nullopt;
  }
};

template <>
struct Scalar<int64_t> {
  static constexpr std::string_view kOne = "an integer of 64 bits";
  static constexpr std::string_view kList = "a list of integers";
  static std::optional<int64_t> read(const JsonValue& v) { return v.to_int64(); }
};

template <>
struct Scalar<uint64_t> {
  static constexpr std::string_view kOne = "a non-negative integer of 64 bits";
  static constexpr std::string_view kList = "a list of non-negative integers";
  static std::optional<uint64_t> read(const JsonValue& v) { return v.to_uint64(); }
};

template <>
struct Scalar<double> {
  static constexpr std::string_view kOne = "a number in the range of a double";
  static constexpr std::string_view kList = "a list of numbers";
  static std::optional<double> read(const JsonValue& v) { return v.to_double(); }
};

template <>
struct Scalar<std::string> {
  static constexpr std::string_view kOne = "a string";
  static constexpr std::string_view kList = "a list of strings";
  static std::optional<std::string> read(const JsonValue& v) {
    return v.as_string() != nullptr ? std::optional<std::string>(*v.as_string()) : std::nullopt;
  }
};

template <class T>
constexpr bool kIsList = false;
template <class T>
constexpr bool kIsList<std::vector<T>> = true;

template <class T>
Result<std::vector<T>> read_list(const JsonFields& fields, std::string_view key, ErrorKind kind) {
  const JsonValue* value = fields.find(key);
  const JsonArray* array = value != nullptr ? value->as_array() : nullptr;
  if (array == nullptr) return fields.unexpected(key, Scalar<T>::kList);
  std::vector<T> out;
  out.reserve(array->size());
  for (const JsonValue& element : *array) {
    std::optional<T> scalar = Scalar<T>::read(element);
    if (!scalar) {
      return Error{kind, fmt::format("{}[{}] is {}, expected {}", fields.name_of(key), out.size(),
                                     describe_json(element), Scalar<T>::kOne)};
    }
    out.push_back(std::move(*scalar));
  }
  return out;
}

}  // namespace

Result<JsonFields> JsonFields::of(const JsonValue& document, std::string_view where, ErrorKind kind) {
  const JsonObject* object = document.as_object();
  if (object == nullptr) {
    return Error{kind, fmt::format("{} is {}, expected an object", where, describe_json(document))};
  }
  return JsonFields(object, std::string(where), "", kind);
}

bool JsonFields::has(std::string_view key) const {
  const JsonValue* value = find(key);
  return value != nullptr && !value->is_null();
}

template <JsonField T>
Result<T> JsonFields::get(std::string_view key) const {
  if constexpr (kIsList<T>) {
    return read_list<typename T::value_type>(*this, key, kind_);
  } else {
    const JsonValue* value = find(key);
    std::optional<T> scalar = value != nullptr ? Scalar<T>::read(*value) : std::nullopt;
    if (!scalar) return unexpected(key, Scalar<T>::kOne);
    return std::move(*scalar);
  }
}

template Result<bool> JsonFields::get<bool>(std::string_view) const;
template Result<int64_t> JsonFields::get<int64_t>(std::string_view) const;
template Result<uint64_t> JsonFields::get<uint64_t>(std::string_view) const;
template Result<double> JsonFields::get<double>(std::string_view) const;
template Result<std::string> JsonFields::get<std::string>(std::string_view) const;
template Result<std::vector<bool>> JsonFields::get<std::vector<bool>>(std::string_view) const;
template Result<std::vector<int64_t>> JsonFields::get<std::vector<int64_t>>(std::string_view) const;
template Result<std::vector<uint64_t>> JsonFields::get<std::vector<uint64_t>>(std::string_view) const;
template Result<std::vector<double>> JsonFields::get<std::vector<double>>(std::string_view) const;
template Result<std::vector<std::string>> JsonFields::get<std::vector<std::string>>(std::string_view) const;

Result<JsonFields> JsonFields::get_fields(std::string_view key) const {
  const JsonValue* value = find(key);
  const JsonObject* member = value != nullptr ? value->as_object() : nullptr;
  if (member == nullptr) return unexpected(key, "an object");
  return JsonFields(member, where_, path_ + std::string(key) + ".", kind_);
}

Error JsonFields::unexpected(std::string_view key, std::string_view expected) const {
  const JsonValue* value = find(key);
  const std::string found = value != nullptr ? "is " + describe_json(*value) : "is missing";
  return Error{kind_, fmt::format("{} {}, expected {}", name_of(key), found, expected)};
}

std::string JsonFields::name_of(std::string_view key) const { return fmt::format("{}: {}{}", where_, path_, key); }
std::string JsonFields::path_of(std::string_view key) const { return path_ + std::string(key); }

}  // namespace levin::io
