// Loads a run tile by tile: a preview of evenly spaced steps first, then the tiles in view, then the rest. Reading can
// be stopped and taken up again; a growing run continues its last tile.
#pragma once

#include "base/error.h"
#include "profiler/tiles/step_spans.h"
#include "profiler/tiles/tile_reader.h"
#include "ui/frame/workspace.h"

#include <QElapsedTimer>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

namespace kvscope::ui {

template <class Tile> class TileFeed {
public:
    /// Called on a worker thread. Reads the steps [first, last], which lie within one tile.
    using Read = std::function<std::shared_ptr<Tile>(TraceReader&, int first, int last)>;
    /// Called on a worker thread. Reads the steps 0, stride, 2 * stride, ...
    using Preview = std::function<std::shared_ptr<Tile>(TraceReader&, int steps, int stride)>;
    /// A piece that has come, on the GUI thread.
    struct Arrival {
        std::shared_ptr<Tile> tile; // null: nothing new, but total or error may be
        int first = 0;              // step the tile begins at
        int times = 1;              // this tile stands for as many tiles from there on, in which there is no step
        int previewStride = 0;      // > 0: the tile is a preview
        int total = 0;              // steps of the run
    };
    using Take = std::function<void(Arrival)>;

    /// `slot` names the request within the context.
    TileFeed(Workspace& workspace, QObject* context, const char* slot)
        : workspace_(workspace), context_(context), slot_(slot) {}

    /// Forgets what is loaded and reads `key` anew.
    void start(const RunKey& key, Read read, Preview preview, Take take) {
        stop();
        key_ = key;
        read_ = std::move(read);
        preview_ = std::move(preview);
        take_ = std::move(take);
        active_ = true;
        clock_.start();
        ask();
    }
    void stop() {
        ++epoch_;
        active_ = asking_ = paused_ = again_ = false;
        loaded_ = total_ = 0;
        plan_ = {};
        error_.clear();
    }
    /// To be called when the run may have more steps.
    void advance() {
        if (!active_ || paused_) return;
        if (asking_)
            again_ = true;
        else
            ask();
    }
    /// Tiles with these steps are read before the others.
    void prefer(double firstStep, double lastStep) { plan_.view = {firstStep, lastStep}; }
    /// Stops reading because the user asked for it. What was read stays.
    void pause() {
        if (!asking_) return;
        ++epoch_; // an answer that is under way belongs to an earlier epoch and is dropped
        paused_ = true;
        asking_ = false;
        workspace_.query<int>(
            // a new read in the same slot interrupts the one that is under way
            context_, slot_, key_, [](TraceReader&) { return 0; }, [](int) {});
    }
    void resume() {
        if (!std::exchange(paused_, false) || !active_) return;
        clock_.start();
        ask();
    }
    int loaded() const { return loaded_; }
    int total() const { return total_; }
    bool active() const { return active_; }
    bool loading() const { return asking_ && loaded_ < total_; }
    bool paused() const { return paused_; }
    qint64 loadingMs() const { return loading() ? clock_.elapsed() : 0; }
    const QString& error() const { return error_; } // a read failed; loading stopped there
    bool isFor(const RunKey& key) const { return active_ && key_ == key; }

private:
    static constexpr int kPreviewSteps = 512; // few enough to be read in a moment
    struct Answer {
        Arrival arrival;
        QString error;
    };
    struct Span {
        int first = 0, last = -1;
    };
    /// The tiles that are there and those that are looked at, from which a worker chooses what to read.
    struct Plan {
        std::vector<int> known; // by tile: steps that have come
        std::pair<double, double> view{0, 0};
        bool fresh = true; // nothing has come yet, not even a preview

        /// The tile nearest to what is in view, among those that lack steps.
        Span next(int total) const {
            Span best;
            double nearest = 0;
            for (int begin = 0; begin < total; begin += kTileSteps) {
                const auto tile = std::size_t(begin / kTileSteps);
                const int end = std::min(begin + kTileSteps, total), have = tile < known.size() ? known[tile] : 0;
                if (begin + have >= end) continue;
                const double away = std::max({0.0, view.first - end, begin - view.second});
                if (best.last < best.first || away < nearest) best = {begin + have, end - 1}, nearest = away;
            }
            return best;
        }
        /// The tiles of the stretch `among` around `tile` for which nothing has come yet.
        TileStretch unknown(TileStretch among, int tile) const {
            const auto has = [&](int at) { return std::size_t(at) < known.size() && known[std::size_t(at)] > 0; };
            TileStretch found{tile, tile};
            while (found.end < among.end && !has(found.end)) ++found.end;
            while (found.first > among.first && !has(found.first - 1)) --found.first;
            return found;
        }
    };

    void ask() {
        asking_ = true;
        again_ = false;
        workspace_.query<Answer>(
            context_, slot_, key_,
            [plan = plan_, read = read_, preview = preview_, runId = key_.runId](TraceReader& reader) {
                Answer answer;
                Arrival& arrival = answer.arrival;
                try {
                    arrival.total = reader.stepCount(runId);
                    const Span span = plan.next(arrival.total);
                    if (span.last < span.first) return answer;
                    if (plan.fresh && arrival.total > 2 * kPreviewSteps) {
                        arrival.previewStride = (arrival.total + kPreviewSteps - 1) / kPreviewSteps;
                        arrival.tile = preview(reader, arrival.total, arrival.previewStride);
                    } else {
                        arrival.first = span.first;
                        arrival.tile = read(reader, span.first, span.last);
                        const int tile = span.first / kTileSteps;
                        const TileStretch same = plan.unknown(emptyTiles(reader, runId, tile), tile);
                        if (same.count() > 1) arrival.first = same.first * kTileSteps, arrival.times = same.count();
                    }
                } catch (const Error& error) {
                    if (error.kind == ErrorKind::Cancelled) throw;
                    answer.error = QString::fromStdString(oneLine(error));
                }
                return answer;
            },
            [this, epoch = epoch_](Answer answer) {
                if (epoch == epoch_) take(std::move(answer));
            });
    }
    void take(Answer answer) {
        asking_ = false;
        if (!answer.error.isEmpty()) {
            error_ = answer.error;
            active_ = false;
            take_({});
            return;
        }
        Arrival& arrival = answer.arrival;
        total_ = arrival.total;
        if (arrival.tile) plan_.fresh = false;
        if (arrival.tile && arrival.previewStride == 0) {
            const auto tile = std::size_t(arrival.first / kTileSteps), end = tile + std::size_t(arrival.times);
            if (plan_.known.size() < end) plan_.known.resize(end, 0);
            for (std::size_t i = tile; i < end; ++i) plan_.known[i] += arrival.tile->steps();
            loaded_ += arrival.tile->steps() * arrival.times;
        }
        const bool goesOn = again_ || (arrival.tile && loaded_ < total_);
        asking_ = goesOn; // before take_, so that what it draws says that more is to come
        const unsigned epoch = epoch_;
        take_(std::move(arrival));
        if (epoch != epoch_) return; // take_ made the feed start over
        if (active_ && goesOn && !paused_) ask();
    }

    Workspace& workspace_;
    QObject* context_;
    const char* slot_;
    RunKey key_;
    Read read_;
    Preview preview_;
    Take take_;
    Plan plan_;
    int loaded_ = 0, total_ = 0;
    unsigned epoch_ = 0;
    bool active_ = false, asking_ = false, again_ = false, paused_ = false;
    QElapsedTimer clock_;
    QString error_;
};

} // namespace kvscope::ui
