// kvscope-cli: everything the desktop does that needs no window. No Qt.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"

#include "kernels/base/error.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <new>
#include <utility>
#include <vector>

int main(int argc, char** argv) {
    using namespace kvscope;
    CLI::App app{"KVScope: decode with sparse attention and KV-cache offloading, record it, look into the recording.",
                 "kvscope-cli"};
    app.set_version_flag("--version", KVSCOPE_VERSION);
    app.require_subcommand(1);
    std::vector<std::pair<CLI::App*, cli::Command>> commands;
    using Add = cli::Command (*)(CLI::App&);
    for (const Add add : {cli::addRun, cli::addExport, cli::addImport, cli::addInfo, cli::addMethods, cli::addTokenize,
                          cli::addReplay, cli::addInsights, cli::addCompare, cli::addReport, cli::addEval,
                          cli::addCalibrate, cli::addRoofline, cli::addBench}) {
        cli::Command command = add(app);
        commands.emplace_back(app.get_subcommands({}).back(), std::move(command));
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error); // --help, --version
        fmt::print(stderr, "kvscope-cli: {}; see kvscope-cli --help\n", error.what());
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
        fmt::print(stderr, "kvscope-cli: {}\n", oneLine(error));
        if (error.kind == ErrorKind::Cancelled) return 130; // as a shell reports Ctrl-C
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "kvscope-cli: out of memory; use a shorter prompt, a smaller batch or a smaller model\n");
    } catch (const std::exception& error) {
        fmt::print(stderr, "kvscope-cli: {}\n", error.what());
    }
    return 1;
}
