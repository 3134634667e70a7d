// The numbers of a what-if answer beside the recorded ones, each with its definition.
#pragma once

#include "ui/models/what_if.h"
#include "ui/views/key_numbers.h"

namespace kvscope::ui {

struct CacheNumber : KeyNumber { // a: recorded, b: asked; NaN where undefined
    bool estimated = false;      // b is an estimate
    QString asked() const { return (estimated && b == b ? QStringLiteral("≈ ") : QString()) + text(b); }
};

std::vector<CacheNumber> cacheNumbers(const WhatIf& whatIf, const WhatIfAnswer& answer);
/// "keep-selected, 16 slots, 55.5 GB/s, 10 µs"; loading ahead if the question does.
QString questionText(const WhatIfQuestion& question);
/// How the asked value differs, in few letters: "−12 %", "+3.1 points".
QString shortDifference(const KeyNumber& number);

} // namespace kvscope::ui
