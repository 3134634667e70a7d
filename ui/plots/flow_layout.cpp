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
    arrange(rect, shownRows_, true);
}

QSize FlowLayout::minimumSize() const {
    QSize size(0, 0);
    for (const QLayoutItem* item : items_)
        if (!item->isEmpty()) size = size.expandedTo(item->minimumSize());
    return size;
}

FlowLayout::Needs FlowLayout::needs(int width) const { return arrange(QRect(0, 0, width, 0), 0, false); }

void FlowLayout::setShownRows(int rows) {
    shownRows_ = rows;
    update();
}

void FlowLayout::setEnd(QWidget* widget) {
    addChildWidget(widget);
    end_ = std::make_unique<QWidgetItem>(widget);
}

FlowLayout::Needs FlowLayout::arrange(const QRect& rect, int shownRows, bool apply) const {
    int x = rect.x(), y = rect.y(), line = 0, rows = 1;
    bool full = false;
    std::vector<std::pair<QLayoutItem*, QRect>> placed; // in this line, whose height its tallest item decides
    const auto endLine = [&] {
        if (apply)
            for (const auto& [item, place] : placed)
                item->setGeometry(place.translated(0, (line - place.height()) / 2));
        placed.clear();
    };
    const auto place = [&](QLayoutItem* item, int reserved) {
        const QSize size = item->sizeHint();
        if (x > rect.x() && x + size.width() + reserved > rect.right() + 1) {
            if (rows == shownRows) return false;
            endLine();
            x = rect.x();
            y += line + kDown;
            line = 0;
            ++rows;
        }
        placed.emplace_back(item, QRect(QPoint(x, y), size));
        x += size.width() + kAcross;
        line = std::max(line, size.height());
        return true;
    };
    const bool ends = end_ && !end_->isEmpty();
    for (QLayoutItem* item : items_) {
        if (item->isEmpty()) continue;
        const int reserved = ends && rows == shownRows ? end_->sizeHint().width() + kAcross : 0;
        full = full || !place(item, reserved);
        if (QWidget* folded = full && apply ? item->widget() : nullptr) // QWidgetItem would cut it to nothing there
            folded->setGeometry({QPoint(rect.x(), rect.y() - 2 * item->sizeHint().height()), item->sizeHint()});
    }
    if (ends) place(end_.get(), 0);
    endLine();
    return {rows, y + line - rect.y()};
}

} // namespace kvscope::ui
