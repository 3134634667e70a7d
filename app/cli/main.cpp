// kvscope-cli: everything the desktop does that needs no window. No Qt.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/terminal/output.h"

#include "base/error.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <utility>
#include <vector>

namespace {

using namespace kvscope;

/// The exit status, but for what standard output may lack.
int runCommand(int argc, char** argv) {
    CLI::App app{"KVScope: decode with sparse attention and KV-cache offloading, record it, look into the recording.",
                 "kvscope-cli"};
    app.set_version_flag("--version", KVSCOPE_VERSION);
    app.require_subcommand(1);
    std::vector<std::pair<CLI::App*, cli::Command>> commands;
    using Add = cli::Command (*)(CLI::App&);
    for (const Add add : {cli::addRun, cli::addExport, cli::addImport, cli::addInfo, cli::addMethods, cli::addTokenize,
                          cli::addReplay, cli::addCheck, cli::addInsights, cli::addCompare, cli::addReport,
                          cli::addEval, cli::addCalibrate, cli::addRoofline, cli::addBench}) {
        cli::Command command = add(app);
        commands.emplace_back(app.get_subcommands({}).back(), std::move(command));
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) { // --help, --version
            std::ostringstream text;
            const int status = app.exit(error, text, text);
            writeOut(text.str());
            return status;
        }
        printErr("kvscope-cli: {}; see kvscope-cli --help\n", error.what());
        return 2;
    }
    try {
        for (const auto& [subcommand, command] : commands) {
            if (!subcommand->parsed()) continue;
            const CLI::Option* json = subcommand->get_option_no_throw("--json");
            cli::commandPrints(json != nullptr && json->count() > 0 ? cli::Prints::Document : cli::Prints::Text);
            return command();
        }
        return 2;
    } catch (const Error& error) {
        printErr("kvscope-cli: {}\n", oneLine(error));
        if (error.kind == ErrorKind::Cancelled) return Interruption::exitStatus();
    } catch (const std::bad_alloc&) {
        printErr("kvscope-cli: out of memory; use a shorter prompt, a smaller batch or a smaller model\n");
    } catch (const std::exception& error) {
        printErr("kvscope-cli: {}\n", error.what());
    }
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    prepareOutput();
    const int status = runCommand(argc, argv);
    return statusAfterOutput(status, "kvscope-cli", cli::commandRemark());
}
