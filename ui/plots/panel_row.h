// Panels side by side, as many as there is room for: the last ones go first in a narrow picture, all in a low one.
#pragma once

#include <qcustomplot.h>

namespace kvscope::ui {

class PanelRow final : public QCPLayout {
    Q_OBJECT
public:
    PanelRow() = default;
    ~PanelRow() override { clear(); }
    /// stretch: share of the width. least: pixels without which the panel is left out, unless it is the first.
    void add(QCPLayoutElement* element, double stretch, int least);
    /// False: the element takes no room, whatever there is.
    void setShown(QCPLayoutElement* element, bool shown);

    int elementCount() const override { return int(cells_.size()); }
    QCPLayoutElement* elementAt(int index) const override { return cells_.value(index).element; }
    QCPLayoutElement* takeAt(int index) override;
    bool take(QCPLayoutElement* element) override;
    QSize minimumOuterSizeHint() const override { return {80, low_ ? 0 : 60}; }
    /// Pictures lower than this have no room for the row.
    void setLeastPictureHeight(int pixels) { leastPicture_ = pixels; }
    void update(UpdatePhase phase) override;

protected:
    void updateLayout() override;

private:
    struct Cell {
        QCPLayoutElement* element = nullptr;
        double stretch = 1;
        int least = 0;
        bool shown = true;
    };
    QVector<Cell> cells_;
    int leastPicture_ = 0;
    bool low_ = false;
};

} // namespace kvscope::ui
