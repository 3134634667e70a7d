#include "ui/frame/proposals.h"

#include "ui/frame/view.h"
#include "ui/frame/view_request.h"

namespace kvscope::ui {

bool requestTrial(const QWidget& from, const ProposedChange& change) {
    const QWidget* window = from.window(); // of the same window as before, whatever comes to the front
    if (!requestView(from, QStringLiteral("cache"))) return false;
    for (View* view : window->findChildren<View*>())
        if (auto* tries = view->isVisible() ? dynamic_cast<TriesCaches*>(view) : nullptr) tries->tryChange(change);
    return true;
}

RunsChanges* runnerOf(const QWidget& from) { return dynamic_cast<RunsChanges*>(from.window()); }

} // namespace kvscope::ui
