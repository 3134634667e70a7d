// The numbers two runs are compared by, each with its definition; the same RunSummary that reports and `info` print.
#pragma once

#include "profiler/read/summary.h"
#include "ui/plots/units.h"

#include <QString>

#include <vector>

namespace kvscope::ui {

struct KeyNumber {
    QString title, help, unitName;
    Unit unit = Unit::Count;
    double a = 0, b = 0; // NaN: undefined
    int better = 0;      // +1: more is better, -1: less is better, 0: neither
    QString text(double value) const;
    QString difference() const; // "+1.2 MiB (+8 %)", a dash where undefined
    int verdict() const;        // +1: B is better, -1: worse, 0: within 1 %, neither or undefined
};

std::vector<KeyNumber> keyNumbers(const RunSummary& a, const RunSummary& b);

} // namespace kvscope::ui
