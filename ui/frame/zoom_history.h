// What a plot or the timeline showed before and after each zoom: what "undo zoom" and "redo zoom" go through.
#pragma once

#include <QElapsedTimer>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace kvscope::ui {

/// `Shown`: what is in view, by which it can be shown again.
template <class Shown> class ZoomHistory {
public:
    /// Call it before a change. Changes of one series that follow each other closely, such as clicks of the wheel, make
    /// one entry. Without a series the change is an entry of its own.
    void remember(Shown now, std::optional<int> series = {}) {
        const bool continues = series && series == lastSeries_ && sinceLast_.isValid() &&
                               sinceLast_.elapsed() < kPauseMs && !before_.empty();
        lastSeries_ = series;
        sinceLast_.start();
        after_.clear();
        if (continues) return;
        before_.push_back(std::move(now));
        if (before_.size() > kMost) before_.erase(before_.begin());
    }
    /// @return what was shown before `now`, or after it; none: there is no such entry
    std::optional<Shown> undo(Shown now) { return step(before_, after_, std::move(now)); }
    std::optional<Shown> redo(Shown now) { return step(after_, before_, std::move(now)); }
    bool canUndo() const { return !before_.empty(); }
    bool canRedo() const { return !after_.empty(); }
    void clear() {
        before_.clear();
        after_.clear();
    }

private:
    static constexpr int kPauseMs = 600;
    static constexpr std::size_t kMost = 100;

    std::optional<Shown> step(std::vector<Shown>& from, std::vector<Shown>& to, Shown now) {
        if (from.empty()) return std::nullopt;
        to.push_back(std::move(now));
        Shown next = std::move(from.back());
        from.pop_back();
        lastSeries_.reset();
        return next;
    }

    std::vector<Shown> before_, after_; // the nearest entry last
    std::optional<int> lastSeries_;
    QElapsedTimer sinceLast_;
};

} // namespace kvscope::ui
