// Reads the parts of recorded runs' steps for the roofline. It must read every layer of every step, so it reads run
// after run and in pieces, and the user can stop it.
#pragma once

#include "profiler/roofline/measured_run.h"
#include "ui/frame/workspace.h"

#include <functional>
#include <vector>

namespace kvscope::ui {

class PartsFeed {
public:
    using Done = std::function<void(const RunKey&, const MeasuredRun&, const QString& problem)>;
    /// `done`: the parts of a run are there, or a sentence says why they cannot be read. `progress`: some steps came.
    PartsFeed(Workspace& workspace, QObject* context, Done done, std::function<void()> progress)
        : workspace_(workspace), context_(context), done_(std::move(done)), progress_(std::move(progress)) {}

    /// Reads the parts of this run, after those that are waiting. If a run that has grown is added again, it is read
    /// anew.
    void add(const RunKey& key, const MeasuredRun& run);
    /// Drops the waiting runs that were closed meanwhile.
    void keepOpen();
    void pause();
    void resume();
    bool loading() const { return asking_; }
    bool paused() const { return paused_; }
    int loaded() const; // steps
    int total() const;

private:
    struct Reading {
        RunKey key;
        MeasuredRun run;
        int next = 0; // step
    };
    void ask();

    Workspace& workspace_;
    QObject* context_;
    Done done_;
    std::function<void()> progress_;
    std::vector<Reading> waiting_; // the first is being read
    int read_ = 0;                 // steps of runs that are done, since nothing was waiting
    unsigned epoch_ = 0;
    bool asking_ = false, paused_ = false;
};

} // namespace kvscope::ui
