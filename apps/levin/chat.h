// A chat at a terminal: lines in, answers out, until the person leaves.
#pragma once

#include "apps/levin/conversation.h"
#include "apps/levin/prompt_history.h"

namespace levin::app {

// Errors are those of standard output: nobody reads the answers any more.
Status chat(const ChatSetup& setup, const ChatModel& model, const GenerationOptions& options,
            const PromptHistory& history);

}  // namespace levin::app
