#include "profiler/merge/merge.h"

#include "base/error.h"
#include "base/whole_file.h"
#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"
#include "profiler/merge/clock_offset.h"
#include "profiler/merge/rank_group.h"
#include "profiler/merge/run_copy.h"
#include "profiler/read/trace_head.h"
#include "profiler/read/trace_list.h"
#include "profiler/read/trace_reader.h"
#include "profiler/store/trace_schema.h"
#include "profiler/store/writer_lock.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

struct Source {
    std::string path;
    std::vector<std::size_t> runs; // places in Merge::rows
};

/// All runs of the inputs, and what becomes of each.
struct Merge {
    std::vector<Source> sources;
    std::vector<RunRow> rows;
    std::vector<RankClock> clocks;   // [run] only of ranks
    std::vector<RunCopy> copies;     // [run]
    std::vector<ClockOffset> shifts; // [run]
    std::vector<int> ranks;          // [run]
    std::vector<std::string> remarks;
};

bool isSameFile(const std::string& a, const std::string& b) {
    std::error_code ignored;
    return fs::equivalent(a, b, ignored);
}

void readSource(const std::string& path, const std::string& out, Merge& merge) {
    if (isSameFile(path, out))
        throw Error(ErrorKind::BadInput, fmt::format("{} would be merged into itself", path),
                    "give the merged trace another name");
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored) && !isTraceFile(path) && std::ifstream(path)) // else the reader says why
        throw Error(ErrorKind::BadInput, fmt::format("{} is not a KVScope trace", path),
                    "merge .kvtrace files; kvscope-cli import makes them of files of other tools");
    const TraceReader reader(path);
    Source source{path, {}};
    for (RunRow& row : reader.runs()) {
        source.runs.push_back(merge.rows.size());
        const int rank = numberOf(row, run_meta::kRank, 1 << 20, -1);
        merge.ranks.push_back(rank);
        merge.clocks.push_back(rank < 0 ? RankClock{} : readClock(reader, row));
        merge.rows.push_back(std::move(row));
    }
    merge.sources.push_back(std::move(source));
}

void readSources(const std::vector<std::string>& inputs, const std::string& out, const Progress& progress,
                 const std::stop_token& stop, Merge& merge) {
    std::vector<std::pair<std::string, bool>> paths; // and whether the path comes from a folder
    for (const std::string& input : inputs) {
        std::error_code ignored;
        if (!fs::is_directory(input, ignored))
            paths.emplace_back(input, false);
        else
            for (const std::string& path : tracesOfFolder(input, stop))
                if (!isSameFile(path, out)) paths.emplace_back(path, true);
    }
    for (std::size_t i = 0; i < paths.size(); ++i) {
        throwIfCancelled(stop);
        report(progress, 0.2 * double(i) / double(paths.size()), "reading what the traces say");
        const auto& [path, ofFolder] = paths[i];
        if (std::any_of(merge.sources.begin(), merge.sources.end(),
                        [&path = path](const Source& source) { return isSameFile(source.path, path); }))
            continue;
        try {
            readSource(path, out, merge);
        } catch (const Error& error) {
            if (!ofFolder || error.kind == ErrorKind::Cancelled) throw;
            merge.remarks.push_back(
                fmt::format("{} is left out: {}", fs::path(path).filename().string(), error.what()));
        }
    }
    if (merge.rows.empty())
        throw Error(ErrorKind::BadInput, "there is no run to merge", "name traces, or folders with .kvtrace files");
    if (merge.rows.size() > std::size_t(trace::kMaxRuns))
        throw Error(ErrorKind::BadInput,
                    fmt::format("there are {} runs to merge, and a trace holds {}", merge.rows.size(), trace::kMaxRuns),
                    "merge fewer traces at once");
}

