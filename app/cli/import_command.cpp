// kvscope-cli import: what another profiler recorded, as a trace.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/import/import.h"

#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

struct ImportArguments {
    std::string file, out;
    bool overwrite = false, json = false;
};

int run(const ImportArguments& arguments) {
    std::error_code ignored;
    if (!arguments.overwrite && std::filesystem::exists(arguments.out, ignored))
        throw Error(ErrorKind::BadInput, fmt::format("{} exists", arguments.out),
                    "choose another name or add --overwrite");
    ImportResult result;
    {
        LongAction action;
        result = importTrace(arguments.file, arguments.out, action.whole(), action.stop());
    }
    if (arguments.json) {
        const nlohmann::ordered_json out{{"file", arguments.file},
                                         {"trace", arguments.out},
                                         {"imported_from", result.source},
                                         {"spans", result.spans},
                                         {"counter_values", result.counters},
                                         {"flows", result.flows},
                                         {"remarks", result.remarks}};
        printOut("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
        return 0;
    }
    printOut("{}: {} spans, {} counter values, {} flows imported from {}\n", arguments.out, result.spans,
             result.counters, result.flows, result.source);
    for (const std::string& remark : result.remarks) printErr("kvscope-cli: {}\n", remark);
    return 0;
}

} // namespace

Command addImport(Options& program) {
    auto arguments = std::make_shared<ImportArguments>();
    std::string formats;
    for (const ImportFormat& format : importFormats())
        formats += fmt::format("{}{}", formats.empty() ? "" : ", ", format.title);
    Options sub = program.command("import", "Turn what another profiler recorded into a trace");
    sub.add("file", arguments->file, fmt::format("File to read, known by its content: {}", formats)).required();
    sub.add("-o,--out", arguments->out, "The .kvtrace file to write").required();
    sub.flag("--overwrite", arguments->overwrite, "Replace that file if it exists");
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
