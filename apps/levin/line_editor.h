// Lines typed by a person: with editing and history on a terminal, as they come otherwise.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace levin::app {

class LineEditor {
 public:
  LineEditor();
  ~LineEditor();

  // The next line without its end; nullopt at the end of input. On a terminal Ctrl-C drops the line that was begun.
  std::optional<std::string> read(const std::string& prompt);

  bool terminal() const { return terminal_; }

 private:
  struct State;
  bool terminal_ = false;
  std::unique_ptr<State> state_;
};

}  // namespace levin::app
