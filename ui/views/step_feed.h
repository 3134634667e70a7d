// Loads a run step by step in chunks, so that the first picture comes early, the GUI thread only ever appends a little,
// and a growing run is read from where the last read ended.
#pragma once

#include "kernels/base/error.h"
#include "ui/workspace.h"

#include <algorithm>
#include <functional>

namespace kvscope::ui {

template <class Chunk> class StepFeed {
public:
    /// Worker thread: steps [first, last].
    using Read = std::function<Chunk(TraceReader&, int runId, int first, int last)>;
    /// GUI thread; chunks come in order, `steps` is the number of steps this one covers.
    using Append = std::function<void(Chunk chunk, int first, int steps)>;

    /// `slot` names the request within the context; chunkSteps bounds the time one append may take.
    StepFeed(Workspace& workspace, QObject* context, const char* slot, int chunkSteps)
        : workspace_(workspace), context_(context), slot_(slot), chunkSteps_(chunkSteps) {}

    /// Forgets what is loaded and reads `key` from its first step.
    void start(const RunKey& key, Read read, Append append) {
        ++epoch_;
        key_ = key;
        read_ = std::move(read);
        append_ = std::move(append);
        loaded_ = 0;
        asking_ = false;
        error_.clear();
        active_ = true;
        ask();
    }
    void stop() {
        ++epoch_;
        active_ = asking_ = false;
        loaded_ = 0;
        error_.clear();
    }
    /// The run may have more steps now.
    void advance() {
        if (!active_) return;
        if (asking_)
            again_ = true;
        else
            ask();
    }
    int loaded() const { return loaded_; }
    int total() const { return total_; }
    bool active() const { return active_; }
    bool loading() const { return asking_; }
    const QString& error() const { return error_; } // a read failed; loading stopped there
    bool isFor(const RunKey& key) const { return active_ && key_ == key; }

private:
    struct Answer {
        std::optional<Chunk> chunk;
        int first = 0, steps = 0, total = 0;
        QString error;
    };

    void ask() {
        asking_ = true;
        again_ = false;
        const int first = loaded_;
        const int count = first == 0 ? std::min(chunkSteps_, 512) : chunkSteps_; // the first picture soon
        workspace_.query<Answer>(
            context_, slot_, key_,
            [read = read_, runId = key_.runId, first, count](TraceReader& reader) {
                Answer answer;
                answer.first = first;
                try {
                    answer.total = reader.stepCount(runId);
                    const int last = std::min(first + count, answer.total) - 1;
                    if (last >= first) {
                        answer.steps = last - first + 1;
                        answer.chunk = read(reader, runId, first, last);
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
            append_({}, loaded_, 0);
            return;
        }
        total_ = answer.total;
        if (answer.chunk) {
            loaded_ += answer.steps;
            append_(std::move(*answer.chunk), answer.first, answer.steps);
        } else {
            append_({}, loaded_, 0);
        }
        // append may have started over
        if (active_ && !asking_ && (loaded_ < answer.total || again_)) ask();
    }

    Workspace& workspace_;
    QObject* context_;
    const char* slot_;
    int chunkSteps_;
    RunKey key_;
    Read read_;
    Append append_;
    int loaded_ = 0, total_ = 0;
    unsigned epoch_ = 0;
    bool active_ = false, asking_ = false, again_ = false;
    QString error_;
};

} // namespace kvscope::ui
