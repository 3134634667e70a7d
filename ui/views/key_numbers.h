// The numbers two runs are compared by, each with its statistic and definition; the same RunSummary that reports and
// `info` print.
#pragma once

#include "profiler/compare/compare.h"
#include "profiler/read/summary.h"
#include "ui/frame/units.h"

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
    /// The number differs from one recording to the next, so that without an interval neither run is better.
    bool varies = false;
    QString text(double value) const;
    QString signedText(double value) const;
    /// "+1.2 MiB (+8 %)", then the interval unless it is not wanted; a dash where undefined. An interval that holds 0
    /// says that nothing can be told, or, if it is narrow (kTellable), that there is no difference.
    QString difference(bool withInterval = true) const;
    /// +1: b is better than a, -1: b is worse, 0: nothing can be told (without an interval: they are within 1 %),
    /// neither is better, or a number is undefined
    int verdict() const;
};

std::vector<KeyNumber> keyNumbers(const RunSample& a, const RunSample& b);
/// What the run `letter` costs and says beside its time, against A: "B fetches 1.2 MiB per token from the host, A 460
/// KiB (+159 %). Both answer 79930, correct." Empty: nothing of that is known.
QString factsText(const RunSample& a, const RunSample& b, const QString& letter);
/// The verdict's own number first: the median of the other's step time over A's. Then the mean time of the step and of
/// each component, per compared decode step, with the interval of the difference.
std::vector<KeyNumber> componentNumbers(const Comparison& comparison);

} // namespace kvscope::ui
