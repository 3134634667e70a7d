// Numbers with units as people read them, and axis tickers that use the same units.
#pragma once

#include <QString>
#include <QStringList>

#include <cstdint>
#include <functional>

class QCPAxis;

namespace kvscope::ui {

/// How the values of an axis or a metric are written.
enum class Unit { Count, Fraction, Percent, Bytes, Nanoseconds };

/// What a name such as MetricInfo::unit stands for: "µs" is 1000 times Nanoseconds, "" a fraction, "blocks" a count.
struct NamedUnit {
    Unit unit = Unit::Count;
    double factor = 1; // multiplies a value to express it in `unit`
};
NamedUnit unitFromName(const QString& name);

/// A factor and its name, chosen so that `largest` reads as 1 .. 1000: {1048576, "MiB"}.
struct Scale {
    double factor = 1;
    QString name; // "": no unit
};
Scale scaleFor(Unit unit, double largest);

/// "3.2 MiB", "412 µs", "93.1 %", "12,345"; "undefined" for NaN.
QString formatValue(Unit unit, double value);
/// Thousands separated: 12,345.
QString formatCount(std::int64_t value);

/// Ticks of an axis in a unit; the label becomes "title (unit)", chosen from the axis' range. Call again when the range
/// has changed much.
void setUnitAxis(QCPAxis* axis, const QString& title, Unit unit);
/// Ticks at whole numbers only, thousands separated.
void setIntegerAxis(QCPAxis* axis, const QString& title);
/// Names at 0, 1, 2, ...; leaves some out when there is no room.
void setNamedAxis(QCPAxis* axis, const QString& title, QStringList names);

} // namespace kvscope::ui
