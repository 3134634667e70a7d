#include "ui/frame/units.h"

#include <qcustomplot.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvscope::ui {

namespace {

QString number(double value) {
    const double size = std::abs(value);
    if (size == 0) return QStringLiteral("0");
    const int decimals = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 4;
    QString text = QString::number(value, 'f', decimals);
    if (text.contains(QLatin1Char('.'))) {
        while (text.endsWith(QLatin1Char('0'))) text.chop(1);
        if (text.endsWith(QLatin1Char('.'))) text.chop(1);
    }
    return text == QLatin1String("-0") ? QStringLiteral("0") : text;
}

QString grouped(double value) {
    QString text = QString::number(std::abs(value), 'f', 0);
    for (qsizetype at = text.size() - 3; at > 0; at -= 3) text.insert(at, QLatin1Char(','));
    return value < 0 ? QLatin1Char('-') + text : text;
}

/// Distance between ticks: 1, 2 or 5 times a power of ten. Other distances, such as 2.5, would need labels with one
/// more digit, such as 17.5.
double plainStep(double span, int ticks) {
    const double exact = span / std::max(ticks, 1);
    if (!(exact > 0)) return 1;
    const double magnitude = std::pow(10., std::floor(std::log10(exact)));
    double best = 1;
    for (const double mantissa : {1., 2., 5., 10.})
        if (std::abs(mantissa - exact / magnitude) < std::abs(best - exact / magnitude)) best = mantissa;
    return best * magnitude;
}

class UnitTicker final : public QCPAxisTicker {
public:
    explicit UnitTicker(Unit unit) : unit_(unit) { setTickCount(5); }

protected:
    double getTickStep(const QCPRange& range) override {
        scale_ = scaleFor(unit_, std::max(std::abs(range.lower), std::abs(range.upper)));
        double step = plainStep(range.size() / scale_.factor, tickCount());
        if (unit_ == Unit::Count) step = std::max(step, 1.0);
        return step * scale_.factor;
    }
    int getSubTickCount(double) override { return 0; }
    QString getTickLabel(double tick, const QLocale&, QChar, int) override {
        const double value = tick / scale_.factor;
        if (std::abs(value) >= 1000 && value == std::round(value)) return grouped(value);
        return QString::number(std::abs(value) < 1e-12 ? 0 : value, 'g', 6);
    }

private:
    Unit unit_;
    Scale scale_;
};

class IntegerTicker final : public QCPAxisTicker {
protected:
    double getTickStep(const QCPRange& range) override {
        return std::max(1.0, std::round(plainStep(range.size(), tickCount())));
    }
    int getSubTickCount(double) override { return 0; }
    QString getTickLabel(double tick, const QLocale&, QChar, int) override { return grouped(tick); }
};

class NameTicker final : public QCPAxisTicker {
public:
    explicit NameTicker(QStringList names) : names_(std::move(names)) { setTickCount(16); }

protected:
    double getTickStep(const QCPRange& range) override {
        const int most = tickCount() > 1 ? tickCount() + 2 : 1; // 1: an axis with very little room
        for (const double step : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0})
            if (range.size() / step <= most) return step;
        return std::round(std::max(1.0, range.size() / tickCount()));
    }
    int getSubTickCount(double) override { return 0; }
    QString getTickLabel(double tick, const QLocale&, QChar, int) override {
        const auto index = qsizetype(std::lround(tick));
        return index >= 0 && index < names_.size() && std::abs(tick - double(index)) < 0.01 ? names_[index] : QString();
    }

private:
    QStringList names_;
};

} // namespace

NamedUnit unitFromName(const QString& name) {
    if (name.isEmpty()) return {Unit::Fraction, 1};
    if (name == QLatin1String("B") || name == QLatin1String("bytes")) return {Unit::Bytes, 1};
    if (name == QLatin1String("%")) return {Unit::Percent, 1};
    if (name == QLatin1String("ns")) return {Unit::Nanoseconds, 1};
    if (name == QStringLiteral("µs") || name == QLatin1String("us")) return {Unit::Nanoseconds, 1e3};
    if (name == QLatin1String("ms")) return {Unit::Nanoseconds, 1e6};
    if (name == QLatin1String("s")) return {Unit::Nanoseconds, 1e9};
    return {Unit::Count, 1};
}

Scale scaleFor(Unit unit, double largest) {
    if (unit == Unit::Bytes) {
        if (largest < 4096) return {1, QStringLiteral("B")};
        if (largest < 4.0 * (1 << 20)) return {1024, QStringLiteral("KiB")};
        if (largest < 4.0 * (1 << 30)) return {1048576, QStringLiteral("MiB")};
        return {1073741824.0, QStringLiteral("GiB")};
    }
    if (unit == Unit::Nanoseconds) {
        if (largest < 2e3) return {1, QStringLiteral("ns")};
        if (largest < 2e6) return {1e3, QStringLiteral("µs")};
        if (largest < 2e9) return {1e6, QStringLiteral("ms")};
        return {1e9, QStringLiteral("s")};
    }
    if (unit == Unit::Percent) return {1, QStringLiteral("%")};
    return {1, {}};
}

QString formatCount(std::int64_t value) { return grouped(double(value)); }

QString formatValue(Unit unit, double value) {
    if (std::isnan(value)) return QStringLiteral("undefined");
    if (unit == Unit::Fraction) return number(value);
    if (unit == Unit::Count) {
        const bool whole = value == std::round(value);
        return whole || std::abs(value) >= 1000 ? grouped(value) : number(value);
    }
    const Scale scale = scaleFor(unit, std::abs(value));
    return number(value / scale.factor) + QLatin1Char(' ') + scale.name;
}

void setUnitAxis(QCPAxis* axis, const QString& title, Unit unit) {
    const Scale scale = scaleFor(unit, std::max(std::abs(axis->range().lower), std::abs(axis->range().upper)));
    const QString label = scale.name.isEmpty() ? title : QStringLiteral("%1 (%2)").arg(title, scale.name);
    if (axis->label() != label) axis->setLabel(label);
    if (axis->property("kvscopeUnit") != int(unit)) {
        axis->setProperty("kvscopeUnit", int(unit));
        axis->setTicker(QSharedPointer<UnitTicker>::create(unit));
    }
}

void setIntegerAxis(QCPAxis* axis, const QString& title) {
    axis->setLabel(title);
    axis->setTicker(QSharedPointer<IntegerTicker>::create());
}

void setNamedAxis(QCPAxis* axis, const QString& title, QStringList names) {
    axis->setLabel(title);
    axis->setTicker(QSharedPointer<NameTicker>::create(std::move(names)));
}

} // namespace kvscope::ui
