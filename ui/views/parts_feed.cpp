#include "ui/views/parts_feed.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr int kPartSteps = 4096; // read between two looks at whether somebody still waits
constexpr const char* kSlot = "roofline parts";
} // namespace

void PartsFeed::add(const RunKey& key, const MeasuredRun& run) {
    const auto same = std::find_if(waiting_.begin(), waiting_.end(), [&](const Reading& r) { return r.key == key; });
    if (same != waiting_.end()) {
        if (same == waiting_.begin() && asking_) ++epoch_, asking_ = false;
        *same = {key, run};
    } else {
        waiting_.push_back({key, run});
    }
    ask();
}

void PartsFeed::keepOpen() {
    if (waiting_.empty()) return;
    const RunKey first = waiting_.front().key;
    std::erase_if(waiting_, [this](const Reading& r) { return workspace_.find(r.key) == nullptr; });
    if (waiting_.empty()) paused_ = false; // the run whose reading was stopped is gone
    if (!waiting_.empty() && waiting_.front().key == first) return;
    ++epoch_; // an answer that is under way is of a run that is gone, and is dropped
    asking_ = false;
    ask();
}

void PartsFeed::pause() {
    if (!asking_) return;
    ++epoch_; // an answer that is under way belongs to an earlier epoch and is dropped
    asking_ = false;
    paused_ = true;
    workspace_.query<int>(
        // A new read in the same slot interrupts the one that is under way.
        context_, kSlot, waiting_.front().key, [](TraceReader&) { return 0; }, [](int) {});
}

void PartsFeed::resume() {
    if (std::exchange(paused_, false)) ask();
}

int PartsFeed::loaded() const {
    int steps = read_;
    for (const Reading& reading : waiting_) steps += reading.next;
    return steps;
}

int PartsFeed::total() const {
    int steps = read_;
    for (const Reading& reading : waiting_) steps += reading.run.row.steps;
    return steps;
}

void PartsFeed::ask() {
    if (waiting_.empty()) read_ = 0;
    if (asking_ || paused_ || waiting_.empty()) return;
    struct Answer {
        Reading reading;
        bool complete = false;
        QString problem;
    };
    asking_ = true;
    workspace_.query<Answer>(
        context_, kSlot, waiting_.front().key,
        [reading = waiting_.front()](TraceReader& reader) {
            Answer answer{reading, false, {}};
            try {
                answer.complete = addParts(answer.reading.run, reader, answer.reading.next, kPartSteps);
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                answer.problem = QString::fromStdString(oneLine(error));
            }
            return answer;
        },
        [this, epoch = epoch_](const Answer& answer) {
            if (epoch != epoch_) return;
            asking_ = false;
            waiting_.front() = answer.reading;
            if (answer.complete || !answer.problem.isEmpty()) {
                read_ += answer.reading.run.row.steps;
                waiting_.erase(waiting_.begin());
                done_(answer.reading.key, answer.reading.run, answer.problem);
            }
            ask();
            progress_();
        });
}

} // namespace kvscope::ui
