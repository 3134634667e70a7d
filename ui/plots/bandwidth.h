// Bytes over time. One rule everywhere: rates are decimal, because links and memories are sold so and reports compare
// with them; sizes of memory are binary (Unit::Bytes).
#pragma once

#include <QString>

namespace kvscope::ui {

/// "51.3 GB/s", "820 MB/s": GB is 10^9 bytes.
QString formatBandwidth(double bytesPerSecond);

} // namespace kvscope::ui
