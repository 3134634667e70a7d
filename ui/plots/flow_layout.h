// A layout that places widgets from left to right and goes on in the next row, so that all pickers stay reachable in a
// narrow window.
#pragma once

#include <QLayout>
#include <QList>

#include <memory>

namespace kvscope::ui {

class FlowLayout final : public QLayout {
public:
    explicit FlowLayout(QWidget* parent);
    ~FlowLayout() override;
    void addItem(QLayoutItem* item) override { items_.append(item); }
    int count() const override { return int(items_.size()); }
    QLayoutItem* itemAt(int index) const override { return items_.value(index); }
    QLayoutItem* takeAt(int index) override;
    Qt::Orientations expandingDirections() const override { return {}; }
    bool hasHeightForWidth() const override { return true; }
    int heightForWidth(int width) const override { return arrange(QRect(0, 0, width, 0), shownRows_, false).height; }
    void setGeometry(const QRect& rect) override;
    QSize sizeHint() const override { return minimumSize(); }
    QSize minimumSize() const override;

    struct Needs {
        int rows, height; // height: in pixels
    };
    Needs needs(int width) const; // of all items in a strip of this width
    /// What does not fit into so many rows is moved out of sight above the strip. 0: all rows are shown.
    void setShownRows(int rows);
    /// A widget that stands behind the last item that is shown. It is none of the items.
    void setEnd(QWidget* widget);

private:
    Needs arrange(const QRect& rect, int shownRows, bool apply) const;
    QList<QLayoutItem*> items_;
    std::unique_ptr<QLayoutItem> end_; // null: there is none
    int shownRows_ = 0;
};

} // namespace kvscope::ui
