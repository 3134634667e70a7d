// The long work of the what-if view, on the workspace's workers: load the selections, make curves, replay a cache.
// Every job can be cancelled, and says how far it is.
#pragma once

#include "ui/frame/workspace.h"
#include "ui/models/what_if.h"

#include <QObject>
#include <QPointF>
#include <QVector>

#include <atomic>
#include <functional>
#include <memory>
#include <stop_token>

namespace kvscope::ui {

class CacheJobs final : public QObject {
    Q_OBJECT
public:
    explicit CacheJobs(Workspace& workspace, QObject* parent = nullptr);
    ~CacheJobs() override;

    struct Outcome {
        QString problem; // one sentence; empty: it worked, or was cancelled
        bool cancelled = false;
        bool good() const { return problem.isEmpty() && !cancelled; }
    };
    struct Loaded : Outcome {
        WhatIf::Trace separate;         // as recorded, one pool per sequence
        std::shared_ptr<WhatIf> whatIf; // with sampled curves and the recorded configuration's replay
    };
    struct Curves : Outcome {
        std::vector<MissCurve> lru, belady; // by pool
        std::vector<LocalityProfile> locality;
        std::optional<Reproduction> reproduction;
    };
    struct Replay : Outcome {
        std::string policy;
        int size = 0;
        WhatIf::Replayed replay;
    };

    /// Sets the run of the jobs that follow, and ends all jobs of another run. threads: 0: one per core.
    void setRun(const RunKey& key, int threads);
    /// separate: already loaded; null: read it. shared: one pool for all sequences.
    void load(WhatIf::Trace separate, bool shared, std::function<void(Loaded)> done);
    /// separate: what the recording is compared with.
    void makeCurves(WhatIf::Trace trace, WhatIf::Trace separate, std::function<void(Curves)> done);
    /// Makes a replay that the user waits for, and ends the replay that was asked for before.
    void replayAsked(WhatIf::Trace trace, const std::string& policy, int size, std::function<void(Replay)> done);
    /// Makes a replay for a line of the plot, on one thread.
    void replayForLine(WhatIf::Trace trace, const std::string& policy, int size, std::function<void(Replay)> done);
    /// Predicted tokens/s when loading ahead: one point per link and replay.
    struct AheadPoint {
        double x = 0;
        Link link;
        WhatIf::Replayed replay;
    };
    void aheadLine(WhatIf::Trace trace, std::vector<AheadPoint> points, Prefetch prefetch,
                   std::function<void(QVector<QPointF>)> done);
    void cancelAll();
    /// How far loading and curves are, 0..1.
    double progress() const { return double(permille_->load()) / 1000; }

private:
    /// progress: where the job says how far it is; null: nobody asks.
    template <class Result>
    void start(const char* slot, const std::stop_token& stop, std::shared_ptr<std::atomic<int>> progress,
               std::function<Result(TraceReader&, const Progress&, const std::stop_token&)> work,
               std::function<void(Result)> done);
    void startReplay(const char* slot, const std::stop_token& stop, WhatIf::Trace trace, const std::string& policy,
                     int size, int threads, std::function<void(Replay)> done);

    Workspace& workspace_;
    RunKey key_;
    int threads_ = 0;
    std::stop_source stop_, asked_, ahead_;
    std::shared_ptr<std::atomic<int>> newProgress();

    std::shared_ptr<std::atomic<int>> permille_ = std::make_shared<std::atomic<int>>(0);
};

} // namespace kvscope::ui
