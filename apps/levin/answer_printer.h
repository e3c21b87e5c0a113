// An answer on standard output as it forms, and what it took on standard error.
#pragma once

#include <string>

#include "apps/levin/conversation.h"

namespace levin::app {

// Ctrl-C ends the answer while this lives, and nothing else.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static bool interrupted();
  static void forget();  // a Ctrl-C that came too late for the last answer

 private:
  void (*previous_)(int);
};

// Reasoning is dim on a terminal and stands between marks elsewhere.
class AnswerPrinter {
 public:
  AnswerPrinter();

  // Prints what comes; ends the answer at Ctrl-C, and when nothing can be printed any more.
  AnswerStream stream();
  // The error (kRuntime) says why the answer could not be printed.
  Status finish();

 private:
  void show(const text::OutputEvent& event);
  void end_reasoning();
  void write(const std::string& text);

  bool terminal_;
  bool reasoning_ = false;
  Status written_;
};

double per_second(int64_t n, double seconds);  // 0 in no time
int64_t n_decoded(const Answer& answer);       // tokens after the first
int64_t n_computed(const Answer& answer);      // tokens of the prompt that were not in the cache
void print_statistics(const Answer& answer);

}  // namespace levin::app
