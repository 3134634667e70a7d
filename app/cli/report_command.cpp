// kvscope-cli report: the report of traces as one HTML page, and every table of it as CSV.
#include "app/cli/cold_option.h"
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/terminal/options.h"

#include "base/error.h"
#include "profiler/report/html.h"

#include <fmt/format.h>
#include <memory>

namespace kvscope::cli {
namespace {

struct ReportArguments {
    std::vector<std::string> traces;
    std::string output, csv;
};

int run(const ReportArguments& arguments) {
    if (arguments.output.empty() && arguments.csv.empty())
        throw Error(ErrorKind::BadInput, "report needs a place to write to", "give -o OUT.html, --csv FOLDER, or both");
    if (arguments.output.ends_with(".pdf"))
        throw Error(ErrorKind::Unsupported, fmt::format("{}: kvscope-cli writes no PDF", arguments.output),
                    "use the desktop program, kvscope report, or name it .html");
    if (!arguments.output.empty() && !arguments.output.ends_with(".html") && !arguments.output.ends_with(".htm"))
        throw Error(ErrorKind::BadInput, fmt::format("--output {} has no suffix of a report", arguments.output),
                    "name it .html");
    const reports::Report report = [&] {
        LongAction action;
        return reports::makeReport(arguments.traces, action.stopping());
    }();
    if (!arguments.csv.empty()) reports::writeCsvFolder(report, arguments.csv);
    if (!arguments.output.empty()) reports::writeHtml(report, arguments.output);
    return 0;
}

} // namespace

Command addReport(Options& program) {
    auto arguments = std::make_shared<ReportArguments>();
    Options sub = program.command("report", "Write a report of one or several traces, side by side");
    sub.add("trace", arguments->traces, "Traces (.kvtrace)").required().valueName("TRACE");
    sub.add("-o,--output", arguments->output, "Report to write: .html").valueName("OUT");
    sub.add("--csv", arguments->csv, "Folder for every table of it as CSV").valueName("FOLDER");
    addColdOption(sub);
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
