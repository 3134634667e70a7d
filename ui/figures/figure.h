// Makes figures like those in the papers of the field from recorded runs. Each figure is first made as numbers
// (FigureData), which figure_drawing.h then draws in one style.
#pragma once

#include "profiler/report/run_data.h"
#include "ui/figures/eval_results.h"
#include "ui/figures/quality_results.h"
#include "ui/figures/served_points.h"

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::ui {

struct FigureSources {
    std::vector<reports::RunData> runs;
    std::vector<EvalPoint> evals;
    std::vector<ServedPoint> served; // of files of points; those of traces are in runs
    std::vector<QualityPoint> quality;
};

/// One series of a panel: a line with marks, marks alone, or one component of stacked bars.
struct FigureSeries {
    std::string name;              // as in the legend
    std::vector<double> x, y;      // equally long; NaN: a gap
    std::vector<double> low, high; // [point] 95 % interval of y; empty: no intervals
    std::string basis;             // "measured", "modelled", "predicted" or empty
    int colour = -1;               // index of Theme::component; -1: the next colour of the figure
    bool hollow = false;           // drawn with open marks or bars, mostly because it is not measured
};

struct FigurePanel {
    enum class Mark { Lines, Points, StackedBars }; // bars are horizontal: x is a part's length, y an index of names
    Mark mark = Mark::Lines;
    std::string xTitle, yTitle; // including the units
    bool xLog = false, xFromZero = false, yFromZero = true;
    double yHigh = 0;               // upper end of the y axis; 0: chosen from the data
    std::vector<std::string> names; // names of the bars, from top to bottom
    std::vector<double> xTicks;     // ticks at the few values of x; empty: chosen from the range
    std::vector<FigureSeries> series;
};

struct FigureData {
    std::vector<FigurePanel> panels; // from top to bottom; series of the same name have the same colour
    std::string note;                // tells in the caption how to read the figure
};

/// A figure that the program can make. Adding one takes a file in this folder, its declaration in make_figures.h and a
/// line in registry.cpp.
struct FigureEntry {
    const char *id, *title;
    const char* redraws; // the paper and its figure that this one follows
    const char* needs;   // tells the user in a sentence which files to give
    /// Tells why the figure cannot be made from `sources`; empty if it can. Reads no file.
    std::string (*refusal)(const FigureSources& sources);
    FigureData (*make)(const FigureSources& sources); // only if refusal() is empty. @throws Error
};

const std::vector<FigureEntry>& figures();
/// The figure with this id. @throws Error(BadInput) with a list of the ids if there is none
const FigureEntry& findFigure(const std::string& id);

/// Reads files of four kinds: traces, JSON documents of `kvscope-cli eval` and `quality`, and the points of
/// `kvscope-cli load`.
/// @throws Error with the file's name
FigureSources readFigureSources(const std::vector<std::string>& files);
/// Calls refusal() and, if that is empty, make(). @throws Error(BadInput) with the refusal
FigureData makeFigure(const FigureEntry& entry, const FigureSources& sources);

/// Every number that the figure shows as CSV: panel, series, x, name, y, low, high, basis and the titles of the axes.
std::string figureCsv(const FigureData& data);

} // namespace kvscope::ui
