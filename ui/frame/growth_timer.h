// When to ask again what only a look at the whole run can answer, while the run grows: one question at a time, and ten
// times as much rest as the last answer took, so that a long run is not read over and over beside its engine.
#pragma once

#include <QElapsedTimer>
#include <QTimer>

#include <algorithm>
#include <functional>
#include <utility>

namespace kvscope::ui {

class GrowthTimer {
public:
    /// `leastMs`: rest however quick the answers are.
    GrowthTimer(int leastMs, std::function<void()> ask) : leastMs_(leastMs), ask_(std::move(ask)) {
        timer_.setSingleShot(true);
        timer_.setInterval(leastMs);
        QObject::connect(&timer_, &QTimer::timeout, &timer_, [this] {
            asked_.start();
            ask_();
        });
    }
    /// There are more steps now. `ended`: the last ones, and nobody is in the way any more: no long rest.
    void grew(bool ended = false) {
        if (asked_.isValid() && asked_.elapsed() < kLostMs) {
            again_ = true;
            ended_ = ended_ || ended;
            return;
        }
        if (ended) timer_.start(leastMs_);
        if (!timer_.isActive()) timer_.start();
    }
    /// The answer is here, also to a question somebody else asked.
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
    static constexpr int kLostMs = 60'000; // a read that failed gives no answer

    int leastMs_;
    std::function<void()> ask_;
    QTimer timer_;
    QElapsedTimer asked_; // valid while an answer is awaited
    bool again_ = false, ended_ = false;
};

} // namespace kvscope::ui
