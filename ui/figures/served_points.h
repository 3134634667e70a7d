// Reads what loads of a server gave at several rates: the file that `kvscope-cli load --rungs ... --resume FILE` and
// `simulate` keep their finished points in, or the JSON document of `kvscope-cli load --json`.
#pragma once

#include <string>
#include <vector>

namespace kvscope::ui {

/// One configuration at one rate. Times are milliseconds; NaN: the file does not give the number.
struct ServedPoint {
    std::string series;   // the rung, or the method
    bool measured = true; // false: simulated
    double rate = 0;      // requests per second
    double ttftMs = 0, tbtMs = 0, tbtP99Ms = 0;
    double tokensPerSecond = 0, bytesLoaded = 0; // bytesLoaded: per iteration
    // Of a ladder's file alone: the seed of its arrivals, and whether the run kept its bounds. -1: of another file
    int seed = -1;
    bool holds = false;
};

/// Whether a file is one of those: its first line or its whole text says so.
bool holdsServedPoints(const std::string& path);
/// @throws Error(BadInput) with the file and what it lacks
std::vector<ServedPoint> readServedPoints(const std::string& path);

} // namespace kvscope::ui
