#include "ui/widgets/slider_field.h"

#include "ui/frame/small_widgets.h"

#include <QDoubleSpinBox>
#include <QGridLayout>
#include <QSignalBlocker>
#include <QSlider>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr int kPositions = 240; // positions of a slider, except that a linear slider of whole numbers has one for each
}

SliderField::SliderField(const QString& name, const QString& label, const QString& unit, const QString& help,
                         Range range, QWidget* parent)
    : QWidget(parent), range_(range), slider_(new QSlider(Qt::Horizontal)), box_(new QDoubleSpinBox) {
    setObjectName(name);
    auto* caption = new MutedLabel(label);
    caption->setBuddy(box_);
    slider_->setObjectName(name + QStringLiteral("Slider"));
    slider_->setAccessibleName(tr("%1, slider").arg(label));
    slider_->setMinimumWidth(60);
    box_->setObjectName(name + QStringLiteral("Box"));
    box_->setAccessibleName(label);
    box_->setDecimals(range.decimals);
    box_->setSuffix(unit.isEmpty() ? QString() : QLatin1Char(' ') + unit);
    box_->setKeyboardTracking(false); // the value changes when the number is complete
    box_->setGroupSeparatorShown(true);
    if (range.spread != Spread::Linear) box_->setStepType(QAbstractSpinBox::AdaptiveDecimalStepType);
    for (QWidget* part : {static_cast<QWidget*>(caption), static_cast<QWidget*>(slider_), static_cast<QWidget*>(box_)})
        part->setToolTip(QStringLiteral("<p>%1</p>").arg(help.toHtmlEscaped()));
    ignoreWheelUnlessFocused(slider_);
    ignoreWheelUnlessFocused(box_);
    auto* grid = new QGridLayout(this);
    grid->setContentsMargins(0, 0, 0, 0);
    grid->setHorizontalSpacing(8);
    grid->setVerticalSpacing(0);
    grid->addWidget(caption, 0, 0);
    grid->addWidget(box_, 0, 1, Qt::AlignRight);
    grid->addWidget(slider_, 1, 0, 1, 2);
    grid->setColumnStretch(0, 1);
    setRange(range.least, range.most);
    connect(slider_, &QSlider::valueChanged, this, [this](int at) { box_->setValue(valueAt(at)); });
    connect(box_, &QDoubleSpinBox::valueChanged, this, [this](double value) {
        place();
        emit changed(value);
    });
}

double SliderField::value() const { return box_->value(); }

void SliderField::setValue(double value) { box_->setValue(value); }

void SliderField::setRange(double least, double most) {
    range_.least = least;
    range_.most = most;
    const QSignalBlocker quiet(slider_);
    const int positions = range_.spread == Spread::Linear && range_.decimals == 0 ? int(most - least) : kPositions;
    slider_->setRange(0, std::max(positions, 0));
    slider_->setPageStep(std::max(positions / 12, 1));
    box_->setRange(least, most);
    place();
}

void SliderField::place() {
    const QSignalBlocker quiet(slider_); // the slider must not round a typed number to one of its positions
    slider_->setValue(position(box_->value()));
}

int SliderField::position(double value) const {
    const double span = range_.most - range_.least;
    if (!(span > 0)) return 0;
    double share = (value - range_.least) / span;
    if (range_.spread == Spread::Logarithmic)
        share = std::log(value / range_.least) / std::log(range_.most / range_.least);
    if (range_.spread == Spread::Quadratic) share = std::sqrt(share);
    return int(std::lround(std::clamp(share, 0.0, 1.0) * slider_->maximum()));
}

double SliderField::valueAt(int position) const {
    if (slider_->maximum() <= 0) return range_.least;
    const double share = double(position) / slider_->maximum();
    switch (range_.spread) {
    case Spread::Logarithmic:
        return range_.least * std::pow(range_.most / range_.least, share);
    case Spread::Quadratic:
        return range_.least + (range_.most - range_.least) * share * share;
    default:
        return range_.least + (range_.most - range_.least) * share;
    }
}

} // namespace kvscope::ui
