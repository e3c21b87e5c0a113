// The fields of a request's body, read one by one, with the name of the last one at hand for the error.
//
//   Body body(fields, &trace);
//   LEVIN_ASSIGN(const double temperature, body.get_or("temperature", 1.0));      // null and absent: 1.0
//
// An Error that comes from here, or from the caller about a value just read, is about the field `trace.last`.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "io/json.h"

namespace levin::serve {

class Body {
 public:
  // What was read of a body so far: the path of the member last read, "stream_options.include_usage", and all members of
  // the body itself.
  struct Trace {
    std::string last;
    std::set<std::string, std::less<>> fields;
  };

  Body(io::JsonFields fields, Trace* trace, bool is_inner = false)
      : fields_(std::move(fields)), trace_(trace), is_inner_(is_inner) {}

  bool has(std::string_view key) const {
    record(key);
    return fields_.has(key);
  }
  const io::JsonObject& object() const { return fields_.object(); }
  const io::JsonValue* find(std::string_view key) const {
    note(key);
    return fields_.has(key) ? fields_.find(key) : nullptr;  // null is as good as absent
  }
  template <io::JsonField T>
  Result<T> get(std::string_view key) const {
    note(key);
    return fields_.get<T>(key);
  }
  template <class T>
  auto get_or(std::string_view key, T fallback) const {
    note(key);
    return fields_.get_or(key, std::move(fallback));
  }
  template <io::JsonField T>
  Result<std::optional<T>> get_optional(std::string_view key) const {
    note(key);
    return fields_.get_optional<T>(key);
  }
  // The member, which must be an object.
  Result<Body> get_body(std::string_view key) const {
    note(key);
    LEVIN_ASSIGN(io::JsonFields fields, fields_.get_fields(key));
    return Body(std::move(fields), trace_, true);
  }
  Error unexpected(std::string_view key, std::string_view expected) const {
    note(key);
    return fields_.unexpected(key, expected);
  }
  // About this field, or one inside it by its path: "<field> <what>".
  Error refuse(std::string_view key, std::string_view what) const {
    note(key);
    return {ErrorKind::kUsage, fields_.name_of(key) + " " + std::string(what)};
  }
  std::string path_of(std::string_view key) const { return fields_.path_of(key); }

 private:
  void note(std::string_view key) const;
  void record(std::string_view key) const;

  io::JsonFields fields_;
  Trace* trace_;
  bool is_inner_;  // a member of the body
};

}  // namespace levin::serve
