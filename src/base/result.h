// Values or errors, for everything that comes from outside: files, requests, options.
//
// An Error says what is wrong, with which value, and what to do; its kind decides the exit code of the process
// (docs/cli.md). Bugs in our own code do not come this way: see check.h.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace levin {

enum class ErrorKind {
  kRuntime = 1,       // failed while running
  kUsage = 2,         // unknown option, bad value, missing ids file, prompt beyond the context
  kModelInvalid = 3,  // a file of the model folder missing, unreadable or inconsistent
  kOutOfMemory = 4,   // does not fit
  kNoDevice = 5,      // no such device
};

struct Error {
  ErrorKind kind = ErrorKind::kRuntime;
  std::string message;

  int exit_code() const { return static_cast<int>(kind); }
};

inline Error invalid_model(std::string message) { return {ErrorKind::kModelInvalid, std::move(message)}; }

// Either a value or an Error. Look at ok() first; value() on an error stops the process.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT: implicit on purpose, `return value;`
  Result(Error error) : state_(std::move(error)) {}  // NOLINT: implicit on purpose, `return Error{...};`

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

// The outcome of something that yields no value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

// Hands an Error on to the caller:  LEVIN_TRY(file.read(...));
#define LEVIN_TRY(expression)                                                              \
  do {                                                                                     \
    if (auto levin_status = (expression); !levin_status.ok()) return levin_status.error(); \
  } while (false)

// Declares `name` from a Result, or hands its Error on:  LEVIN_ASSIGN(auto header, read_header(bytes));
#define LEVIN_ASSIGN(declaration, expression) LEVIN_ASSIGN_AT(declaration, expression, __LINE__)
#define LEVIN_ASSIGN_AT(declaration, expression, line) LEVIN_ASSIGN_NAMED(declaration, expression, line)
#define LEVIN_ASSIGN_NAMED(declaration, expression, line)            \
  auto levin_result_##line = (expression);                           \
  if (!levin_result_##line.ok()) return levin_result_##line.error(); \
  declaration = std::move(levin_result_##line).value()

}  // namespace levin
