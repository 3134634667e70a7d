// Which runs the pages of the Compare view lay beside the shown one, and how a page reads two of them at once.
#pragma once

#include "kernels/base/error.h"
#include "profiler/compare/alignment.h"
#include "ui/workspace.h"

#include <QColor>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace kvscope::ui {

/// The shown run is A. B is the workspace's run to compare with; the Compare view can lay more beside them.
class CompareSet final : public QObject {
    Q_OBJECT
public:
    explicit CompareSet(Workspace& workspace, QObject* parent = nullptr);
    /// B, C, ...: open runs other than A; B first. Empty: nothing to compare with.
    std::vector<const OpenRun*> others() const;
    bool contains(const RunKey& key) const;
    /// Adds a run or takes it out. The first becomes B; when B goes, the next one follows.
    void set(const RunKey& key, bool compared);

signals:
    void changed();

private:
    Workspace& workspace_;
    std::vector<RunKey> more_; // beyond B
};

/// "A", "B", ... of run `index`, 0 being the shown one.
QString runLetter(std::size_t index);
QColor runColour(std::size_t index);

/// Reads two runs pair by pair, in chunks and in order; the second file has a reader of its own that goes from chunk to
/// chunk.
template <class Chunk> class PairFeed {
public:
    /// Worker thread.
    using Read = std::function<Chunk(const TraceReader& a, const TraceReader& b, std::span<const StepPair>)>;
    /// GUI thread, in order. False: that is enough.
    using Append = std::function<bool(Chunk chunk, std::span<const StepPair> pairs)>;
    using Aligned = std::function<void()>; // GUI thread: alignment() is there, or error()

    PairFeed(Workspace& workspace, QObject* context, const char* slot, int chunkPairs)
        : workspace_(workspace), context_(context), slot_(slot), chunkPairs_(chunkPairs) {}

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
        active_ = asking_ = enough_ = false;
        loaded_ = 0;
        alignment_ = {};
        error_.clear();
    }
    /// The runs may have more steps now.
    void advance() {
        if (active_ && !asking_ && !enough_) align();
    }
    const Alignment& alignment() const { return alignment_; }
    int loaded() const { return loaded_; }
    bool loading() const { return asking_; }
    bool active() const { return active_; }
    const QString& error() const { return error_; }

private:
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
                // A live run only gets longer; anything else begins anew.
                const auto& before = alignment_.pairs;
                const auto& now = result.alignment.pairs;
                if (int(now.size()) < loaded_ || !std::equal(before.begin(), before.begin() + loaded_, now.begin()))
                    loaded_ = 0;
                alignment_ = std::move(result.alignment);
                other_ = std::move(result.other);
                aligned_();
                if (active_ && epoch == epoch_ && error_.isEmpty()) ask();
            });
    }

    void ask() {
        const int count = std::min(chunkPairs_, int(alignment_.pairs.size()) - loaded_);
        if (count <= 0) return;
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
                    return;
                }
                loaded_ += int(pairs.size());
                enough_ = !append_(std::move(*answer.chunk), pairs);
                if (active_ && epoch == epoch_ && !asking_ && !enough_) ask();
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
    bool active_ = false, asking_ = false, enough_ = false;
    QString error_;
};

} // namespace kvscope::ui
