// What a finding proposes, on its way from the view that shows the finding to the view or the window that can try it.
#pragma once

#include <QObject>
#include <QString>

#include <functional>
#include <optional>
#include <utility>

class QMenu;
class QWidget;

namespace kvscope::ui {

struct RunKey;

/// A change of a recorded run. Whatever the change does not name stays as it was recorded.
struct ProposedChange {
    int deviceSlots = 0;   // block slots per sequence, layer and KV head; 0: as recorded
    QString cachePolicy;   // empty: as recorded
    int layersAhead = 0;   // for a replay only
    bool resident = false; // for a run only
    /// For a run only: the method's setting, key and value, with which the layer before chooses.
    std::optional<std::pair<QString, QString>> forecast;
};

/// A View that replays caches may be one too.
class TriesCaches {
public:
    virtual ~TriesCaches() = default;
    /// Replays the current run with this change, or does so as soon as the selections of the run are read.
    virtual void tryChange(const ProposedChange& change) = 0;
};

/// A window that records sessions may be one too.
class RunsChanges {
public:
    virtual ~RunsChanges() = default;
    /// Why the shown run cannot be run with changes now; empty: it can.
    virtual QString whyNoRun() const = 0;
    /// Runs the shown run again, with this change.
    virtual void runWith(const ProposedChange& change) = 0;
    /// Why the shown run cannot go on from one of its steps under other settings; empty: it can.
    virtual QString whyNoFork() const { return QObject::tr("This window runs no sessions."); }
    /// Asks for the settings and runs the shown run on from the cursor's step.
    virtual void forkHere() {}
    /// Fills the session form with what an open run was recorded with, and runs nothing.
    virtual void useSettings(const RunKey&) {}
};

/// Brings the view What if to the front with this change. @return false if the window has no such view
bool requestTrial(const QWidget& from, const ProposedChange& change);
/// The window of this widget, where it runs sessions; null: it does not.
RunsChanges* runnerOf(const QWidget& from);
/// Adds "Fork here…" to a menu; before the window asks for the settings, `before` moves the shared cursor. Adds nothing
/// where the window runs no sessions.
void addFork(QMenu& menu, QWidget& from, std::function<void()> before = {});

} // namespace kvscope::ui
