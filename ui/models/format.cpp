#include "ui/models/format.h"

#include "ui/frame/as_written.h"

#include <cmath>

namespace kvscope::ui {
namespace {

const QString kUndefined = QStringLiteral("–");

/// The number with three significant digits, or more before the point: "41.7", "10,447".
QString threeDigits(double value) {
    const double magnitude = std::abs(value);
    if (magnitude >= 999.5) return formatCount(std::llround(value));
    return QString::number(value, 'f', magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2);
}

} // namespace

QString formatDuration(std::int64_t nanoseconds) { return formatValue(Unit::Nanoseconds, double(nanoseconds)); }

QString formatBytes(std::int64_t bytes) { return formatValue(Unit::Bytes, double(bytes)); }

QString formatShare(std::int64_t part, std::int64_t whole) {
    if (whole == 0) return kUndefined;
    return QString::number(100.0 * double(part) / double(whole), 'f', 1) + QStringLiteral(" %");
}

QString formatRatio(double value, int decimals) {
    return std::isfinite(value) ? QString::number(value, 'f', decimals) : kUndefined;
}

QString formatRate(double perSecond) { return std::isfinite(perSecond) ? threeDigits(perSecond) : kUndefined; }

QString titleOf(const std::string& key) {
    QString title = QString::fromStdString(key).replace(QLatin1Char('_'), QLatin1Char(' '));
    if (!title.isEmpty()) title[0] = title[0].toUpper();
    return title;
}

QString tokenText(const std::string& bytes) {
    QString text = withoutDirections(QString::fromStdString(bytes));
    text.replace(QLatin1Char('\n'), QChar(0x21B5)); // ↵
    text.replace(QLatin1Char('\t'), QChar(0x2192)); // →
    text.remove(QLatin1Char('\r'));
    const QString shown = text.trimmed();
    if (!shown.isEmpty()) return shown;
    return text.isEmpty() ? QStringLiteral("∅") : QStringLiteral("␣");
}

} // namespace kvscope::ui
