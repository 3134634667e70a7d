// One number, by a slider and by typing: a label, the slider, a box with the unit.
#pragma once

#include <QWidget>

class QDoubleSpinBox;
class QSlider;

namespace kvscope::ui {

class SliderField final : public QWidget {
    Q_OBJECT
public:
    enum class Spread { Linear, Logarithmic, Quadratic }; // how the slider spreads the values; Quadratic: fine near 0
    struct Range {
        double least = 0, most = 1;
        int decimals = 0;
        Spread spread = Spread::Linear;
    };

    /// name: object name; the parts are called `name`Slider and `name`Box.
    SliderField(const QString& name, const QString& label, const QString& unit, const QString& help, Range range,
                QWidget* parent = nullptr);
    double value() const;
    void setValue(double value); // emits changed only if the value does change
    void setRange(double least, double most);

signals:
    void changed(double value);

private:
    int position(double value) const;
    double valueAt(int position) const;
    void place();

    Range range_;
    QSlider* slider_ = nullptr;
    QDoubleSpinBox* box_ = nullptr;
};

} // namespace kvscope::ui
