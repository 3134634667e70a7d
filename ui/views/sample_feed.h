// Reads the numbers of several runs for a comparison, one run after the other, and keeps them. A run that has ended is
// read once; one that grows is read on from where the last reading ended.
#pragma once

#include "profiler/compare/compare.h"
#include "ui/frame/workspace.h"

#include <functional>
#include <memory>
#include <vector>

namespace kvscope::ui {

class SampleFeed {
public:
    using Sample = std::shared_ptr<const RunSample>;
    /// `slot` names its requests within the context.
    SampleFeed(Workspace& workspace, QObject* context, const char* slot)
        : workspace_(workspace), context_(context), slot_(slot) {}

    /// Of which steps the samples are. All: of every step. Glance: of some five hundred steps of a long run, which are
    /// read in a moment.
    enum class Part { Glance, All };
    using Done = std::function<void(std::vector<Sample>, Part)>;
    /// The samples in the order of the runs, to `done`; or to `failed` a run's place and why it cannot be read.
    /// `progress`: some steps came. A question that was asked before and has no answer yet is dropped.
    void ask(const std::vector<RunKey>& runs, Done done,
             std::function<void(std::size_t place, const QString& sentence)> failed, std::function<void()> progress);
    void forget();
    void pause();
    void resume();
    bool loading() const { return asking_; }
    bool paused() const { return paused_; }
    int loaded() const; // steps of the runs asked for
    int total() const;

private:
    struct Kept {
        RunKey key;
        Sample sample;    // null: nothing has come
        bool all = false; // of a run that had ended when it was read
    };
    Kept& keptOf(const RunKey& key);
    void askNext();
    int shortest() const; // steps of the shortest run asked for
    bool deservesGlance() const;
    void glance(); // at the next run

    Workspace& workspace_;
    QObject* context_;
    const char* slot_;
    std::vector<Kept> kept_;
    std::vector<RunKey> wanted_;
    std::size_t next_ = 0;
    unsigned epoch_ = 0;
    bool asking_ = false, paused_ = false;
    ColdSteps counted_ = ColdSteps::LeftOut; // as in the summaries that are kept
    std::vector<Sample> glances_;
    Done done_;
    std::function<void(std::size_t, const QString&)> failed_;
    std::function<void()> progress_;
};

} // namespace kvscope::ui
