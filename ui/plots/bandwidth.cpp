#include "ui/plots/bandwidth.h"

#include "ui/frame/units.h"

#include <cmath>

namespace kvscope::ui {

QString formatBandwidth(double bytesPerSecond) {
    constexpr struct {
        double least, factor;
        const char* name;
    } kScales[] = {{1e9, 1e9, "GB/s"}, {1e6, 1e6, "MB/s"}, {1e3, 1e3, "kB/s"}, {0, 1, "B/s"}};
    for (const auto& scale : kScales)
        if (std::abs(bytesPerSecond) >= scale.least)
            return QStringLiteral("%1 %2").arg(formatValue(Unit::Fraction, bytesPerSecond / scale.factor),
                                               QLatin1String(scale.name));
    return formatValue(Unit::Fraction, bytesPerSecond); // not a number
}

} // namespace kvscope::ui
