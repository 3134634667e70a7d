#include "profiler/read/trace_list.h"

#include "base/error.h"
#include "base/parallel.h"
#include "base/utf8.h"
#include "core/trace/run_meta.h"
#include "profiler/format/run_fact.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/own_views.h"
#include "profiler/read/run_labels.h"
#include "profiler/read/trace_head.h"
#include "profiler/read/trace_reader.h"
#include "profiler/sqlite/page_reader.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <fmt/format.h>
#include <mutex>
#include <unistd.h>

namespace kvscope {
namespace {

std::optional<int> rankIn(std::string_view text) {
    int rank = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), rank);
    return failure == std::errc() && end == text.data() + text.size() && rank >= 0 ? std::optional(rank) : std::nullopt;
}

/// Ends reading without SQLite: the caller reads the trace with SQLite, whose answer then counts.
[[noreturn]] void leaveToSqlite() { throw Error(ErrorKind::Unsupported, "this trace is read with SQLite"); }

/// Where each of these columns is in the table. @throws Error(Unsupported)
template <std::size_t N>
std::array<std::size_t, N> placesOf(const PageReader::Table& table, const std::array<const char*, N>& names) {
    std::array<std::size_t, N> places{};
    for (std::size_t i = 0; i < N; ++i) {
        const auto found = std::find(table.columns.begin(), table.columns.end(), names[i]);
        if (found == table.columns.end()) leaveToSqlite();
        places[i] = std::size_t(found - table.columns.begin());
    }
    return places;
}

std::string textIn(const PageRow& row, std::size_t place) {
    const auto text = row.text(place);
    if (!text || text->size() > std::size_t(kLongestName)) leaveToSqlite();
    return toValidUtf8(*text);
}

ListedRun* findRun(std::vector<ListedRun>& runs, std::optional<std::int64_t> id) {
    for (ListedRun& run : runs)
        if (id && run.runId == *id) return &run;
    return nullptr;
}

void readHealthPages(const PageReader& file, std::vector<ListedRun>& runs) {
    const PageReader::Table& table = *file.find("health");
    const auto places = placesOf<1>(table, {"error"});
    if (!table.rowidFirst) leaveToSqlite();
    file.rows(table, [&](const PageRow& row) {
        const auto error = row.text(places[0]);
        if (findRun(runs, row.rowid) != nullptr && error && !error->empty()) leaveToSqlite();
    });
}

void takeLabels(ListedRun& run, RunLabels labels) {
    if (!labels.name.empty()) run.name = std::move(labels.name);
    run.pinned = labels.pinned;
}

void readMetaPages(const PageReader& file, std::vector<ListedRun>& runs) {
    const PageReader::Table* table = file.find("run_meta");
    if (table == nullptr) return;
    if (!table->withoutRowid || table->columns != std::vector<std::string>{"run_id", "key", "value"}) leaveToSqlite();
    file.rows(*table, [&](const PageRow& row) {
        ListedRun* run = findRun(runs, row.integer(0));
        const auto key = row.text(1), value = row.text(2);
        if (run == nullptr || !key || !value) return;
        if (*key == run_meta::kEngine) run->engine = toValidUtf8(value->substr(0, std::size_t(kLongestName)));
        if (*key == run_meta::kGroup) run->group = toValidUtf8(value->substr(0, std::size_t(kLongestName)));
        if (*key == run_meta::kRank) run->rank = rankIn(*value);
        if (*key == run_meta::kLabels) takeLabels(*run, parseRunLabels(toValidUtf8(*value)));
    });
}

/// The runs of a finished trace, read without SQLite. @throws Error(Unsupported): SQLite must read it
std::vector<ListedRun> readPages(const PageReader& file) {
    if (file.applicationId() != std::uint32_t(trace::kApplicationId) || file.userVersion() < 1 ||
        file.userVersion() > std::uint32_t(trace::kVersion))
        leaveToSqlite();
    for (const char* table : {"run", "health", "prompt", "step", "layer_step", "selection", "token", "text", "span"})
        if (!file.has(table)) leaveToSqlite();
    const PageReader::Table &table = *file.find("run"), &steps = *file.find("step");
    const PageReader::Table *iterations = file.find("iteration"), *pieces = file.find("prompt_piece");
    if (!table.rowidFirst || !steps.rowidFirst || (iterations != nullptr && !iterations->rowidFirst) ||
        (pieces != nullptr && !pieces->rowidFirst))
        leaveToSqlite();
    const auto places = placesOf<5>(table, {"name", "created_utc", "model", "method", "status"});
    std::vector<ListedRun> runs;
    file.rows(table, [&](const PageRow& row) {
        ListedRun run;
        if (row.rowid < 1 || row.rowid > trace::kMaxRuns) leaveToSqlite();
        run.runId = int(row.rowid);
        run.name = textIn(row, places[0]);
        run.createdUtc = textIn(row, places[1]);
        run.model = textIn(row, places[2]);
        run.method = textIn(row, places[3]);
        run.status = textIn(row, places[4]);
        const auto status = RunFact<RunStatus>::parse(run.status).value();
        if (!status || *status == RunStatus::Running) leaveToSqlite();
        const auto afterLast = [&](const PageReader::Table& numbered) {
            const auto newest =
                file.lastRowid(numbered, trace::stepKey(run.runId, 0), trace::stepKey(run.runId, trace::kMaxStep));
            return newest ? trace::stepOf(*newest, 0) + 1 : 0;
        };
        run.steps = afterLast(steps);
        // Which of the steps only read prompts, their phases say: a look at all of them, which SQLite does as fast.
        if (pieces != nullptr && file.lastRowid(*pieces, trace::tokenKey(run.runId, 0, 0, 0),
                                                trace::tokenKey(run.runId, trace::kMaxStep, 1023, 1023)))
            leaveToSqlite();
        if (iterations != nullptr) run.iterations = afterLast(*iterations);
        runs.push_back(std::move(run));
    });
    readHealthPages(file, runs);
    readMetaPages(file, runs);
    if (file.changed()) leaveToSqlite();
    return runs;
}

