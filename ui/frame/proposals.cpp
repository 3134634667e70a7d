#include "ui/frame/proposals.h"

#include "ui/frame/view.h"
#include "ui/frame/view_request.h"

#include <QAction>
#include <QMenu>

#include <utility>

namespace kvscope::ui {

bool requestTrial(const QWidget& from, const ProposedChange& change) {
    const QWidget* window = from.window(); // of the same window as before, whatever comes to the front
    if (!requestView(from, QStringLiteral("cache"))) return false;
    for (View* view : window->findChildren<View*>())
        if (auto* tries = view->isVisible() ? dynamic_cast<TriesCaches*>(view) : nullptr) tries->tryChange(change);
    return true;
}

RunsChanges* runnerOf(const QWidget& from) { return dynamic_cast<RunsChanges*>(from.window()); }

void addFork(QMenu& menu, QWidget& from, std::function<void()> before) {
    const RunsChanges* runner = runnerOf(from);
    if (runner == nullptr) return;
    const QString refusal = runner->whyNoFork();
    QAction* fork = menu.addAction(QObject::tr("Fork here…"), &from, [&from, before = std::move(before)] {
        if (before) before();
        if (RunsChanges* window = runnerOf(from)) window->forkHere();
    });
    fork->setObjectName(QStringLiteral("forkHere"));
    fork->setEnabled(refusal.isEmpty());
    fork->setToolTip(refusal);
    menu.setToolTipsVisible(true);
}

} // namespace kvscope::ui
