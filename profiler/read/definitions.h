// What the words in views, tooltips and reports mean. One text each.
#pragma once

#include <vector>

namespace kvscope {

struct Definition {
    const char* id;    // link target, e.g. "locality"
    const char* title; // e.g. "Locality γ"
    const char* text;  // plain text, complete sentences
};

const std::vector<Definition>& definitions();

} // namespace kvscope
