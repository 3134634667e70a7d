#include "ui/plots/panel_row.h"

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr int kSpacing = 14;
}

void PanelRow::add(QCPLayoutElement* element, double stretch, int least) {
    adoptElement(element);
    cells_.append({element, stretch, least, true});
}

void PanelRow::setShown(QCPLayoutElement* element, bool shown) {
    for (Cell& cell : cells_)
        if (cell.element == element) cell.shown = shown;
}

QCPLayoutElement* PanelRow::takeAt(int index) {
    if (index < 0 || index >= cells_.size()) return nullptr;
    QCPLayoutElement* element = cells_.takeAt(index).element;
    releaseElement(element);
    return element;
}

bool PanelRow::take(QCPLayoutElement* element) {
    for (int i = 0; i < cells_.size(); ++i)
        if (cells_[i].element == element) return takeAt(i) != nullptr;
    return false;
}

void PanelRow::update(UpdatePhase phase) {
    if (phase == upPreparation) {
        low_ = mParentPlot->viewport().height() < leastPicture_;
        setMaximumSize(QWIDGETSIZE_MAX, low_ ? 0 : QWIDGETSIZE_MAX);
    }
    QCPLayout::update(phase);
}

void PanelRow::updateLayout() {
    QVector<Cell> placed;
    for (const Cell& cell : cells_) {
        cell.element->setVisible(false);
        if (cell.shown && !low_) placed.append(cell);
    }
    const auto width = [&](const Cell& cell) {
        double all = 0;
        for (const Cell& each : placed) all += each.stretch;
        return (rect().width() - kSpacing * int(placed.size() - 1)) * cell.stretch / all;
    };
    while (placed.size() > 1 &&
           std::any_of(placed.begin(), placed.end(), [&](const Cell& cell) { return width(cell) < cell.least; }))
        placed.removeLast();
    double x = rect().left();
    for (const Cell& cell : placed) {
        cell.element->setVisible(true);
        const double wide = width(cell);
        cell.element->setOuterRect(QRect(int(x), rect().top(), int(wide), rect().height()));
        x += wide + kSpacing;
    }
}

} // namespace kvscope::ui
