// Tests the rules of the trace format on the runs of a workspace, while the window goes on.
#pragma once

#include "profiler/check/check.h"
#include "ui/frame/workspace.h"

#include <QObject>

#include <functional>
#include <memory>
#include <vector>

namespace kvscope::ui {

/// The checks of the runs of one workspace, which makes this object. A run that has ended is tested once, on one thread
/// of low priority; of several the one that came last is tested first. Lives on the GUI thread.
class RunChecks final : public QObject {
    Q_OBJECT
public:
    /// `broken` is called for a run when rows of it were found to break rules, before `changed`.
    RunChecks(Workspace& workspace, std::function<void(const RunKey& key)> broken);
    ~RunChecks() override; // gives up what is under way

    static RunChecks& of(const Workspace& workspace);
    /// The run's rules and those of its file, with the first kExamples violations of each. Null: not tested, or not
    /// yet.
    const RunCheck* find(const RunKey& key) const;
    /// The number of rows that break rules; 0 if no such row is known.
    std::int64_t violations(const RunKey& key) const;
    /// True while a run is being tested or waits for it.
    bool busy() const;
    /// Forgets what was found for the run, because its file may have been replaced.
    void forget(const RunKey& key);

    static constexpr int kExamples = 100;

signals:
    void changed(); // a run has been tested

private:
    class Tester;
    struct Entry {
        RunKey key;
        quint64 asked = 0; // 0: answered
        std::shared_ptr<const RunCheck> check;
    };
    void follow();
    void take(quint64 asked, std::shared_ptr<const RunCheck> check);

    Workspace& workspace_;
    std::function<void(const RunKey& key)> broken_;
    std::vector<Entry> entries_;
    quint64 asked_ = 0;
    std::unique_ptr<Tester> tester_; // last: its thread ends before the rest goes
};

} // namespace kvscope::ui
