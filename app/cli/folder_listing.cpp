#include "app/cli/folder_listing.h"

#include "app/cli/long_action.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/read/trace_list.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Characters of a text, as a terminal counts most of them.
std::size_t widthOf(const std::string& text) {
    return std::size_t(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// A text that fits into its column: a name can have any length. The JSON document has it whole.
std::string shortened(std::string text) {
    constexpr std::size_t kWidest = 60;
    if (widthOf(text) <= kWidest) return text;
    std::size_t end = 0;
    for (std::size_t shown = 0; end < text.size(); ++end) // up to the first byte of the last character that has room
        if ((static_cast<unsigned char>(text[end]) & 0xC0) != 0x80 && ++shown == kWidest) break;
    return text.substr(0, end) + "…";
}

std::string oneLineOf(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t' || c == '\r'; }, ' ');
    return text;
}

void printTable(const std::vector<ListedTrace>& traces) {
    constexpr std::size_t kColumns = 10;
    using Line = std::array<std::string, kColumns>;
    std::vector<Line> lines{{"FILE", "RUN", "NAME", "METHOD", "MODEL", "ENGINE", "CREATED", "STATUS", "STEPS", "RANK"}};
    for (const bool pinned : {true, false})
        for (const ListedTrace& trace : traces)
            for (const ListedRun& run : trace.runs)
                if (run.pinned == pinned)
                    lines.push_back({trace.file, std::to_string(run.runId), run.name, run.method, run.model, run.engine,
                                     run.createdUtc, run.status,
                                     run.iterations > 0 ? fmt::format("{} iterations", run.iterations)
                                                        : std::to_string(run.decodeSteps()),
                                     run.rank ? std::to_string(*run.rank) : "-"});
    std::array<std::size_t, kColumns> widths{};
    for (Line& line : lines)
        for (std::size_t i = 0; i < kColumns; ++i) {
            line[i] = oneLineOf(std::move(line[i]));
            if (i > 0) line[i] = shortened(std::move(line[i])); // a file's name is needed whole
            if (line[i].empty()) line[i] = "-";
            widths[i] = std::max(widths[i], widthOf(line[i]));
        }
    if (lines.size() > 1)
        for (const Line& line : lines) {
            std::string text;
            for (std::size_t i = 0; i < kColumns; ++i) {
                text += line[i];
                if (i + 1 < kColumns) text.append(widths[i] - widthOf(line[i]) + 2, ' ');
            }
            printOut("{}\n", text);
        }
    for (const ListedTrace& trace : traces) {
        if (!trace.problem.empty()) printOut("{}  unreadable: {}\n", trace.file, trace.problem);
        if (trace.problem.empty() && trace.runs.empty()) printOut("{}  holds no run yet\n", trace.file);
    }
}

Json documentOf(const std::string& folder, int depth, const std::vector<ListedTrace>& traces) {
    Json out{{"kind", "folder"},       {"folder", folder},      {"depth", depth},
             {"files", traces.size()}, {"runs", Json::array()}, {"unreadable", Json::array()}};
    for (const ListedTrace& trace : traces) {
        for (const ListedRun& run : trace.runs)
            out["runs"].push_back({{"file", trace.file},
                                   {"file_bytes", trace.bytes},
                                   {"run_id", run.runId},
                                   {"name", run.name},
                                   {"method", run.method},
                                   {"model", run.model},
                                   {"engine", run.engine.empty() ? Json() : Json(run.engine)},
                                   {"created_utc", run.createdUtc},
                                   {"status", run.status},
                                   {"steps", run.iterations > 0 ? Json() : Json(run.decodeSteps())},
                                   {"iterations", run.iterations > 0 ? Json(run.iterations) : Json()},
                                   {"rank", run.rank ? Json(*run.rank) : Json()},
                                   {"group", run.group.empty() ? Json() : Json(run.group)},
                                   {"pinned", run.pinned}});
        if (!trace.problem.empty()) out["unreadable"].push_back({{"file", trace.file}, {"problem", trace.problem}});
    }
    return out;
}

} // namespace

bool isFolderOfTraces(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored) &&
           !std::filesystem::exists(std::filesystem::path(path) / "config.json", ignored);
}

int listFolder(const std::string& folder, int depth, bool json) {
    std::vector<ListedTrace> traces;
    {
        LongAction action;
        const std::vector<std::string> paths = tracesOfFolder(folder, action.stop(), depth);
        if (paths.empty())
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} is a folder without .kvtrace files{} and without a model's config.json", folder,
                                    depth > 0 ? fmt::format(", also {} levels below", depth) : ""),
                        depth > 0
                            ? "name a folder of traces, a model's folder, or a file"
                            : "name a folder of traces, a model's folder, or a file; --depth looks into subfolders");
        traces.resize(paths.size());
        listTraces(
            paths,
            [&](std::size_t place, ListedTrace trace) {
                trace.file = pathWithin(folder, trace.path);
                traces[place] = std::move(trace);
            },
            action.whole(), action.stop());
    }
    if (json) {
        printOut("{}\n", documentOf(folder, depth, traces).dump(2, ' ', false, Json::error_handler_t::replace));
        return 0;
    }
    printTable(traces);
    std::size_t runs = 0, unreadable = 0;
    for (const ListedTrace& trace : traces) {
        runs += trace.runs.size();
        unreadable += trace.problem.empty() ? 0 : 1;
    }
    printOut("{} {}, {} {}{}\n", traces.size(), traces.size() == 1 ? "file" : "files", runs, runs == 1 ? "run" : "runs",
             unreadable == 0 ? std::string() : fmt::format(", {} unreadable", unreadable));
    return 0;
}

} // namespace kvscope::cli
