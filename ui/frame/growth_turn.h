// Which of the views in sight follow a growing run at a refresh. The one that is looked at follows every time; where
// many are in sight the others take turns, so that watching costs the engine no more than one or two of them would.
#pragma once

#include <QTimer>

#include <functional>

class QWidget;

namespace kvscope::ui {

class GrowthTurn {
public:
    /// `follow` reads and draws what is new; called from grew(), or a little later when its turn did not come.
    GrowthTurn(const QWidget& view, std::function<void()> follow);
    ~GrowthTurn();
    GrowthTurn(const GrowthTurn&) = delete;
    GrowthTurn& operator=(const GrowthTurn&) = delete;

    /// A refresh. `ended`: there will be no other, so everybody follows. Out of sight nobody does.
    void grew(bool ended);

    /// Behind another tab or in a minimised window there is nobody to see an update.
    static bool inSight(const QWidget& view);

private:
    bool lookedAt() const;

    const QWidget& view_;
    std::function<void()> follow_;
    unsigned refresh_;
    QTimer late_; // a run may pause: what was skipped is drawn after a while even so
};

} // namespace kvscope::ui
