// Runs a parsed template.
#pragma once

#include "core/chat/syntax.h"

#include <string>

namespace kvscope::chat {

/// The text that the template makes of these names. @throws TemplateError, TemplateRefusal
std::string evaluate(const Nodes& nodes, const Dict& names);

} // namespace kvscope::chat
