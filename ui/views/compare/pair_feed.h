// How a page of the Compare view reads two runs at once: aligned first, then pair by pair on a worker.
#pragma once

#include "base/error.h"
#include "profiler/compare/alignment.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/workspace.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvscope::ui {

/// Reads two runs pair by pair, in chunks and in order; the second file has a reader of its own that goes from chunk to
/// chunk. Runs that grow are aligned again at the pace of GrowthTimer: aligning reads all steps of both.
template <class Chunk> class PairFeed {
public:
    /// Called on a worker thread.
    using Read = std::function<Chunk(const TraceReader& a, const TraceReader& b, std::span<const StepPair>)>;
    /// Called on the GUI thread, in the order of the pairs. Returns false when no more pairs are wanted.
    using Append = std::function<bool(Chunk chunk, std::span<const StepPair> pairs)>;
    using Aligned = std::function<void()>; // GUI thread: alignment() is there, or error()

    PairFeed(Workspace& workspace, QObject* context, const char* slot, int chunkPairs)
        : workspace_(workspace), context_(context), slot_(slot), chunkPairs_(chunkPairs) {}
    PairFeed(const PairFeed&) = delete;
    PairFeed& operator=(const PairFeed&) = delete;

    /// `letter`: what sentences call b.
    void start(const RunKey& a, const RunKey& b, const QString& letter, AlignBy by, int sequence, Read read,
               Aligned aligned, Append append) {
        stop();
        a_ = a, b_ = b, letter_ = letter.toStdString(), by_ = by, sequence_ = sequence;
        read_ = std::move(read), aligned_ = std::move(aligned), append_ = std::move(append);
        active_ = true;
        align();
    }
    void stop() {
        ++epoch_;
        active_ = asking_ = enough_ = paused_ = false;
        loaded_ = 0;
        alignment_ = {};
        other_.reset();
        error_.clear();
    }
    /// To be called when the runs may have more steps. `ended`: no more will come.
    void grew(bool ended) {
        if (active_ && !enough_) again_.grew(ended);
    }
    /// Stops reading because the user asked for it. What was read stays.
    void pause() {
        if (!asking_) return;
        ++epoch_; // an answer that is under way belongs to an earlier epoch and is dropped
        paused_ = true;
        asking_ = false;
        other_.reset(); // the read that is under way still uses the old one
        workspace_.query<int>(
            // a new read in the same slot interrupts the one that is under way
            context_, slot_, a_, [](TraceReader&) { return 0; }, [](int) {});
        rest();
    }
    void resume() {
        if (std::exchange(paused_, false) && active_ && !enough_ && error_.isEmpty())
            align(); // the runs may have grown
    }
    const Alignment& alignment() const { return alignment_; }
    int loaded() const { return loaded_; }
    int total() const { return int(alignment_.pairs.size()); }
    bool loading() const { return asking_; }
    bool paused() const { return paused_; }
    bool active() const { return active_; }
    const QString& error() const { return error_; }

private:
    static constexpr int kLeastMs = 1000;
    struct Aligning {
        Alignment alignment;
        std::shared_ptr<TraceReader> other;
        QString error;
    };
    struct Answer {
        std::optional<Chunk> chunk;
        QString error;
    };
    static QString sentence(const Error& error) {
        if (error.kind == ErrorKind::Cancelled) throw Error(error);
        return QString::fromStdString(oneLine(error));
    }

    void advance() {
        if (!active_ || enough_ || paused_) return rest();
        // the pairs that are being read belong to the earlier alignment: align again when they have come
        if (asking_) return again_.grew(true);
        align();
    }
    void rest() { again_.answered(); }

    void align() {
        asking_ = true;
        workspace_.query<Aligning>(
            context_, slot_, a_,
            [a = a_, b = b_, letter = letter_, by = by_, sequence = sequence_](TraceReader& reader) {
                Aligning result;
                try {
                    result.other = std::make_shared<TraceReader>(b.path.toStdString());
                    result.alignment = kvscope::align(loadStepIndex(reader, a.runId, sequence),
                                                      loadStepIndex(*result.other, b.runId, sequence), by, letter);
                } catch (const Error& error) {
                    result.error = sentence(error);
                }
                return result;
            },
            [this, epoch = epoch_](Aligning result) {
                if (epoch != epoch_) return;
                asking_ = false;
                error_ = result.error;
                if (!error_.isEmpty()) { // what was read stays
                    aligned_();
                    if (epoch == epoch_) rest();
                    return;
                }
                // A live run only gets longer; anything else begins anew.
                const auto& before = alignment_.pairs;
                const auto& now = result.alignment.pairs;
                if (int(now.size()) < loaded_ || !std::equal(before.begin(), before.begin() + loaded_, now.begin()))
                    loaded_ = 0;
                alignment_ = std::move(result.alignment);
                other_ = std::move(result.other);
                aligned_();
                if (epoch != epoch_) return;
                if (active_)
                    ask();
                else
                    rest();
            });
    }

    void ask() {
        const int count = std::min(chunkPairs_, int(alignment_.pairs.size()) - loaded_);
        if (count <= 0 || paused_) return rest();
        asking_ = true;
        std::vector<StepPair> pairs(alignment_.pairs.begin() + loaded_, alignment_.pairs.begin() + loaded_ + count);
        workspace_.query<Answer>(
            context_, slot_, a_,
            [read = read_, pairs, other = other_](TraceReader& reader) {
                Answer answer;
                try {
                    answer.chunk = read(reader, *other, pairs);
                } catch (const Error& error) {
                    answer.error = sentence(error);
                }
                return answer;
            },
            [this, epoch = epoch_, pairs](Answer answer) {
                if (epoch != epoch_) return;
                asking_ = false;
                if (!answer.chunk) {
                    error_ = answer.error;
                    aligned_();
                    return rest();
                }
                loaded_ += int(pairs.size());
                const bool enough = !append_(std::move(*answer.chunk), pairs);
                if (!active_ || epoch != epoch_) return;
                enough_ = enough;
                if (enough_)
                    rest();
                else if (!asking_)
                    ask();
            });
    }

    Workspace& workspace_;
    QObject* context_;
    const char* slot_;
    int chunkPairs_;
    RunKey a_, b_;
    std::string letter_;
    AlignBy by_ = AlignBy::Step;
    int sequence_ = 0;
    Read read_;
    Aligned aligned_;
    Append append_;
    Alignment alignment_;
    std::shared_ptr<TraceReader> other_;
    int loaded_ = 0;
    unsigned epoch_ = 0;
    bool active_ = false, asking_ = false, enough_ = false, paused_ = false;
    QString error_;
    GrowthTimer again_{kLeastMs, [this] { advance(); }};
};

} // namespace kvscope::ui
