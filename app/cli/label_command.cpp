// kvscope-cli label: what a person calls a recorded run and says of it, kept in the trace.
#include "app/cli/commands.h"
#include "app/cli/name_option.h"
#include "app/cli/run_choice.h"
#include "app/cli/vain.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/read/run_labels.h"
#include "profiler/read/trace_reader.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct LabelArguments {
    std::string trace, name, note;
    std::vector<std::string> tags, untags;
    int run = 0;
    bool pin = false, unpin = false, clear = false, json = false;
};

RunLabels changed(RunLabels labels, const LabelArguments& arguments, const Options& given) {
    if (arguments.clear) labels = {};
    if (given.has("--name")) labels.name = arguments.name;
    if (given.has("--note")) labels.note = arguments.note;
    checkRunName(labels.name);
    refuseRepeated("--tag", arguments.tags);
    refuseRepeated("--untag", arguments.untags);
    for (const std::string& tag : arguments.tags) labels.tags.push_back(tag);
    for (const std::string& tag : arguments.untags) {
        if (std::find(arguments.tags.begin(), arguments.tags.end(), tag) != arguments.tags.end())
            throw Error(ErrorKind::BadInput, fmt::format("--tag and --untag both name '{}'", tag),
                        "leave one of them out");
        if (std::erase(labels.tags, tag) == 0)
            throw Error(ErrorKind::BadInput, fmt::format("the run has no tag '{}'", tag),
                        labels.tags.empty() ? std::string("it has none")
                                            : fmt::format("its tags: {}", fmt::join(labels.tags, ", ")));
    }
    if (arguments.pin || arguments.unpin) labels.pinned = arguments.pin;
    return labels;
}

int run(const LabelArguments& arguments, const Options& given) {
    RunRow row;
    {
        const TraceReader reader(arguments.trace);
        row = reader.run(chooseRun(reader, arguments.run)).value();
    }
    const RunLabels before = labelsOf(row);
    RunLabels now = changed(before, arguments, given);
    if (now != before) {
        setLabels(arguments.trace, row.runId, now);
        const TraceReader reader(arguments.trace); // as everybody reads it now
        row = reader.run(row.runId).value();
        now = labelsOf(row);
    }
    if (arguments.json) {
        const Json out{{"run_id", row.runId}, {"name", row.name}, {"label", now.name},
                       {"note", now.note},    {"tags", now.tags}, {"pinned", now.pinned}};
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
        return 0;
    }
    printOut("run {}: {}{}\n", row.runId, row.name, now.pinned ? " (pinned)" : "");
    if (!now.tags.empty()) printOut("tags: {}\n", fmt::join(now.tags, ", "));
    if (!now.note.empty()) printOut("{}\n", now.note);
    return 0;
}

} // namespace

Command addLabel(Options& program) {
    auto arguments = std::make_shared<LabelArguments>();
    Options sub =
        program.command("label", "Rename, note, tag or pin a run of a trace; without a change, print its labels");
    sub.add("trace", arguments->trace, "The .kvtrace file, which is changed").required();
    sub.add("--run", arguments->run, "Run of the trace; default: the last").range(1, 255);
    sub.addWords("--name", arguments->name, "Name of the run from now on; '' gives it back the recorded name");
    sub.addWords("--note", arguments->note, "A note; '' removes it");
    sub.add("--tag", arguments->tags, "Add this tag; repeatable").repeatable();
    sub.add("--untag", arguments->untags, "Take this tag away; repeatable").repeatable();
    const Option pin =
        sub.flag("--pin", arguments->pin, "Pin the run: the list of its folder (info FOLDER) begins with it");
    sub.flag("--unpin", arguments->unpin, "Unpin the run").excludes(pin);
    sub.flag("--clear", arguments->clear, "Take away all labels before the others are set");
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments, sub] { return run(*arguments, sub); };
}

} // namespace kvscope::cli
