#include "ui/views/cache/cache_jobs.h"

#include "base/error.h"

namespace kvscope::ui {

CacheJobs::CacheJobs(Workspace& workspace, QObject* parent) : QObject(parent), workspace_(workspace) {}
CacheJobs::~CacheJobs() { cancelAll(); }

void CacheJobs::setRun(const RunKey& key, int threads) {
    if (!(key_ == key)) cancelAll();
    key_ = key;
    threads_ = threads;
}

void CacheJobs::cancelAll() {
    for (std::stop_source* source : {&stop_, &asked_, &ahead_}) {
        source->request_stop();
        *source = {};
    }
}

std::shared_ptr<std::atomic<int>> CacheJobs::newProgress() { // an ended job may still report into the old one
    return permille_ = std::make_shared<std::atomic<int>>(0);
}

template <class Result>
void CacheJobs::start(const char* slot, const std::stop_token& stop, std::shared_ptr<std::atomic<int>> progress,
                      std::function<Result(TraceReader&, const Progress&, const std::stop_token&)> work,
                      std::function<void(Result)> done) {
    workspace_.query<Result>(
        this, slot, key_,
        [work = std::move(work), stop, progress = std::move(progress)](TraceReader& reader) {
            try {
                return work(
                    reader,
                    [&](double fraction, std::string_view) {
                        if (progress) progress->store(int(fraction * 1000));
                    },
                    stop);
            } catch (const Error& error) {
                Result failed;
                failed.cancelled = error.kind == ErrorKind::Cancelled;
                if (!failed.cancelled) failed.problem = QString::fromStdString(oneLine(error));
                return failed;
            } catch (const std::bad_alloc&) {
                Result failed;
                failed.problem = tr("There is not enough memory to hold this run's selections.");
                return failed;
            }
        },
        std::move(done));
}

void CacheJobs::load(WhatIf::Trace separate, bool shared, std::function<void(Loaded)> done) {
    start<Loaded>(
        "cache load", stop_.get_token(), newProgress(),
        [separate, shared, runId = key_.runId, threads = threads_](TraceReader& reader, const Progress& progress,
                                                                   const std::stop_token& stop) {
            Loaded loaded;
            loaded.separate = separate;
            if (!separate)
                loaded.separate =
                    std::make_shared<const SelectionTrace>(loadSelectionTrace(reader, runId, progress, stop));
            throwIfCancelled(stop);
            WhatIf::Trace trace = loaded.separate;
            if (shared) trace = std::make_shared<const SelectionTrace>(withSharedPools(*trace));
            loaded.whatIf = std::make_shared<WhatIf>(trace);
            for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady})
                loaded.whatIf->setSampled(policy, sampledMissCurve(*trace, policy));
            const WhatIfQuestion recorded = loaded.whatIf->recorded();
            loaded.whatIf->add(recorded.policy, recorded.size,
                               std::make_shared<const CacheReplay>(replayCache(
                                   *trace, findReplayPolicy(recorded.policy), recorded.size, threads, {}, stop)));
            return loaded;
        },
        std::move(done));
}

void CacheJobs::makeCurves(WhatIf::Trace trace, WhatIf::Trace separate, std::function<void(Curves)> done) {
    start<Curves>(
        "cache curves", stop_.get_token(), newProgress(),
        [trace, separate, threads = threads_](TraceReader&, const Progress& progress, const std::stop_token& stop) {
            const auto part = [&progress](double from, double to) {
                return [&progress, from, to](double fraction, std::string_view what) {
                    report(progress, from + (to - from) * fraction, what);
                };
            };
            Curves curves;
            curves.lru = missCurves(*trace, CurvePolicy::Lru, threads, part(0, 0.2), stop);
            curves.belady = missCurves(*trace, CurvePolicy::Belady, threads, part(0.2, 0.6), stop);
            curves.locality = localityProfiles(*trace, WhatIf::kLongestWindow, threads, part(0.6, 0.8), stop);
            curves.reproduction = reproduce(*separate, threads, part(0.8, 1), stop);
            return curves;
        },
        std::move(done));
}

void CacheJobs::startReplay(const char* slot, const std::stop_token& stop, WhatIf::Trace trace,
                            const std::string& policy, int size, int threads, std::function<void(Replay)> done) {
    start<Replay>(
        slot, stop, nullptr,
        [trace, policy, size, threads](TraceReader&, const Progress&, const std::stop_token& stopped) {
            Replay result{{}, policy, size, nullptr};
            result.replay = std::make_shared<const CacheReplay>(
                replayCache(*trace, findReplayPolicy(policy), size, threads, {}, stopped));
            return result;
        },
        std::move(done));
}

void CacheJobs::replayAsked(WhatIf::Trace trace, const std::string& policy, int size,
                            std::function<void(Replay)> done) {
    asked_.request_stop();
    asked_ = {};
    startReplay("cache asked", asked_.get_token(), std::move(trace), policy, size, threads_, std::move(done));
}

void CacheJobs::replayForLine(WhatIf::Trace trace, const std::string& policy, int size,
                              std::function<void(Replay)> done) {
    startReplay("cache line", stop_.get_token(), std::move(trace), policy, size, 1, std::move(done));
}

void CacheJobs::aheadLine(WhatIf::Trace trace, std::vector<AheadPoint> points, Prefetch prefetch,
                          std::function<void(QVector<QPointF>)> done) {
    struct Line : Outcome {
        QVector<QPointF> points;
    };
    ahead_.request_stop();
    ahead_ = {};
    start<Line>(
        "cache ahead", ahead_.get_token(), nullptr,
        [trace, points = std::move(points), prefetch](TraceReader&, const Progress&, const std::stop_token& stop) {
            Line line;
            for (const AheadPoint& point : points) {
                throwIfCancelled(stop);
                const ReplayConfig config = timeOver(*trace, *point.replay, point.link, prefetch);
                line.points.append({point.x, rateSums(config, coldSteps()).tokensPerSecond()});
            }
            return line;
        },
        [done = std::move(done)](const Line& line) {
            if (line.good()) done(line.points);
        });
}

} // namespace kvscope::ui
