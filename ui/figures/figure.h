// Figures as the papers of the field print them, from recorded runs: first numbers, then drawn in one style for all.
#pragma once

#include "profiler/report/run_data.h"
#include "ui/figures/eval_results.h"

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::ui {

struct FigureSources {
    std::vector<reports::RunData> runs;
    std::vector<EvalPoint> evals;
};

/// What a figure shows of one thing: a line with marks, marks alone, or one component of stacked bars.
struct FigureSeries {
    std::string name;              // in the legend
    std::vector<double> x, y;      // of the same length; NaN: a gap
    std::vector<double> low, high; // 95 % interval of y; empty: none
    std::string basis;             // "measured", "modelled", "predicted" or empty
    int colour = -1;               // of the palette; -1: the next one
    bool hollow = false;           // drawn open: not measured
};

struct FigurePanel {
    enum class Mark { Lines, Points, StackedBars }; // bars lie: x is their length, y counts the names
    Mark mark = Mark::Lines;
    std::string xTitle, yTitle; // with units
    bool xLog = false, xFromZero = false, yFromZero = true;
    double yHigh = 0;               // 0: from the data
    std::vector<std::string> names; // of bars, top to bottom
    std::vector<double> xTicks;     // where the values of x are few; empty: chosen
    std::vector<FigureSeries> series;
};

struct FigureData {
    std::vector<FigurePanel> panels; // one above the other; series of one name share a colour
    std::string note;                // how to read it, for the caption
};

/// One preset: one file, one line in registry.cpp.
struct FigureEntry {
    const char *id, *title;
    const char* redraws; // which figure of which paper
    const char* needs;   // a sentence
    /// Why it cannot be drawn from these; empty if it can. Looks at what was read already.
    std::string (*refusal)(const FigureSources& sources);
    FigureData (*make)(const FigureSources& sources); // after refusal() was empty. @throws Error
};

const std::vector<FigureEntry>& figures();
/// @throws Error(BadInput) listing the names
const FigureEntry& findFigure(const std::string& id);

/// Traces and JSON documents of `kvscope-cli eval`. @throws Error naming the file
FigureSources readFigureSources(const std::vector<std::string>& files);
/// refusal() and make(). @throws Error(BadInput) with the refusal
FigureData makeFigure(const FigureEntry& entry, const FigureSources& sources);

/// panel, series, x, name, y, low, high, basis: every number that is drawn.
std::string figureCsv(const FigureData& data);

} // namespace kvscope::ui
