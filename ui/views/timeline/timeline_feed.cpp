#include "ui/views/timeline/timeline_feed.h"

#include "base/error.h"

namespace kvscope::ui {

namespace {
constexpr int kFirstRows = 8'000;       // the first picture soon
constexpr int kFeedRowsAtOnce = 40'000; // taken in within a few milliseconds, so that panning stays smooth meanwhile
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
    active_ = asking_ = again_ = begun_ = paused_ = false;
    position_ = {};
    gauges_ = {};
    readsGauges_ = true;
    fraction_ = counted_ = 0;
    problem_.clear();
}

void TimelineFeed::end(const QString& problem) {
    ++epoch_;
    active_ = asking_ = again_ = false;
    problem_ = problem;
}

void TimelineFeed::pause() {
    if (!active_) return;
    ++epoch_; // batches that are under way belong to an earlier epoch: they are dropped and read again
    active_ = asking_ = again_ = false;
    paused_ = true;
}

void TimelineFeed::resume() {
    if (!paused_) return;
    paused_ = false;
    active_ = true;
    ask();
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
        [runId = key_.runId, from = position_, gaugesFrom = gauges_, readsGauges = readsGauges_,
         rows = begun_ ? kFeedRowsAtOnce : kFirstRows](TraceReader& reader) {
            Answer answer;
            try {
                answer.batch = readSpans(reader, runId, from, rows);
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                answer.problem = QString::fromStdString(oneLine(error));
            }
            answer.gauges.next = gaugesFrom;
            // Spans first: counting what the device held reads every selection, which may be most of a file.
            if (!answer.batch.atEnd || !readsGauges) return answer;
            try {
                answer.gauges = readGauges(reader, runId, gaugesFrom, rows);
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                answer.gaugeProblem = QString::fromStdString(oneLine(error));
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
            take_({}, {});
        else
            refuse_(problem_);
        return;
    }
    begun_ = true;
    position_ = answer.batch.next;
    gauges_ = answer.gauges.next;
    if (!answer.gaugeProblem.isEmpty()) { // the spans are there all the same
        problem_ = answer.gaugeProblem;
        readsGauges_ = false;
    }
    fraction_ = answer.batch.fraction;
    counted_ = answer.gauges.counted;
    const bool atEnd = answer.batch.atEnd && (answer.gauges.atEnd || !readsGauges_);
    if (!atEnd || again_) ask(); // read on while this piece is taken in
    take_(answer.batch, answer.gauges);
}

} // namespace kvscope::ui
