#include "apps/levin/answer_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "apps/levin/standard_output.h"

namespace levin::app {
namespace {

constexpr char kDim[] = "\x1b[2m";
constexpr char kNormal[] = "\x1b[0m";

volatile std::sig_atomic_t interrupt_noted = 0;

void note_interrupt(int) { interrupt_noted = 1; }

}  // namespace

InterruptScope::InterruptScope() {
  forget();
  previous_ = std::signal(SIGINT, note_interrupt);
}

InterruptScope::~InterruptScope() { std::signal(SIGINT, previous_); }

bool InterruptScope::interrupted() { return interrupt_noted != 0; }

void InterruptScope::forget() { interrupt_noted = 0; }

AnswerPrinter::AnswerPrinter() : terminal_(isatty(STDOUT_FILENO) != 0) {}

AnswerStream AnswerPrinter::stream() {
  return {.on_event = [this](const text::OutputEvent& event) { show(event); },
          .interrupted = [this] { return InterruptScope::interrupted() || !written_.ok(); }};
}

Status AnswerPrinter::finish() {
  end_reasoning();
  write("\n");
  return written_;
}

void AnswerPrinter::show(const text::OutputEvent& event) {
  using Kind = text::OutputEvent::Kind;
  if (event.kind == Kind::kReasoning && !reasoning_) {
    reasoning_ = true;
    write(terminal_ ? kDim : "<think>");
  }
  if (event.kind != Kind::kReasoning) end_reasoning();
  if (event.kind == Kind::kCallBegin) return write(fmt::format("\n[call {}(", event.text));
  if (event.kind == Kind::kCallEnd || event.kind == Kind::kCallBroken) return write(")]\n");
  write(event.text);
}

void AnswerPrinter::end_reasoning() {
  if (!reasoning_) return;
  reasoning_ = false;
  write(terminal_ ? fmt::format("{}\n", kNormal) : "</think>");
}

void AnswerPrinter::write(const std::string& text) {
  if (!written_.ok()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  written_ = flush_standard_output();
}

double per_second(int64_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0; }

int64_t n_decoded(const Answer& answer) { return static_cast<int64_t>(answer.generation.tokens.size()) - 1; }

int64_t n_computed(const Answer& answer) { return answer.n_prompt_tokens - answer.generation.n_hit_tokens; }

void print_statistics(const Answer& answer) {
  const Generation& g = answer.generation;
  const std::string accepted = g.speculation.n_drafted > 0
                                   ? fmt::format(", mean acceptance length {:.2f}", g.speculation.mean_accept_length())
                                   : std::string();
  const std::string cached =
      g.n_hit_tokens > 0 ? fmt::format(", {} of them cached, {}", g.n_hit_tokens, n_computed(answer)) : "";
  // The first token comes with the prompt, so it alone has no speed.
  const std::string decoded =
      n_decoded(answer) > 0
          ? fmt::format("{} tokens at {:.1f} tokens/s", g.tokens.size(), per_second(n_decoded(answer), g.decode_s))
          : fmt::format("{} token{}", g.tokens.size(), g.tokens.size() == 1 ? "" : "s");
  fmt::print(stderr, "\n[{} prompt tokens{} at {:.1f} tokens/s, {}{}, {}]\n", answer.n_prompt_tokens, cached,
             per_second(n_computed(answer), g.prefill_s), decoded, accepted, finish_reason_name(g.finish_reason));
}

}  // namespace levin::app
