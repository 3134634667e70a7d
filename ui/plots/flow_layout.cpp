#include "ui/plots/flow_layout.h"

#include <QWidget>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvscope::ui {

namespace {
constexpr int kAcross = 16, kDown = 6;
}

FlowLayout::FlowLayout(QWidget* parent) : QLayout(parent) { setContentsMargins(0, 0, 0, 0); }

FlowLayout::~FlowLayout() {
    while (QLayoutItem* item = takeAt(0)) delete item;
}

QLayoutItem* FlowLayout::takeAt(int index) {
    return index >= 0 && index < items_.size() ? items_.takeAt(index) : nullptr;
}

void FlowLayout::setGeometry(const QRect& rect) {
    QLayout::setGeometry(rect);
    arrange(rect, true);
}

QSize FlowLayout::minimumSize() const {
    QSize size(0, 0);
    for (const QLayoutItem* item : items_)
        if (!item->isEmpty()) size = size.expandedTo(item->minimumSize());
    return size;
}

int FlowLayout::arrange(const QRect& rect, bool apply) const {
    int x = rect.x(), y = rect.y(), line = 0;
    std::vector<std::pair<QLayoutItem*, QRect>> placed; // in this line, whose height its tallest item decides
    const auto endLine = [&] {
        if (apply)
            for (const auto& [item, place] : placed)
                item->setGeometry(place.translated(0, (line - place.height()) / 2));
        placed.clear();
    };
    for (QLayoutItem* item : items_) {
        if (item->isEmpty()) continue;
        const QSize size = item->sizeHint();
        if (x > rect.x() && x + size.width() > rect.right() + 1) {
            endLine();
            x = rect.x();
            y += line + kDown;
            line = 0;
        }
        placed.emplace_back(item, QRect(QPoint(x, y), size));
        x += size.width() + kAcross;
        line = std::max(line, size.height());
    }
    endLine();
    return y + line - rect.y();
}

} // namespace kvscope::ui
