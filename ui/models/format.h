// Writes numbers for people to read, with their unit if they have one. "–" stands for an undefined value.
#pragma once

#include "ui/frame/units.h"

#include <QString>

#include <cstdint>
#include <string>

namespace kvscope::ui {

QString formatDuration(std::int64_t nanoseconds);           // "4.56 ms"
QString formatBytes(std::int64_t bytes);                    // "16.3 KiB"
QString formatShare(std::int64_t part, std::int64_t whole); // "97.3 %"; "–" when whole is 0
QString formatRatio(double value, int decimals = 3);        // "0.912"; "–" for NaN
QString formatRate(double perSecond);                       // "41.7", "10,447"; "–" for NaN or infinity
QString titleOf(const std::string& key);                    // "total_blocks" -> "Total blocks"
QString tokenText(const std::string& bytes);                // a token as its chip shows it, with signs for white space

} // namespace kvscope::ui