std::vector<ListedRun> readWithSqlite(const std::string& path) {
    std::vector<ListedRun> runs;
    for (const RunRow& row : TraceReader(path).runs()) {
        ListedRun run;
        run.runId = row.runId;
        run.name = row.name;
        run.createdUtc = row.createdUtc;
        run.model = row.model;
        run.method = row.method;
        run.engine = row.metaOr(run_meta::kEngine);
        run.group = row.metaOr(run_meta::kGroup);
        run.rank = rankIn(row.metaOr(run_meta::kRank));
        run.status = row.stale ? "interrupted" : row.status.text();
        run.steps = row.steps;
        run.promptSteps = std::max(row.steps - row.prompts.decodesBelow(row.steps), 1);
        run.iterations = row.iterations;
        takeLabels(run, labelsOf(row));
        runs.push_back(std::move(run));
    }
    return runs;
}

std::vector<ListedRun> readRuns(const std::string& path, std::int64_t& bytes) {
    try {
        const PageReader file(path);
        bytes = std::int64_t(file.bytes());
        return readPages(file);
    } catch (const Error&) { // live, damaged or unusual
        namespace fs = std::filesystem;
        std::error_code failure;
        const fs::file_status status = fs::status(path, failure);
        if (fs::is_regular_file(status)) {
            bytes = std::int64_t(fs::file_size(path, failure));
            if (access(path.c_str(), R_OK) == 0 && bytes == 0)
                throw Error(ErrorKind::BadInput, fmt::format("{} is empty: nothing was recorded", path),
                            "record it again");
            // A file of another tool is not imported for a list.
            if (access(path.c_str(), R_OK) == 0 && !isTraceFile(path))
                throw Error(ErrorKind::BadInput, fmt::format("{} is not a KVScope trace", path),
                            "choose a file that kvscope-cli run --trace has written");
        }
        return readWithSqlite(path);
    }
}

} // namespace

namespace {

/// Adds the traces of one folder to `paths` and its subfolders to `below`. @return why the folder cannot be read
std::error_code readFolder(const std::string& folder, const std::stop_token& stop, std::vector<std::string>& paths,
                           std::vector<std::string>* below) {
    namespace fs = std::filesystem;
    std::error_code failure;
    fs::directory_iterator entry(folder, failure);
    for (const fs::directory_iterator end; !failure && entry != end; entry.increment(failure)) {
        throwIfCancelled(stop);
        const std::string path = entry->path().string();
        std::error_code ignored;
        const bool isFolder = entry->is_directory(ignored);
        if (isFolder && below != nullptr && !entry->is_symlink(ignored)) below->push_back(path);
        if (path.ends_with(".kvtrace") ? !isFolder : entry->is_regular_file(ignored) && isTraceFile(path))
            paths.push_back(path);
    }
    return failure;
}

} // namespace

std::vector<std::string> tracesOfFolder(const std::string& folder, const std::stop_token& stop, int depth) {
    std::vector<std::string> paths, level{folder};
    for (int deep = 0; !level.empty(); ++deep) {
        std::vector<std::string> below;
        for (const std::string& at : level) {
            const std::error_code failure = readFolder(at, stop, paths, deep < depth ? &below : nullptr);
            if (!failure) continue;
            if (deep == 0)
                throw Error(ErrorKind::Storage, fmt::format("the folder {} cannot be read: {}", at, failure.message()),
                            "check its name, its permissions and the disk");
            paths.push_back(at);
        }
        level = std::move(below);
    }
    std::sort(paths.begin(), paths.end());
    return paths;
}

std::string pathWithin(const std::string& folder, const std::string& path) {
    return std::filesystem::path(path).lexically_relative(folder).string();
}

ListedTrace listTrace(const std::string& path) {
    ListedTrace trace;
    trace.path = path;
    trace.file = std::filesystem::path(path).filename().string();
    try {
        trace.runs = readRuns(path, trace.bytes);
    } catch (const Error& error) {
        trace.problem = oneLine(error);
    } catch (const std::exception& error) {
        trace.problem = error.what();
    }
    return trace;
}

void listTraces(const std::vector<std::string>& paths,
                const std::function<void(std::size_t place, ListedTrace trace)>& found, const Progress& progress,
                const std::stop_token& stop) {
    std::mutex mutex; // of `found`
    forEachParallel(paths.size(), 0, "reading traces", progress, stop, [&](std::size_t place) {
        ListedTrace trace = listTrace(paths[place]);
        const std::lock_guard lock(mutex);
        found(place, std::move(trace));
    });
}

} // namespace kvscope
