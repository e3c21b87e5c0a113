// An answer's text while its tokens arrive: plain, as chat, and cut at stop strings.
#include "text/answer_text.h"

#include <gtest/gtest.h>

#include "support/must.h"

namespace levin::test {
namespace {

using text::AnswerText;
using text::OutputEvent;

class AnswerTextTest : public ::testing::Test {
 protected:
  const std::string folder_ = std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32";
  const text::Tokenizer tokenizer_ = must(text::Tokenizer::load(folder_));
  const text::ChatFormat format_ = must(text::ChatFormat::load(text::make_deepseek_v32_chat, folder_, tokenizer_));

  // Kind and text of what comes out for these tokens, "R:" reasoning, "C:" content, joined per kind.
  std::string shown(AnswerText& choice, const std::string& answer) {
    std::vector<OutputEvent> events;
    for (const int32_t id : must(tokenizer_.encode(answer))) choice.push(id, events);
    choice.finish(events);
    std::string out;
    std::optional<OutputEvent::Kind> last;
    for (const OutputEvent& event : events) {
      if (event.kind != last)
        out += event.kind == OutputEvent::Kind::kReasoning ? "R:"
               : event.kind == OutputEvent::Kind::kContent ? "C:"
                                                           : "|";
      last = event.kind;
      out += event.text;
    }
    return out;
  }
};

TEST_F(AnswerTextTest, SplitsReasoningFromTheAnswer) {
  AnswerText choice(tokenizer_, format_, true, {}, {});
  EXPECT_EQ(shown(choice, "I think.</think>Yes."), "R:I think.C:Yes.");
  EXPECT_GT(choice.n_reasoning_tokens(), 0);
}

TEST_F(AnswerTextTest, CutsAtTheStopString) {
  for (const bool include : {false, true}) {
    AnswerText choice(tokenizer_, {.stop = {"apple", "e ap"}, .include_stop = include});
    EXPECT_EQ(shown(choice, "river stone apple tiger"), include ? "C:river stone ap" : "C:river ston");
    EXPECT_EQ(*choice.matched_stop(), "e ap");
  }
}

// The stop string that stands in the start of a longer one is found when that can no longer come.
TEST_F(AnswerTextTest, IncludesAStopStringThatTheEndDecides) {
  for (const bool include : {false, true}) {
    AnswerText choice(tokenizer_, {.stop = {"apple tiger", "le"}, .include_stop = include});
    EXPECT_EQ(shown(choice, "river stone apple"), include ? "C:river stone apple" : "C:river stone app");
    EXPECT_EQ(*choice.matched_stop(), "le");
  }
}

TEST_F(AnswerTextTest, LooksForStopsInTheAnswerAlone) {
  AnswerText thinking(tokenizer_, format_, true, {}, {.stop = {"end", "Yes."}});
  EXPECT_EQ(shown(thinking, "the end.</think>No. Yes. More."), "R:the end.C:No. ");
  EXPECT_EQ(*thinking.matched_stop(), "Yes.");
  AnswerText across(tokenizer_, format_, true, {}, {.stop = {"end.Yes"}});
  EXPECT_EQ(shown(across, "the end.</think>Yes."), "R:the end.C:Yes.");
  EXPECT_EQ(across.matched_stop(), nullptr);
}

TEST_F(AnswerTextTest, ShowsCallsAndNoMarkup) {
  AnswerText choice(tokenizer_, format_, false, {}, {.stop = {"zzz"}});
  const std::string call =
      shown(choice,
            "Look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" "
            "string=\"true\">zzz</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>");
  EXPECT_EQ(call, "C:Look.|f|{\"x\": \"zzz\"}|");
}

// What was held back for a stop string comes before the call that follows, and a stop in it is a stop.
TEST_F(AnswerTextTest, HandsOutWhatItHeldBeforeACall) {
  const std::string call =
      "Look\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  AnswerText held(tokenizer_, format_, false, {}, {.stop = {"Look here"}});
  EXPECT_EQ(shown(held, call), "C:Look|f|{}|");
  AnswerText stopped(tokenizer_, format_, false, {}, {.stop = {"Look here", "ok"}});
  EXPECT_EQ(shown(stopped, call), "C:Lo");
  EXPECT_EQ(*stopped.matched_stop(), "ok");
}

}  // namespace
}  // namespace levin::test
