// What the words on the screen mean. One text each, shown by the help overlay, tooltips and reports.
#pragma once

#include <QString>

#include <vector>

namespace kvscope::ui {

struct Definition {
    const char* id;    // link target, e.g. "locality"
    const char* title; // e.g. "Locality γ"
    const char* text;  // plain text, complete sentences
};

const std::vector<Definition>& definitions();
/// Null when there is no such id.
const Definition* findDefinition(const QString& id);

} // namespace kvscope::ui
