#include "ui/views/timeline_feed.h"

#include "kernels/base/error.h"

namespace kvscope::ui {

namespace {
constexpr int kFirstRows = 8'000;   // the first picture soon
constexpr int kRowsAtOnce = 40'000; // taken in within a few milliseconds, so that panning stays smooth meanwhile
} // namespace

void TimelineFeed::start(const RunKey& key, Take take, Refuse refuse) {
    stop();
    key_ = key;
    take_ = std::move(take);
    refuse_ = std::move(refuse);
    active_ = true;
    ask();
}

void TimelineFeed::stop() {
    ++epoch_;
    active_ = asking_ = again_ = begun_ = false;
    position_ = {};
    fraction_ = 0;
    problem_.clear();
}

void TimelineFeed::advance() {
    if (!active_) return;
    if (asking_)
        again_ = true;
    else
        ask();
}

void TimelineFeed::ask() {
    asking_ = true;
    again_ = false;
    workspace_.query<Answer>(
        context_, "spans", key_,
        [runId = key_.runId, from = position_, rows = begun_ ? kRowsAtOnce : kFirstRows](TraceReader& reader) {
            Answer answer;
            try {
                answer.batch = readSpans(reader, runId, from, rows);
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                answer.problem = QString::fromStdString(oneLine(error));
            }
            return answer;
        },
        [this, epoch = epoch_](Answer answer) {
            if (epoch == epoch_) take(std::move(answer));
        });
}

void TimelineFeed::take(Answer answer) {
    asking_ = false;
    if (!answer.problem.isEmpty()) {
        problem_ = answer.problem;
        active_ = false;
        if (begun_)
            take_({});
        else
            refuse_(problem_);
        return;
    }
    begun_ = true;
    position_ = answer.batch.next;
    fraction_ = answer.batch.fraction;
    const unsigned epoch = epoch_;
    if (!answer.batch.atEnd || again_) asking_ = true; // the owner asks loading() while it takes
    take_(answer.batch);
    if (epoch != epoch_) return; // it started over
    if (asking_) ask();
}

} // namespace kvscope::ui
