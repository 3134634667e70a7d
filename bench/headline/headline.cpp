// Measures the rows of bench/results/README.md, each twice, on one machine, into one file.
#include "base/error.h"
#include "base/whole_file.h"
#include "bench/headline/built_commit.h"
#include "bench/headline/headline_file.h"
#include "bench/headline/headline_machine.h"
#include "bench/headline/headline_parts.h"
#include "bench/machine.h"
#include "bench/settings.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sstream>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> wordsOf(const std::string& list) {
    std::vector<std::string> words;
    std::istringstream text(list);
    for (std::string word; std::getline(text, word, ',');) words.push_back(word);
    return words;
}

std::vector<HeadlinePart> chosenParts(const std::string& only, bool gpu) {
    std::vector<HeadlinePart> parts;
    std::string known;
    const std::vector<std::string> wanted = wordsOf(only);
    for (const HeadlinePart& part : headlineParts()) {
        known += fmt::format("{}{}", known.empty() ? "" : ", ", part.name);
        const bool fits = (part.machine == HeadlineMachine::Gpu) == gpu && part.name != "llama"; // which needs a model
        if (only.empty() ? fits : std::find(wanted.begin(), wanted.end(), part.name) != wanted.end())
            parts.push_back(part);
    }
    for (const std::string& name : wanted)
        if (std::none_of(headlineParts().begin(), headlineParts().end(), [&](const auto& p) { return p.name == name; }))
            throw Error(ErrorKind::BadInput, fmt::format("the headline has no part '{}'", name), "its parts: " + known);
    return parts;
}

Json listOfParts() {
    static constexpr std::array kMachines{"a GPU", "the processor", "the desktop"};
    Json out = Json::array();
    for (const HeadlinePart& part : headlineParts())
        out.push_back({{"part", part.name},
                       {"measures", part.what},
                       {"on", kMachines[std::size_t(part.machine)]},
                       {"minutes", part.minutes},
                       {"rows", wordsOf(std::string(part.rows))}});
    return out;
}

Json measurePart(const HeadlinePart& part, const Settings& settings, const Log& log) {
    constexpr int kRuns = 2;
    const bool onGpu = part.machine == HeadlineMachine::Gpu;
    log(fmt::format("part {}: {}, about {:g} minutes", part.name, part.what, part.minutes));
    HeadlineRun run{settings, log};
    std::vector<Json> runs;
    Json probes = Json::array();
    ClockSamples clocks;
    const auto probe = [&] {
        if (onGpu) probes.push_back(readProbeGbPerSecond());
    };
    const double took = seconds([&] {
        probe();
        for (int i = 0; i < (part.runsTwice ? 1 : kRuns); ++i) {
            run.peerFirst = i % 2 == 1;
            runs.push_back(part.run(run));
            probe();
        }
    });
    Json out{{"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))}, {"seconds", took}};
    if (onGpu) out["read_gb_per_s"] = std::move(probes);
    if (Json sampled = clocks.finish(); !sampled.is_null()) out["clocks"] = std::move(sampled);
    if (!run.peer.empty()) out["peer"] = run.peer;
    out["rows"] = rowsOfRuns(runs);
    for (const auto& [row, values] : out["rows"].items()) log(fmt::format("{}: {}", row, values.dump()));
    return out;
}

} // namespace

/// Settings: only=PART,PART; out=FILE, which gets the parts one by one and is joined where it is there; join=FILE,FILE,
/// whose parts come in too, and without only= nothing is measured; list=true, the parts alone; commit=, where the build
/// could not tell; peers=FOLDER, python=PROGRAM, llama-model=FILE; checkpoint=FOLDER, as folder= of first-prompt.
Json headline(const Settings& given, const Log& log) {
    const SettingsReader settings(
        given, {"only", "out", "join", "list", "commit", "peers", "python", "llama-model", "checkpoint"});
    if (settings.flag("list", false)) return {{"parts", listOfParts()}};
    const std::string path = settings.text("out", "headline.json");
    std::vector<std::string> joined = wordsOf(settings.text("join", ""));
    const bool joinsOnly = !joined.empty() && !given.contains("only");
    const auto parts = joinsOnly ? std::vector<HeadlinePart>() : chosenParts(settings.text("only", ""), gpuIsHere());
    if (const std::string why = whyUnwritable(path); !why.empty())
        throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: {}", path, why), "name another with out=");
    for (const HeadlinePart& part : parts)
        if (part.machine == HeadlineMachine::Gpu && !gpuIsHere())
            throw Error(ErrorKind::Unsupported,
                        fmt::format("part {} measures a GPU, and there is none here", part.name));

    const std::string commit = settings.text("commit", builtCommit());
    if (!joinsOnly && commit.empty())
        throw Error(ErrorKind::BadInput, "the build does not know its commit", "give --set commit=HASH");
    if (std::filesystem::exists(path)) joined.insert(joined.begin(), path);
    Json file = joinsOnly ? readHeadline(joined.front()) : headlineFile(placeHere(commit));
    for (const std::string& other : joined)
        joinHeadline(file, readHeadline(other), other); // before anything is measured
    if (file["commit"].get<std::string>().ends_with("+"))
        log("this program was built from sources that no commit has: its values cannot be taken into index.json");
    if (joinsOnly) writeHeadline(path, file);
    for (const HeadlinePart& part : parts) {
        file["parts"][std::string(part.name)] = measurePart(part, given, log);
        writeHeadline(path, file);
    }
    log(fmt::format("parts in {}: {}; tools/bench_index.py --take puts them into the index", path,
                    file["parts"].size()));
    return file;
}

} // namespace kvscope::bench
