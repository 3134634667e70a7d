// What the program `kvscope` does: the window, or one picture, or one report without a window.
#pragma once

#include <string>
#include <vector>

namespace kvscope::app {

struct DesktopOptions {
    std::vector<std::string> files;
    std::string theme; // empty: as last time
    bool fresh = false;
    bool again = false; // run the first trace's first run again, as Run > Run Again and then Run
};
struct ReportOptions {
    std::vector<std::string> traces;
    std::string output, csv; // csv: folder; empty: none
};
struct RenderOptions {
    std::string trace, view, size = "1600x1000", theme = "light", output;
    double scale = 1;
    bool scaleGiven = false;
    std::string compare; // a second trace; empty: none
    int step = 0, layer = 0, kvHead = 0, sequence = 0, block = -1;
    bool window = false;
};
struct FigureOptions {
    std::vector<std::string> words; // name and files; files alone with `list`
    std::string output, size = "85", csv;
    bool list = false, json = false;
};

/// Each function makes the QApplication and returns the exit status. @throws kvscope::Error for the one-line message
int runDesktop(int& argc, char** argv, const DesktopOptions& options);
int runReport(int& argc, char** argv, const ReportOptions& options);
int runRender(int& argc, char** argv, const RenderOptions& options);
int runFigure(int& argc, char** argv, const FigureOptions& options);

} // namespace kvscope::app
