#include "ui/timeline/time_ticks.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

QString formatTime(double ns, double precision) {
    static constexpr struct {
        double ns;
        const char* name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}, {1, "ns"}};
    const auto* unit = &units[3];
    for (const auto& each : units)
        if (std::abs(ns) >= each.ns) {
            unit = &each;
            break;
        }
    if (std::abs(ns) < precision / 2) return QStringLiteral("0");
    const double digits = std::ceil(std::log10(unit->ns / std::max(precision, 1.0)) - 1e-9);
    const int decimals = std::clamp(int(digits), 0, 9);
    QString number = QString::number(ns / unit->ns, 'f', decimals);
    if (number.contains(QLatin1Char('.'))) {
        while (number.endsWith(QLatin1Char('0'))) number.chop(1);
        if (number.endsWith(QLatin1Char('.'))) number.chop(1);
    }
    return number + QLatin1Char(' ') + QString::fromUtf8(unit->name);
}

std::vector<TimeTick> timeTicks(const TimeRange& window, int width, int spacing) {
    std::vector<TimeTick> ticks;
    if (window.size() <= 0 || width <= 0) return ticks;
    const double wanted = std::max(window.size() * spacing / width, 1.0);
    const double power = std::pow(10.0, std::floor(std::log10(wanted)));
    double step = power;
    for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
        step = power * factor;
        if (step >= wanted * 0.999) break;
    }
    const double first = std::ceil(window.from / step) * step;
    const bool relative = std::max(std::abs(window.from), std::abs(window.to)) / step > 20'000;
    for (double ns = first; ns <= window.to && ticks.size() < 1000; ns += step) {
        const bool anchor = !relative || ticks.empty();
        ticks.push_back({ns, anchor ? formatTime(ns, step) : QLatin1Char('+') + formatTime(ns - first, step)});
    }
    return ticks;
}

} // namespace kvscope::ui
