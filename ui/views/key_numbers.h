// The numbers two runs are compared by, each with its definition; the same RunSummary that reports and `info` print.
#pragma once

#include "profiler/compare/compare.h"
#include "profiler/read/summary.h"
#include "ui/plots/units.h"

#include <QString>

#include <limits>
#include <vector>

namespace kvscope::ui {

struct KeyNumber {
    QString title, help, unitName;
    Unit unit = Unit::Count;
    double a = 0, b = 0; // NaN: undefined
    int better = 0;      // +1: more is better, -1: less is better, 0: neither
    // Confidence interval of b - a; NaN: there is none.
    double low = std::numeric_limits<double>::quiet_NaN(), high = std::numeric_limits<double>::quiet_NaN();
    QString text(double value) const;
    QString signedText(double value) const;
    QString difference() const; // "+1.2 MiB (+8 %)", then the interval; a dash where undefined
    /// +1: B is better, -1: worse, 0: within the interval (without one: within 1 %), neither or undefined
    int verdict() const;
};

std::vector<KeyNumber> keyNumbers(const RunSummary& a, const RunSummary& b);
/// Mean time of each component, and of the step, per compared decode step, with the interval of the difference.
std::vector<KeyNumber> componentNumbers(const Comparison& comparison);

} // namespace kvscope::ui
