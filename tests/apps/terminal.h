// The program at a terminal: a person who types, and what they see.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace levin::test {

class Terminal {
 public:
  // Starts the program on a pseudo terminal of its own, with no locale in its environment but what `environment` sets,
  // and its chat history in `state_folder`.
  Terminal(const std::vector<std::string>& arguments, const std::string& state_folder,
           const std::vector<std::pair<std::string, std::string>>& environment = {});
  ~Terminal();  // kills what still runs
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const;
  void resize(int n_columns) const;
  // Reads until `text` is on the screen, after everything earlier calls returned, and returns what stands up to its end.
  // Fails the test, and returns what there is, when the program ends before or keeps silent for half a minute.
  std::string see(const std::string& text);
  // Until a line is edited: its prompt stands there and every key reaches the program.
  void see_prompt(const std::string& prompt = "> ");
  std::string rest();  // to the program's end
  int exit_code();     // after rest(); 128 + signal when it was killed

 private:
  bool read_more();

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string unseen_;
};

}  // namespace levin::test
