// Writes bytes per second. The whole program writes rates in decimal units, because vendors state the bandwidth of
// links and memories so; it writes sizes of memory in binary units (Unit::Bytes).
#pragma once

#include <QString>

namespace kvscope::ui {

/// "51.3 GB/s", "820 MB/s"; 1 GB is 10^9 bytes.
QString formatBandwidth(double bytesPerSecond);

} // namespace kvscope::ui
