// Reads a run's spans and counters piece by piece on the workspace's workers and hands each piece to the timeline. A
// run that has ended is read in the same way as one that still grows.
#pragma once

#include "profiler/read/gauge_batch.h"
#include "profiler/read/span_batch.h"
#include "ui/frame/workspace.h"

#include <functional>
#include <optional>

namespace kvscope::ui {

class TimelineFeed {
public:
    using Take = std::function<void(const SpanBatch&, const GaugeBatch&)>;
    using Refuse = std::function<void(const QString& problem)>; // nothing could be read

    TimelineFeed(Workspace& workspace, QObject* context) : workspace_(workspace), context_(context) {}
    void start(const RunKey& key, Take take, Refuse refuse);
    void stop();
    /// Reads no more of this run; `problem` says why.
    void end(const QString& problem);
    void advance(); // the run may have more now
    void pause();   // what is read stays
    void resume();
    bool paused() const { return paused_; }
    bool loading() const { return asking_; }
    double fraction() const { return fraction_; }
    /// The spans are read, and the blocks that the device held are being counted from the selections. countedFraction()
    /// is the share of the steps that are counted.
    bool counting() const { return asking_ && fraction_ >= 1 && counted_ > 0 && counted_ < 1; }
    double countedFraction() const { return counted_; }
    /// Whether the run measured the attention (--oracle); absent: it selects nothing, or that is not read yet.
    std::optional<bool> oracle() const { return gauges_.oracle; }
    const QString& problem() const { return problem_; }
    /// The clock of the transfers, when rows were read.
    const std::optional<LinkClock>& clock() const { return position_.clock; }

private:
    struct Answer {
        SpanBatch batch;
        GaugeBatch gauges;
        QString problem, gaugeProblem;
    };
    void ask();
    void take(Answer answer);

    Workspace& workspace_;
    QObject* context_;
    RunKey key_;
    Take take_;
    Refuse refuse_;
    SpanPosition position_;
    GaugePosition gauges_;
    double fraction_ = 0, counted_ = 0;
    QString problem_;
    unsigned epoch_ = 0;
    bool active_ = false, asking_ = false, again_ = false, begun_ = false, readsGauges_ = true, paused_ = false;
};

} // namespace kvscope::ui
