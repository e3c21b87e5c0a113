// Calls of tools in a model's own way of writing them, as a grammar: what text/chat_output.h reads without a fault.
//
// Of every function the parameters come in the order of its schema, those that are not required perhaps left out, and no
// others. A schema's keywords that the grammar does not know are ignored, unless the function is "strict".
#pragma once

#include <span>
#include <string>

#include "grammar/json_forms.h"
#include "io/json.h"
#include "text/chat.h"

namespace levin::serve {

// tools: function objects, not empty. name: of the only one that may be called; empty: any. Errors (kUsage) name the
// function, and what its schema has.
Result<grammar::Expression> call_expression(grammar::RuleSet& rules, grammar::JsonForms& forms,
                                            const text::OutputMarks& marks, std::span<const io::JsonValue> tools,
                                            const std::string& name, bool several);

}  // namespace levin::serve