/// Places the ranks of a group on one clock. The rank whose run began first keeps its times.
void alignClocks(const RankGroup& group, Merge& merge) {
    const std::size_t reference = group.ranks.front().run;
    std::int64_t earliest = 0;
    for (const RankedRun& ranked : group.ranks) {
        ClockOffset& shift = merge.shifts[ranked.run];
        if (ranked.run != reference)
            shift = offsetBetween(merge.clocks[reference], merge.clocks[ranked.run], !group.otherRequests);
        else
            shift.by = "reference";
        const std::string who = fmt::format("rank {} of group {}", ranked.rank, group.name);
        const int referenceRank = group.ranks.front().rank;
        if (shift.by.empty())
            merge.remarks.push_back(
                fmt::format("{} has no clock in common with rank {}: its times are not shifted", who, referenceRank));
        if (!shift.doubt.empty())
            merge.remarks.push_back(fmt::format("{} beside rank {}: {}", who, referenceRank, shift.doubt));
        earliest = std::min(earliest, shift.addNs);
    }
    for (const RankedRun& ranked : group.ranks)
        if (!merge.shifts[ranked.run].by.empty()) merge.shifts[ranked.run].addNs -= earliest;
    for (const RankedRun& ranked : group.ranks) {
        ClockOffset& shift = merge.shifts[ranked.run];
        if (shift.by == "reference") shift.by = group.ranks.size() > 1 ? shift.by : "";
    }
}

/// Numbers of KV heads and layers as the whole model counts them.
void numberParts(const RankGroup& group, Merge& merge) {
    int heads = 0, layers = 0;
    for (const RankedRun& ranked : group.ranks) {
        const RunRow& row = merge.rows[ranked.run];
        RunCopy& copy = merge.copies[ranked.run];
        copy.headFirst = numberOf(row, run_meta::kHeadFirst, trace::kMaxKvHeads, 0);
        copy.layerFirst = numberOf(row, run_meta::kLayerFirst, trace::kMaxLayers, 0);
        if (copy.headFirst + row.kvHeads > trace::kMaxKvHeads || copy.layerFirst + row.layers > trace::kMaxLayers)
            throw Error(ErrorKind::BadInput,
                        fmt::format("rank {} of group {} has KV heads from {} and layers from {} on, more than a trace "
                                    "can number",
                                    ranked.rank, group.name, copy.headFirst, copy.layerFirst),
                        "correct the keys head_first and layer_first of run_meta");
        heads = std::max(heads, copy.headFirst + row.kvHeads);
        layers = std::max(layers, copy.layerFirst + row.layers);
    }
    for (const RankedRun& ranked : group.ranks) {
        const RunRow& row = merge.rows[ranked.run];
        RunCopy& copy = merge.copies[ranked.run];
        copy.kvHeads = heads;
        copy.layers = layers;
        // as many query heads to a KV head as before
        copy.queryHeads = row.kvHeads > 0 && row.queryHeads % row.kvHeads == 0 ? row.queryHeads / row.kvHeads * heads
                                                                               : row.queryHeads;
        copy.meta[run_meta::kHeadRange] = fmt::format("{}..{}", ranked.heads.first, ranked.heads.last);
    }
}

/// Adds a remark for every rank that is in two files: a rank is one process, which writes one file.
void findDoubleRanks(const std::vector<RankGroup>& groups, Merge& merge) {
    std::map<std::size_t, const Source*> sourceOf; // [run]
    for (const Source& source : merge.sources)
        for (const std::size_t run : source.runs) sourceOf[run] = &source;
    std::map<std::pair<std::string, int>, const Source*> first; // [group, rank]
    for (const RankGroup& group : groups)
        for (const RankedRun& ranked : group.ranks) {
            const Source* source = sourceOf[ranked.run];
            const auto [found, isNew] = first.emplace(std::pair(group.name, ranked.rank), source);
            if (isNew || found->second == source || found->second == nullptr) continue;
            merge.remarks.push_back(
                fmt::format("rank {} of group {} is in {} and in {}: they are kept as different runs of that rank",
                            ranked.rank, group.name, fs::path(found->second->path).filename().string(),
                            fs::path(source->path).filename().string()));
            found->second = nullptr; // the remark is made once
        }
}

