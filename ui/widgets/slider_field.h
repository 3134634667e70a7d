// A field for one number, which the user sets with a slider or types: a label, the slider, and a box with the unit.
#pragma once

#include <QWidget>

class QDoubleSpinBox;
class QSlider;

namespace kvscope::ui {

class SliderField final : public QWidget {
    Q_OBJECT
public:
    /// How the values are spread over the slider. Quadratic: finer near the least value.
    enum class Spread { Linear, Logarithmic, Quadratic };
    struct Range {
        double least = 0, most = 1;
        int decimals = 0;
        Spread spread = Spread::Linear;
    };

    /// `name`: the object name. The slider and the box are named `name`Slider and `name`Box.
    SliderField(const QString& name, const QString& label, const QString& unit, const QString& help, Range range,
                QWidget* parent = nullptr);
    double value() const;
    void setValue(double value); // emits changed if the value is another one
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
