// The chat as a person at a terminal meets it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "apps/terminal.h"
#include "io/mapped_file.h"
#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

const std::string kDemo = std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32";
const std::string kPasteBegin = "\x1b[200~", kPasteEnd = "\x1b[201~";
const std::string kCtrlC = "\x03", kCtrlD = "\x04", kUp = "\x1b[A", kAltEnter = "\x1b\r";

class ChatTest : public testing::Test {
 protected:
  std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"run", kDemo, "--temperature", "0"});
    return more;
  }
  std::string state() const { return dir_.path().string(); }
  std::string history_file() const { return state() + "/levin/history"; }
  std::string history() const { return must(io::read_file(history_file())); }

  TempDir dir_;
};

void leave(Terminal& terminal) {
  terminal.see_prompt();
  terminal.type(kCtrlD);
  terminal.rest();
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST_F(ChatTest, KeepsTheConversation) {
  Terminal terminal(arguments({"-n", "60"}), state());
  terminal.see("/clear");
  terminal.see_prompt();
  terminal.type("What is the capital of Japan?\r");
  terminal.see("The capital of Japan is Tokyo.\r\n");
  terminal.see_prompt();
  terminal.type("/think on\r");
  terminal.see_prompt();
  terminal.type("What is the capital of France?\r");
  terminal.see("\x1b[2mThe country is France. Its capital is Paris.\x1b[0m\r\nThe capital of France is Paris.\r\n");
  terminal.see_prompt();
  terminal.type("/nonsense\r");
  terminal.see("/clear");
  terminal.see_prompt();
  terminal.type("/quit\r");
  terminal.rest();
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST_F(ChatTest, TheSpeedIsThatOfTheTokensComputed) {
  Terminal terminal(arguments({"-n", "2"}), state());
  std::string words;
  for (int i = 0; i < 100; ++i) words += "river ";
  for (const char* expected : {"prompt tokens at ", " of them cached, "}) {
    terminal.see_prompt();
    terminal.type(words + "\r");
    terminal.see(expected);
  }
  leave(terminal);
}

// What is typed while an answer forms is the next line.
TEST_F(ChatTest, KeysDuringAnAnswerAreNotLost) {
  Terminal terminal(arguments({"--ignore-eos", "-n", "300", "--max-model-len", "1024"}), state());
  terminal.see_prompt();
  terminal.type("What is the capital of Japan?\r");
  terminal.see("Tokyo");
  const std::string keys = kPasteBegin + std::string(6000, 'x') + kPasteEnd;
  for (size_t i = 0; i < keys.size(); i += 500) terminal.type(keys.substr(i, 500));
  EXPECT_EQ(terminal.see(", length]").find("xx"), std::string::npos);
  terminal.see_prompt();
  terminal.see(std::string(100, 'x'));
  terminal.type("\r");
  terminal.see("and the context 1024");
  leave(terminal);
  EXPECT_NE(history().find("\n" + std::string(6000, 'x') + "\n"), std::string::npos);
}

TEST_F(ChatTest, AnErrorDoesNotEndIt) {
  Terminal terminal(arguments({"--max-model-len", "256"}), state());
  terminal.see_prompt();
  terminal.type(kPasteBegin + std::string(40000, 'x') + kPasteEnd + "\r");
  terminal.see("and the context 256");
  terminal.see_prompt();
  terminal.type("/result 5\r");
  terminal.see("no call of the last answer waits for a result");
  terminal.see_prompt();
  terminal.type("Repeat: river stone apple tiger\r");
  terminal.see("\x1b[?2004lriver stone apple tiger\r\n");
  leave(terminal);
}

// Where the environment names no locale, another character set, or one that is not there.
TEST_F(ChatTest, TakesEveryCharacter) {
  const std::string text = "Repeat: été 日本語 👍🏽";
  using Variables = std::vector<std::pair<std::string, std::string>>;
  for (const Variables& locale :
       {Variables{}, Variables{{"LC_ALL", "C.UTF-8"}}, Variables{{"LC_ALL", "POSIX"}}, Variables{{"LANG", "xx_YY"}}}) {
    std::filesystem::remove_all(state() + "/levin");
    Terminal terminal(arguments({"-n", "2"}), state(), locale);
    terminal.see_prompt();
    terminal.type(text + "\r");
    terminal.see("Repeat: été 日本語 👍");
    terminal.see("tokens/s");
    leave(terminal);
    EXPECT_EQ(history(), text + "\n");
  }
}

TEST_F(ChatTest, CtrlCEndsTheAnswerAndLeavesNoTrace) {
  Terminal terminal(arguments({"--ignore-eos", "-n", "12000"}), state());
  terminal.see_prompt();
  terminal.type("What is the capital of Japan?\r");
  terminal.see("Tokyo");
  terminal.type(kCtrlC);
  EXPECT_EQ(terminal.see(", cancelled]").find("^C"), std::string::npos);
  leave(terminal);
}

TEST_F(ChatTest, CtrlCClearsTheLineAndSaysHowToLeave) {
  Terminal terminal(arguments(), state());
  terminal.see_prompt();
  for (int i = 0; i < 3; ++i) {
    terminal.type("half a line");
    terminal.see("line");
    terminal.type(kCtrlC);
    terminal.see("Ctrl-D or /exit exits");
    terminal.see_prompt();
  }
  terminal.type(kCtrlC);  // the first one at an empty line
  terminal.see("Ctrl-D or /exit exits");
  terminal.see_prompt();
  terminal.type("Repeat: river stone\r");
  terminal.see("\x1b[?2004lriver stone\r\n");
  terminal.see_prompt();
  terminal.type(kCtrlC);
  terminal.see("Ctrl-C pressed again");
  terminal.see_prompt();
  terminal.type(kCtrlC);
  terminal.rest();
  EXPECT_EQ(terminal.exit_code(), 0);
  EXPECT_EQ(history(), "Repeat: river stone\n");
}

// The line is drawn again in the new width, however often that changes.
TEST_F(ChatTest, TheWindowMayChangeWhileALineIsEdited) {
  Terminal terminal(arguments({"-n", "8"}), state());
  terminal.see_prompt();
  terminal.type("Repeat: river stone apple tiger and quite a few more words than fit in");
  terminal.see("fit in");
  for (const int n_columns : {20, 100, 10, 47, 80, 20}) {
    terminal.resize(n_columns);
    for (const char key : std::string(" so")) terminal.type(std::string(1, key));
    terminal.see("o");
  }
  terminal.resize(120);
  terminal.type(" end\r");
  terminal.see(" prompt tokens at");
  leave(terminal);
  EXPECT_EQ(history(),
            "Repeat: river stone apple tiger and quite a few more words than fit in so so so so so so end\n");
}

TEST_F(ChatTest, APasteIsOneMessage) {
  Terminal terminal(arguments({"-n", "8"}), state());
  terminal.see_prompt();
  terminal.type(kPasteBegin + "Repeat: river stone\rapple tiger\r" + kPasteEnd);
  terminal.see("apple tiger");
  terminal.type("\r");
  terminal.see(" prompt tokens at");
  leave(terminal);
  EXPECT_EQ(history(), "Repeat: river stone\\napple tiger\n");
}

TEST_F(ChatTest, ALongPasteIsOneMessage) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += "line " + std::to_string(i) + "\r";
  Terminal terminal(arguments({"--max-model-len", "256"}), state());
  terminal.see_prompt();
  // A pseudo terminal takes a few thousand bytes at a time.
  std::string keys = kPasteBegin + lines + kPasteEnd;
  for (size_t i = 0; i < keys.size(); i += 1000) terminal.type(keys.substr(i, 1000));
  terminal.see("line 2999");
  terminal.type("\r");
  terminal.see("and the context 256");
  leave(terminal);
  EXPECT_TRUE(history().starts_with("line 0\\nline 1\\n"));
}

TEST_F(ChatTest, AMessageMayHaveSeveralLines) {
  Terminal terminal(arguments({"-n", "2"}), state());
  const auto finish = [&] {
    terminal.type("\r");
    terminal.see("tokens/s");
    terminal.see_prompt();
  };
  terminal.see_prompt();
  terminal.type("one" + kAltEnter + "two");
  finish();
  terminal.type("one\\\r");
  terminal.see_prompt(". ");
  terminal.type("two\\\r");
  terminal.see_prompt(". ");
  terminal.type("three");
  finish();
  terminal.type("\"\"\"\r");
  terminal.see_prompt(". ");
  terminal.type("one\r");
  terminal.see_prompt(". ");
  terminal.type("\r");
  terminal.see_prompt(". ");
  terminal.type("three\"\"\"");
  finish();
  terminal.type("C:\\\\");  // two backslashes end no line early
  finish();
  terminal.type(kCtrlD);
  terminal.rest();
  EXPECT_EQ(history(), "one\\ntwo\none\\ntwo\\nthree\none\\n\\nthree\nC:\\\\\\\\\n");
}

TEST_F(ChatTest, TheHistoryOutlivesTheProgram) {
  {
    Terminal terminal(arguments({"-n", "2"}), state());
    terminal.see_prompt();
    terminal.type("Repeat: river stone\r");
    terminal.see("tokens/s");
    leave(terminal);
  }
  struct stat facts{};
  ASSERT_EQ(stat(history_file().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777u, 0600u);
  Terminal terminal(arguments({"-n", "2"}), state());
  terminal.see_prompt();
  terminal.type(kUp);
  terminal.see("Repeat: river stone");
  terminal.type("\r");
  terminal.see("tokens/s");
  leave(terminal);
  EXPECT_EQ(history(), "Repeat: river stone\nRepeat: river stone\n");
}

TEST_F(ChatTest, TheHistoryMayBeSwitchedOff) {
  Terminal terminal(arguments({"-n", "2", "--history", "off"}), state());
  terminal.see_prompt();
  terminal.type("Repeat: river stone\r");
  terminal.see("tokens/s");
  leave(terminal);
  EXPECT_FALSE(std::filesystem::exists(history_file()));
}

TEST_F(ChatTest, AHistoryThatCannotBeKeptIsMentionedOnce) {
  must(io::write_file_atomically(state() + "/levin", "a file where the folder should be"));
  Terminal terminal(arguments({"-n", "2"}), state());
  for (int i = 0; i < 2; ++i) {
    terminal.see_prompt();
    terminal.type("Repeat: river stone\r");
    const bool complained = terminal.see("tokens/s").find("the history is not saved") != std::string::npos;
    EXPECT_EQ(complained, i == 0);
  }
  leave(terminal);
}

}  // namespace
}  // namespace levin::test
