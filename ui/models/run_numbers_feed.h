// Reads the numbers of all open runs, one run after the other, for a table of runs. What was read stays; of a run that
// grows only the new steps are read.
#pragma once

#include "profiler/read/run_numbers.h"
#include "ui/frame/workspace.h"

#include <QObject>
#include <QTimer>

#include <map>
#include <string>
#include <utility>

namespace kvscope::ui {

/// Lives on the GUI thread. It reads only while it is active, because a table that is not in sight needs no numbers.
class RunNumbersFeed final : public QObject {
    Q_OBJECT
public:
    RunNumbersFeed(Workspace& workspace, QObject* parent);
    void setActive(bool active);
    /// The numbers of a run. Null: nothing was read, the run cannot be read, or it has none.
    const RunNumbers* find(const RunKey& key) const;
    /// Runs whose numbers are not read yet.
    int waiting() const;

signals:
    void read(const RunKey& key); // numbers of this run came

private:
    using Place = std::pair<QString, int>; // path and number of a run
    struct Entry {
        /// The creation time of the run that was read. If the run has another one now, the file was replaced.
        std::string created;
        RunNumbers numbers{};
        int steps = -1;              // the steps that the run's row had when all of them were read
        RunFact<RunStatus> status{}; // the run's status at that time
        bool failed = false;
        bool any = false; // something was read
    };
    struct Answer {
        RunNumbers numbers;
        bool whole = false;
        QString problem;
    };
    void follow();
    void askNext();
    const Entry* entryOf(const RunKey& key) const;
    bool isMissing(const OpenRun& run) const;
    Entry& entryFor(const OpenRun& run);
    void take(const OpenRun& asked, Answer answer);

    Workspace& workspace_;
    std::map<Place, Entry> entries_;
    QTimer growth_;         // a run that has grown is read on when it fires
    unsigned requests_ = 0; // asked so far; the last one is the one that is read
    bool active_ = false, asking_ = false;
};

} // namespace kvscope::ui
