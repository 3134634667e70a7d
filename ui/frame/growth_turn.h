// Decides which of the visible views follow a growing run at a refresh. The view that the user looks at follows every
// time. If many views are visible, the others take turns, so that they slow down the engine no more than one or two
// views would.
#pragma once

#include <QTimer>

#include <functional>

class QWidget;

namespace kvscope::ui {

class GrowthTurn {
public:
    /// `follow` reads and draws the new steps. It is called by grew(), or some seconds later if the view had no turn.
    GrowthTurn(const QWidget& view, std::function<void()> follow);
    ~GrowthTurn();
    GrowthTurn(const GrowthTurn&) = delete;
    GrowthTurn& operator=(const GrowthTurn&) = delete;

    /// To be called at every refresh. `ended`: this is the last refresh, so all views follow. Views that are not
    /// visible never follow.
    void grew(bool ended);

    /// Whether the view is visible: not behind another tab and not in a minimised window.
    static bool inSight(const QWidget& view);

private:
    bool lookedAt() const;

    const QWidget& view_;
    std::function<void()> follow_;
    unsigned refresh_;
    /// Draws after some seconds what was skipped, even if the run pauses and no further refresh comes.
    QTimer late_;
};

} // namespace kvscope::ui
