// kvscope: the desktop, and its pictures and reports without a display.
#include "app/kvscope/commands.h"
#include "app/terminal/output.h"

#include "base/error.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>

namespace {

using namespace kvscope;

/// The exit status, but for what standard output may lack.
int runProgram(int argc, char** argv) {
    CLI::App parser{
        "KVScope: run a model with sparse attention and KV-cache offloading, watch it, and take its trace apart.",
        "kvscope"};
    parser.set_version_flag("--version", "kvscope " KVSCOPE_VERSION);
    app::DesktopOptions desktop;
    parser.add_option("trace", desktop.files, "Traces to open: .kvtrace, Nsight Systems SQLite, trace-event JSON")
        ->type_name("FILE");
    parser.add_option("--theme", desktop.theme, "Colours; without it as last time")
        ->check(CLI::IsMember({"light", "dark"}));
    parser.add_flag("--fresh", desktop.fresh, "Start without the last session and leave it untouched");

    parser
        .add_flag("--again", desktop.again,
                  "Run the first run of the named trace again: its model, prompt, method and settings")
        ->needs("trace");

    app::BenchOptions bench; // for kvscope-cli bench, so in no group: not in --help
    parser.add_option("--bench", bench.name, "Run a benchmark of the desktop and print one JSON document")->group("");
    parser.add_option("--set", bench.settings, "key=value, for --bench")->group("")->take_all();

    app::ReportOptions report;
    CLI::App* reportCommand = parser.add_subcommand("report", "Write a report of one or several traces, side by side");
    reportCommand->add_option("trace", report.traces, "Traces (.kvtrace)")->required()->type_name("TRACE");
    reportCommand->add_option("-o,--output", report.output, "Report to write: .html or .pdf")
        ->required()
        ->type_name("OUT");

    reportCommand->add_option("--csv", report.csv, "Folder for every table of it as CSV")->type_name("FOLDER");

    app::RenderOptions render;
    CLI::App* renderCommand =
        parser.add_subcommand("render", "Write one view of a trace as a picture; needs no display");
    renderCommand->add_option("trace", render.trace, "Trace (.kvtrace)")->required()->type_name("TRACE");
    renderCommand->add_option("--view", render.view, "Name of the view, e.g. locality")->required()->type_name("NAME");
    renderCommand->add_option("--size", render.size, "Size in pixels")->type_name("WxH")->capture_default_str();
    renderCommand->add_option("--scale", render.scale, "Pixels of a .png for each of these: 2 is sharp on most screens")
        ->type_name("N")
        ->capture_default_str();
    renderCommand->add_option("--theme", render.theme, "Colours")
        ->check(CLI::IsMember({"light", "dark"}))
        ->capture_default_str();
    renderCommand->add_option("--compare", render.compare, "A second trace to compare with")->type_name("TRACE");
    renderCommand->add_option("--step", render.step, "Where the cursor is: step")->check(CLI::NonNegativeNumber);
    renderCommand->add_option("--layer", render.layer, "Layer of the cursor")->check(CLI::NonNegativeNumber);
    renderCommand->add_option("--kv-head", render.kvHead, "KV head of the cursor")->check(CLI::NonNegativeNumber);
    renderCommand->add_option("--sequence", render.sequence, "Sequence of the cursor")->check(CLI::NonNegativeNumber);
    renderCommand->add_option("--block", render.block, "KV block of the cursor")->check(CLI::NonNegativeNumber);
    renderCommand->add_flag("--window", render.window, "The whole window with the view in front (.png)");
    renderCommand->add_option("-o,--output", render.output, "Picture to write: .png, .svg or .pdf")
        ->required()
        ->type_name("OUT");

    app::FigureOptions figure;
    CLI::App* figureCommand =
        parser.add_subcommand("figure", "Redraw a figure of the papers from traces, ready for print; needs no display");
    figureCommand
        ->add_option("words", figure.words,
                     "Name of the figure, then traces (.kvtrace) and documents of kvscope-cli eval (.json)")
        ->type_name("NAME FILE...");
    figureCommand->add_flag("--list", figure.list,
                            "List the figures; with files, say for each whether they can draw it");
    figureCommand->add_flag("--json", figure.json, "With --list: print one JSON document");
    figureCommand->add_option("-o,--output", figure.output, "Figure to write: .svg, .pdf or .png")->type_name("OUT");
    figureCommand->add_option("--size", figure.size, "Width, or width and height, in millimetres")
        ->type_name("W[xH]")
        ->capture_default_str();
    figureCommand->add_option("--csv", figure.csv, "Also write every number that is drawn")->type_name("OUT");

    try {
        parser.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) { // --help, --version
            std::ostringstream text;
            const int status = parser.exit(error, text, text);
            writeOut(text.str());
            return status;
        }
        printErr("kvscope: {}; see kvscope --help\n", error.what());
        return 2;
    }
    try {
        if (reportCommand->parsed()) return app::runReport(argc, argv, report);
        if (renderCommand->parsed()) return app::runRender(argc, argv, render);
        if (figureCommand->parsed()) return app::runFigure(argc, argv, figure);
        if (!bench.name.empty()) return app::runBench(argc, argv, bench);
        return app::runDesktop(argc, argv, desktop);
    } catch (const Error& error) {
        printErr("kvscope: {}\n", oneLine(error));
    } catch (const std::bad_alloc&) {
        printErr("kvscope: out of memory; close other programs or use a smaller picture\n");
    } catch (const std::exception& error) {
        printErr("kvscope: {}\n", error.what());
    }
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    prepareOutput();
    const int status = runProgram(argc, argv);
    return statusAfterOutput(status, "kvscope");
}
