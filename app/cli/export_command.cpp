// kvscope-cli export: tables of a trace as CSV or JSON lines, or the timeline for Chrome's and Perfetto's viewers.
#include "app/cli/commands.h"
#include "app/cli/import_first.h"
#include "app/cli/long_action.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/export/export.h"
#include "profiler/export/output_file.h"
#include "profiler/read/trace_reader.h"

#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>

namespace kvscope::cli {
namespace {

struct ExportArguments {
    std::string trace, what, format = "csv", out;
    int run = 0;
    bool spreadsheet = false;
};

ExportResult write(const ExportArguments& arguments, std::ostream& out, ExportOptions options) {
    options.guardFormulas = arguments.spreadsheet;
    if (arguments.spreadsheet && arguments.format != "csv")
        throw Error(ErrorKind::BadInput, fmt::format("--spreadsheet has no effect on --format {}", arguments.format),
                    "leave it out");
    if (arguments.run != 0) {
        if (!TraceReader(arguments.trace).run(arguments.run))
            throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", arguments.trace, arguments.run),
                        "kvscope-cli info lists its runs");
        options.runId = arguments.run;
    }
    if (arguments.format == "chrome-trace") {
        if (!arguments.what.empty())
            throw Error(ErrorKind::BadInput, "--what and --format chrome-trace do not go together", "leave --what out");
        return exportChromeTrace(arguments.trace, out, options);
    }
    if (arguments.what.empty())
        throw Error(ErrorKind::BadInput, "export needs --what",
                    fmt::format("choose one of: {}; or --format chrome-trace", fmt::join(exportTableNames(), ", ")));
    return exportTable(arguments.trace, parseExportTable(arguments.what), parseExportFormat(arguments.format), out,
                       options);
}

int run(const ExportArguments& arguments) {
    importFirst(arguments.trace);
    ExportResult result;
    if (arguments.out.empty()) {
        OutStream out;
        try {
            result = write(arguments, out, {});
        } catch (const Error&) {
            if (outputFailure() != 0) return 1; // statusAfterOutput() tells the user
            throw;
        }
    } else {
        std::error_code ignored;
        if (std::filesystem::equivalent(arguments.trace, arguments.out, ignored))
            throw Error(ErrorKind::BadInput, fmt::format("{} cannot be exported into itself", arguments.trace),
                        "choose another name for -o");
        LongAction action;
        std::atomic<bool> cancelled{false};
        const std::stop_callback onStop(action.stop(), [&] { cancelled = true; });
        ExportOptions options;
        options.interrupt = &cancelled;
        options.progress = action.whole();
        OutputFile file(arguments.out);
        try {
            result = write(arguments, file.stream(), options);
        } catch (const Error&) {
            file.requireWritten();
            throw;
        }
        file.commit();
    }
    if (!result.note.empty()) printErr("kvscope-cli: {}\n", result.note);
    return 0;
}

} // namespace

Command addExport(Options& program) {
    auto arguments = std::make_shared<ExportArguments>();
    Options sub = program.command("export", "Write a table of a trace, or its timeline");
    sub.add("trace", arguments->trace, "The .kvtrace file, or one that can be imported").required();
    sub.add("--what", arguments->what, fmt::format("{}", fmt::join(exportTableNames(), ", ")));
    sub.add("--format", arguments->format, "csv, jsonl or chrome-trace").showsDefault();
    sub.flag("--spreadsheet", arguments->spreadsheet,
             "CSV: put an apostrophe before text that a spreadsheet would take for a formula (=, +, -, @)");
    sub.add("--run", arguments->run, "Only this run of the trace; default: all").range(1, 255);
    sub.add("-o,--out", arguments->out, "File to write, compressed if it ends in .gz; default: standard output");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
