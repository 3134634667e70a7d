#include "ui/frame/cursor_history.h"

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr std::size_t kMostPlaces = 200;
} // namespace

CursorHistory::CursorHistory(Workspace& workspace, QObject* parent) : QObject(parent), workspace_(workspace) {
    connect(&workspace_, &Workspace::cursorChanged, this, &CursorHistory::record);
    connect(&workspace_, &Workspace::currentChanged, this, &CursorHistory::record);
    connect(&workspace_, &Workspace::runsChanged, this, &CursorHistory::forgetClosed);
    record();
}

void CursorHistory::record() {
    const OpenRun* run = workspace_.current();
    if (!run || going_) return;
    const Place now{run->key, workspace_.cursor()};
    if (at_ >= 0 && places_[at_] == now) return;
    const bool sameRun = at_ >= 0 && places_[at_].run == now.run;
    const bool newest = at_ + 1 == int(places_.size());
    const bool follows = workspace_.lastMove() == CursorMove::Follow;
    // The user has gone back to an earlier place. The live run does not add places meanwhile.
    if (follows && sameRun && !newest) return;
    const bool continues = sinceMove_.isValid() && sinceMove_.elapsed() < pause_;
    const bool replaces = sameRun && newest && (follows ? !placedByPerson_ : placedByPerson_ && continues);
    if (!follows) sinceMove_.start();
    places_.resize(at_ + 1); // a move drops the places to which one could go forward
    if (replaces) places_.pop_back();
    if (places_.empty() || places_.back() != now)
        places_.push_back(now);
    else
        // The cursor is back where the drag began. When the drag goes on, that place must not be replaced.
        sinceMove_.invalidate();
    if (places_.size() > kMostPlaces) places_.erase(places_.begin());
    at_ = int(places_.size()) - 1;
    placedByPerson_ = !follows && sameRun;
    emit changed();
}

void CursorHistory::forgetClosed() {
    const auto closed = [this](const Place& place) { return workspace_.find(place.run) == nullptr; };
    if (std::none_of(places_.begin(), places_.end(), closed)) return;
    const auto kept =
        std::count_if(places_.begin(), places_.begin() + at_ + 1, [&](const Place& p) { return !closed(p); });
    std::erase_if(places_, closed);
    at_ = std::clamp(int(kept) - 1, places_.empty() ? -1 : 0, int(places_.size()) - 1);
    sinceMove_.invalidate();
    emit changed();
}

void CursorHistory::go(int by) {
    const int wanted = std::clamp(at_ + by, 0, std::max(int(places_.size()) - 1, 0));
    if (at_ < 0 || wanted == at_) return;
    at_ = wanted;
    const Place place = places_[at_];
    going_ = true;
    workspace_.setCurrent(place.run);
    workspace_.setCursor(place.cursor);
    going_ = false;
    sinceMove_.invalidate(); // the next move begins a new place
    emit changed();
}

QString CursorHistory::describe(const Place& place, const Place& from) const {
    const Cursor &now = place.cursor, &before = from.cursor;
    QStringList parts;
    if (place.run != from.run)
        if (const OpenRun* run = workspace_.find(place.run)) parts << QString::fromStdString(run->row.name);
    parts << tr("step %1").arg(now.step);
    if (now.firstStep >= 0 && (now.firstStep != before.firstStep || now.lastStep != before.lastStep))
        parts << tr("steps %1 to %2 chosen").arg(now.firstStep).arg(now.lastStep);
    parts << tr("layer %1").arg(now.layer);
    if (now.kvHead != before.kvHead) parts << tr("KV head %1").arg(now.kvHead);
    if (now.sequence != before.sequence) parts << tr("sequence %1").arg(now.sequence);
    if (now.block >= 0) parts << tr("block %1").arg(now.block);
    return parts.join(QStringLiteral(", "));
}

} // namespace kvscope::ui
