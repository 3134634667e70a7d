#include "ui/frame/growth_turn.h"

#include <QApplication>
#include <QWidget>

#include <algorithm>
#include <vector>

namespace kvscope::ui {

namespace {
constexpr int kLateMs = 3000;
// About how many views follow at one refresh, and after how many refreshes every view has had a turn at the latest.
constexpr unsigned kAtOnce = 2, kMostTurns = 4;

std::vector<const QWidget*>& everybody() { // used on the GUI thread only
    static std::vector<const QWidget*> views;
    return views;
}
} // namespace

GrowthTurn::GrowthTurn(const QWidget& view, std::function<void()> follow)
    : view_(view), follow_(std::move(follow)), refresh_(unsigned(everybody().size())) {
    everybody().push_back(&view);
    late_.setSingleShot(true);
    late_.setInterval(kLateMs);
    QObject::connect(&late_, &QTimer::timeout, &late_, [this] {
        if (inSight(view_)) follow_();
    });
}

GrowthTurn::~GrowthTurn() { std::erase(everybody(), &view_); }

bool GrowthTurn::inSight(const QWidget& view) { return view.isVisible() && !view.window()->isMinimized(); }

bool GrowthTurn::lookedAt() const {
    const QWidget* focus = QApplication::focusWidget();
    return view_.underMouse() || (focus && (focus == &view_ || view_.isAncestorOf(focus)));
}

void GrowthTurn::grew(bool ended) {
    if (!inSight(view_)) return;
    ++refresh_; // each view began with another number
    const auto shown = unsigned(
        std::count_if(everybody().begin(), everybody().end(), [](const QWidget* view) { return inSight(*view); }));
    const unsigned turns = std::clamp((shown + kAtOnce - 1) / kAtOnce, 1u, kMostTurns);
    if (ended || refresh_ % turns == 0 || lookedAt()) {
        late_.stop();
        follow_();
    } else if (!late_.isActive()) {
        late_.start();
    }
}

} // namespace kvscope::ui
