// A row of panels side by side. In a narrow picture it leaves out the last panels first; in a low picture it leaves out
// all of them.
#pragma once

#include <qcustomplot.h>

namespace kvscope::ui {

class PanelRow final : public QCPLayout {
    Q_OBJECT
public:
    PanelRow() = default;
    ~PanelRow() override { clear(); }
    /// Adds a panel at the end. `stretch`: its share of the width. `least`: the panel is left out where it would be
    /// narrower than this many pixels, unless it is the first.
    void add(QCPLayoutElement* element, double stretch, int least);
    /// Shows or hides a panel; a hidden one takes no room.
    void setShown(QCPLayoutElement* element, bool shown);

    int elementCount() const override { return int(cells_.size()); }
    QCPLayoutElement* elementAt(int index) const override { return cells_.value(index).element; }
    QCPLayoutElement* takeAt(int index) override;
    bool take(QCPLayoutElement* element) override;
    QSize minimumOuterSizeHint() const override { return {80, low_ ? 0 : 60}; }
    /// The row is left out of pictures lower than this.
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
