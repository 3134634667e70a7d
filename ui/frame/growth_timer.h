// Decides when a question that needs a read of the whole run is asked again while the run grows. One question is asked
// at a time. After an answer the timer rests ten times as long as the answer took, because repeated reads of a long run
// would slow down the engine.
#pragma once

#include <QElapsedTimer>
#include <QTimer>

#include <algorithm>
#include <functional>
#include <utility>

namespace kvscope::ui {

class GrowthTimer {
public:
    static constexpr int kReadMs = 500;   ///< shortest rest of a view that shows sums of a live run
    static constexpr int kJudgeMs = 1000; ///< shortest rest of a view that judges a live run
    /// `leastMs`: the shortest rest in milliseconds, even if answers are quick. `ask` asks the question.
    GrowthTimer(int leastMs, std::function<void()> ask) : leastMs_(leastMs), ask_(std::move(ask)) {
        timer_.setSingleShot(true);
        timer_.setInterval(leastMs);
        QObject::connect(&timer_, &QTimer::timeout, &timer_, [this] {
            asked_.start();
            ask_();
        });
    }
    /// To be called when the run has more steps. `ended`: the run has ended, so reads slow down no engine and the rest
    /// is the shortest one.
    void grew(bool ended = false) {
        if (asked_.isValid() && asked_.elapsed() < kLostMs) {
            again_ = true;
            ended_ = ended_ || ended;
            return;
        }
        if (ended) timer_.start(leastMs_);
        if (!timer_.isActive()) timer_.start();
    }
    /// To be called when an answer has arrived, also if the question was not asked by this timer.
    void answered() {
        if (!asked_.isValid()) return;
        timer_.setInterval(ended_ ? leastMs_ : int(std::clamp<qint64>(10 * asked_.elapsed(), leastMs_, kMostMs)));
        asked_.invalidate();
        ended_ = false;
        if (std::exchange(again_, false)) timer_.start();
    }
    int interval() const { return timer_.interval(); }

private:
    static constexpr int kMostMs = 30'000;
    /// After this time a question counts as lost: a read that failed gives no answer.
    static constexpr int kLostMs = 60'000;

    int leastMs_;
    std::function<void()> ask_;
    QTimer timer_;
    QElapsedTimer asked_; // valid while the timer waits for an answer
    bool again_ = false, ended_ = false;
};

} // namespace kvscope::ui
