// What a person types, a line at a time: with editing on a terminal, as it comes otherwise.
//
// On a terminal a line may hold newlines: those of a text that is pasted (bracketed paste), and those of Alt-Enter.
// Characters are those of the locale: see use_utf8_characters().
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace levin::app {

struct TypedLine {
  enum class End {
    kEntered,
    kInterrupted,  // Ctrl-C; `text` was begun and is to be forgotten
    kEndOfInput,   // Ctrl-D
  };
  End end = End::kEntered;
  std::string text;  // without the newline that ended it
};

class LineEditor {
 public:
  LineEditor();
  ~LineEditor();

  TypedLine read(const std::string& prompt);
  // Gives an entry to the arrow keys; the last one is the nearest.
  void remember(const std::string& entry);

  bool terminal() const { return terminal_; }  // lines can be edited

 private:
  struct State;
  bool terminal_ = false;
  std::unique_ptr<State> state_;
};

}  // namespace levin::app