/// Decides about every run: its number, name, shift and keys.
void plan(Merge& merge) {
    merge.copies.resize(merge.rows.size());
    merge.shifts.resize(merge.rows.size());
    std::vector<std::size_t> order;
    const std::vector<RankGroup> groups = rankGroups(merge.rows);
    findDoubleRanks(groups, merge);
    for (const RankGroup& group : groups) {
        for (const RankedRun& ranked : group.ranks) order.push_back(ranked.run);
        if (const std::string missing = missingSentence(group); !missing.empty()) merge.remarks.push_back(missing);
        alignClocks(group, merge);
        numberParts(group, merge);
    }
    for (std::size_t i = 0; i < merge.rows.size(); ++i)
        if (merge.ranks[i] < 0) order.push_back(i);
    for (std::size_t place = 0; place < order.size(); ++place) {
        const std::size_t i = order[place];
        RunCopy& copy = merge.copies[i];
        const RunRow& row = merge.rows[i];
        copy.from = row.runId;
        copy.to = int(place) + 1;
        copy.name = row.name;
        const std::string behind = fmt::format(", rank {}", merge.ranks[i]);
        if (merge.ranks[i] >= 0 && !row.name.ends_with(behind)) copy.name += behind;
        if (merge.ranks[i] < 0) {
            copy.kvHeads = row.kvHeads;
            copy.layers = row.layers;
            copy.queryHeads = row.queryHeads;
            continue;
        }
        const ClockOffset& shift = merge.shifts[i];
        copy.addNs = shift.addNs;
        if (!shift.by.empty()) {
            nlohmann::json fact{{"added_ns", shift.addNs}, {"error_ns", shift.errorNs}, {"by", shift.by}};
            if (!shift.doubt.empty()) fact["doubt"] = shift.doubt;
            copy.meta[run_meta::kClockOffset] = fact.dump();
        }
        if (const std::string& clocks = row.metaOr(run_meta::kClocks); !clocks.empty())
            copy.meta[run_meta::kClocks] = shiftedClocks(clocks, shift.addNs);
    }
    for (const Source& source : merge.sources)
        for (const std::size_t i : source.runs)
            merge.copies[i].meta[run_meta::kMergedFrom] =
                fmt::format("{}:{}", fs::path(source.path).filename().string(), merge.rows[i].runId);
}

} // namespace

MergeResult mergeTraces(const std::vector<std::string>& inputs, const std::string& out, bool overwrite,
                        const Progress& progress, const std::stop_token& stop) {
    std::error_code ignored;
    if (fs::exists(out, ignored) && !overwrite)
        throw Error(ErrorKind::BadInput, fmt::format("{} exists", out), "choose another name or add --overwrite");
    const WriterLock lock(out); // the file may be a trace that another program is recording
    if (fs::exists(out, ignored)) refuseWhileWritten(out, lock.tookOver() ? Heartbeat::IsOver : Heartbeat::Counts);
    Merge merge;
    readSources(inputs, out, progress, stop, merge);
    plan(merge);

    WholeFile file(out);
    {
        std::atomic<bool> cancelled = false;
        const std::stop_callback onStop(stop, [&] { cancelled = true; });
        Connection connection(file.aside(), Connection::Mode::ReadWrite, out);
        connection.setInterrupt(&cancelled);
        trace::createSchema(connection);
        connection.execute("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536");
        std::size_t done = 0;
        for (const Source& source : merge.sources) {
            throwIfCancelled(stop);
            report(progress, 0.2 + 0.8 * double(done++) / double(merge.sources.size()), "copying runs");
            std::vector<RunCopy> copies;
            for (const std::size_t i : source.runs) copies.push_back(merge.copies[i]);
            copyRuns(connection, source.path, copies);
        }
        connection.setInterrupt(nullptr);
        // What a trace is when its recording ended: one file without companions.
        connection.execute("PRAGMA journal_mode=DELETE");
    }
    if (const std::string problem = file.appear(); !problem.empty())
        throw Error(ErrorKind::Storage, fmt::format("{} {}", out, problem), "choose another place");

    MergeResult result;
    result.remarks = std::move(merge.remarks);
    for (const Source& source : merge.sources)
        for (const std::size_t i : source.runs)
            result.runs.push_back({merge.copies[i].to, fs::path(source.path).filename().string(), merge.copies[i].name,
                                   merge.rows[i].runId, merge.ranks[i], merge.copies[i].addNs, merge.shifts[i].errorNs,
                                   merge.shifts[i].by});
    std::sort(result.runs.begin(), result.runs.end(),
              [](const MergedRun& a, const MergedRun& b) { return a.runId < b.runId; });
    return result;
}

} // namespace kvscope
