#include "ui/frame/cursor_link.h"

#include <algorithm>
#include <vector>

namespace kvscope::ui {

namespace {

/// All links of the program. Used on the GUI thread only.
std::vector<CursorLink*>& links() {
    static std::vector<CursorLink*> all;
    return all;
}

bool relaying = false;

} // namespace

CursorLink::CursorLink(Workspace& workspace, QObject* parent) : QObject(parent), workspace_(workspace) {
    links().push_back(this);
    connect(&workspace_, &Workspace::cursorChanged, this, &CursorLink::relay);
}

CursorLink::~CursorLink() { std::erase(links(), this); }

void CursorLink::relay() {
    // Another workspace may know fewer steps of a live run and clamp the cursor. The clamped cursor must not be sent
    // back.
    if (relaying || !enabled_ || workspace_.lastMove() == CursorMove::Follow) return;
    const OpenRun* run = workspace_.current();
    if (!run) return;
    relaying = true;
    for (CursorLink* other : links()) {
        if (other == this || !other->enabled_) continue;
        const OpenRun* shown = other->workspace_.current();
        if (shown && shown->key == run->key) other->workspace_.setCursor(workspace_.cursor());
    }
    relaying = false;
}

} // namespace kvscope::ui
