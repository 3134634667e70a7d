// Writes numbers with units for people to read, and makes axes that use the same units.
#pragma once

#include <QString>
#include <QStringList>

#include <cstdint>
#include <functional>

class QCPAxis;

namespace kvscope::ui {

/// How the values of an axis or a metric are written.
enum class Unit { Count, Fraction, Percent, Bytes, Nanoseconds };

/// The meaning of a unit's name such as MetricInfo::unit: "µs" is Nanoseconds with the factor 1000, "" is a fraction,
/// "blocks" is a count.
struct NamedUnit {
    Unit unit = Unit::Count;
    double factor = 1; // multiplies a value to express it in `unit`
};
NamedUnit unitFromName(const QString& name);

/// A scaled unit, for example {1048576, "MiB"}. scaleFor chooses it so that `largest` becomes a number from 1 to 1000.
struct Scale {
    double factor = 1;
    QString name; // "" if the values have no unit
};
Scale scaleFor(Unit unit, double largest);

/// "3.2 MiB", "412 µs", "93.1 %", "12,345"; "undefined" for NaN.
QString formatValue(Unit unit, double value);
/// A whole number with its thousands separated: "12,345".
QString formatCount(std::int64_t value);

/// Gives an axis ticks in this unit and the label "title (unit)". The axis' range decides about the prefix of the unit;
/// call it again when the range has changed much.
void setUnitAxis(QCPAxis* axis, const QString& title, Unit unit);
/// Gives an axis ticks at whole numbers only, with their thousands separated.
void setIntegerAxis(QCPAxis* axis, const QString& title);
/// Gives an axis the names as labels at 0, 1, 2, ...; it leaves out some names where there is no room.
void setNamedAxis(QCPAxis* axis, const QString& title, QStringList names);

} // namespace kvscope::ui
