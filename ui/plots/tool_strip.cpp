#include "ui/plots/tool_strip.h"

#include "ui/plots/flow_layout.h"

#include <QApplication>
#include <QEvent>
#include <QToolButton>

namespace kvscope::ui {

namespace {
constexpr int kRows = 2;         // that a view of any size has room for
constexpr int kHeightShare = 20; // percent of the view's height that more rows may take
} // namespace

ToolStrip::ToolStrip(QWidget* view) : QWidget(view), flow_(new FlowLayout(this)), more_(new QToolButton(this)) {
    QSizePolicy policy(QSizePolicy::Preferred, QSizePolicy::Minimum);
    policy.setHeightForWidth(true);
    setSizePolicy(policy);
    more_->setObjectName(QStringLiteral("moreTools"));
    more_->setCheckable(true);
    more_->hide();
    flow_->setEnd(more_);
    connect(more_, &QToolButton::toggled, this, &ToolStrip::unfold);
    // Who walks to a picker with the keyboard sees it.
    connect(qApp, &QApplication::focusChanged, this, [this](const QWidget*, const QWidget* now) {
        if (folded_ && now && now != more_ && isAncestorOf(now) &&
            !rect().contains(now->mapTo(this, now->rect().center())))
            more_->setChecked(true);
    });
}

void ToolStrip::unfold(bool wanted) {
    unfolded_ = wanted;
    folds_ = false; // so that fit() shows the change
    fit();
}

void ToolStrip::fit() {
    const FlowLayout::Needs needs = flow_->needs(width());
    const bool folds = needs.rows > kRows && needs.height * 100 > parentWidget()->height() * kHeightShare;
    if (folds == folds_) return;
    folds_ = folds;
    folded_ = folds && !unfolded_;
    more_->setText(folded_ ? tr("More ▾") : tr("Fewer ▴"));
    more_->setAccessibleName(folded_ ? tr("Show all settings of this view") : tr("Show fewer settings of this view"));
    more_->setToolTip(more_->accessibleName());
    more_->setVisible(folds);
    flow_->setShownRows(folded_ ? 1 : 0);
    updateGeometry();
}

bool ToolStrip::event(QEvent* event) {
    const bool handled = QWidget::event(event);
    if (event->type() == QEvent::LayoutRequest || event->type() == QEvent::Resize) fit(); // a picker has come or gone
    return handled;
}

} // namespace kvscope::ui
