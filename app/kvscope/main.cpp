// kvscope: the desktop, and its pictures and reports without a display.
#include "app/kvscope/commands.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/model/mapped_watch.h"
#include "profiler/read/step_kind.h"

#include <cstdio>
#include <exception>
#include <new>
#include <optional>

namespace {

using namespace kvscope;

/// As --count-cold of kvscope-cli; the window has the same switch in its View menu.
void addColdOption(Options& command) {
    command.flag(
        "--count-cold", [] { setColdSteps(ColdSteps::Counted); },
        "Let rates, shares and means count cold steps too, in which a sequence selects for the first time and finds an "
        "empty cache. Totals always count every step");
}

/// Runs the program. @return its exit status, if standard output takes everything that was written
int runProgram(int argc, char** argv) {
    CommandLine program(
        "kvscope",
        "KVScope: run a model with sparse attention and KV-cache offloading, watch it, and take its trace "
        "apart.",
        "kvscope " KVSCOPE_VERSION);
    app::DesktopOptions desktop;
    const Option files =
        program.add("trace", desktop.files, "Traces to open: .kvtrace, Nsight Systems SQLite, trace-event JSON")
            .valueName("FILE");
    program.add("--theme", desktop.theme, "Colours; default: those of the last time").oneOf({"light", "dark"});
    program.flag("--fresh", desktop.fresh, "Start without the last session and leave it untouched");
    program
        .flag("--again", desktop.again,
              "Run the first run of the named trace again: its model, prompt, method and settings")
        .needs(files);

    app::ReportOptions report;
    Options reportCommand = program.command("report", "Write a report of one or several traces, side by side");
    reportCommand.add("trace", report.traces, "Traces (.kvtrace)").required().valueName("TRACE");
    reportCommand.add("-o,--output", report.output, "Report to write: .html or .pdf").required().valueName("OUT");

    reportCommand.add("--csv", report.csv, "Folder for every table of it as CSV").valueName("FOLDER");
    addColdOption(reportCommand);

    app::RenderOptions render;
    Options renderCommand = program.command("render", "Write one view of a trace as a picture; needs no display");
    renderCommand.add("trace", render.trace, "Trace (.kvtrace)").required().valueName("TRACE");
    renderCommand.add("--view", render.view, "Name of the view, e.g. locality").required().valueName("NAME");
    renderCommand.add("--size", render.size, "Size in pixels").valueName("WxH").showsDefault();
    renderCommand.add("--scale", render.scale, "Pixels of a .png for each of these: 2 is sharp on most screens")
        .valueName("N")
        .showsDefault();
    renderCommand.add("--theme", render.theme, "Colours").oneOf({"light", "dark"}).showsDefault();
    renderCommand.add("--compare", render.compare, "A second trace to compare with").valueName("TRACE");
    renderCommand.add("--step", render.step, "Where the cursor is: step").notNegative();
    renderCommand.add("--layer", render.layer, "Layer of the cursor").notNegative();
    renderCommand.add("--kv-head", render.kvHead, "KV head of the cursor").notNegative();
    renderCommand.add("--sequence", render.sequence, "Sequence of the cursor").notNegative();
    renderCommand.add("--block", render.block, "KV block of the cursor").notNegative();
    renderCommand.flag("--window", render.window, "The whole window with the view in front (.png)");
    addColdOption(renderCommand);
    renderCommand.add("-o,--output", render.output, "Picture to write: .png, .svg or .pdf").required().valueName("OUT");

    app::FigureOptions figure;
    Options figureCommand =
        program.command("figure", "Redraw a figure of the papers from traces, ready for print; needs no display");
    figureCommand
        .add("name-and-files", figure.words,
             "Name of the figure, then traces (.kvtrace) and documents of kvscope-cli eval (.json)")
        .valueName("TEXT");
    figureCommand.flag("--list", figure.list, "List the figures; with files, say for each whether they can draw it");
    figureCommand.flag("--json", figure.json, "With --list: print one JSON document");
    figureCommand.add("-o,--output", figure.output, "Figure to write: .svg, .pdf or .png").valueName("OUT");
    figureCommand.add("--size", figure.size, "Width, or width and height, in millimetres")
        .valueName("W[xH]")
        .showsDefault();
    figureCommand.add("--csv", figure.csv, "Also write every number that is drawn").valueName("OUT");
    addColdOption(figureCommand);

    if (const std::optional<int> status = program.parse(argc, argv)) return *status;
    try {
        if (reportCommand.chosen()) return app::runReport(argc, argv, report);
        render.scaleGiven = renderCommand.has("--scale");
        if (renderCommand.chosen()) return app::runRender(argc, argv, render);
        if (figureCommand.chosen()) return app::runFigure(argc, argv, figure);
        return app::runDesktop(argc, argv, desktop);
    } catch (const Error& error) {
        printErr("kvscope: {}\n", oneLine(error));
    } catch (const std::bad_alloc&) {
        printErr("kvscope: out of memory; close other programs or use a smaller picture\n");
    } catch (const std::exception& error) {
        printErr("kvscope: {}\n", sentenceOf(error));
    }
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    prepareOutput();
    explainCutFiles();
    const int status = runProgram(argc, argv);
    return statusAfterOutput(status, "kvscope");
}
