#include "ui/frame/proposals.h"

#include "ui/frame/home_window.h"
#include "ui/frame/view.h"
#include "ui/frame/view_request.h"

#include <QAction>
#include <QMenu>

#include <utility>

namespace kvscope::ui {

bool requestTrial(const QWidget& from, const ProposedChange& change) {
    const QString id = QStringLiteral("cache");
    const QWidget* window = homeOf(from);
    if (!requestView(from, id)) return false;
    if (auto* tries = dynamic_cast<TriesCaches*>(viewIn(*window, id))) tries->tryChange(change);
    return true;
}

RunsChanges* runnerOf(const QWidget& from) { return dynamic_cast<RunsChanges*>(homeOf(from)); }

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
