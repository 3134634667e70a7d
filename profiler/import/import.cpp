#include "profiler/import/import.h"

#include "base/error.h"
#include "base/whole_file.h"
#include "profiler/import/timeline_builder.h"
#include "profiler/store/trace_store.h"

#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeadBytes = 4096;
constexpr double kReadingShare = 0.6; // share of the progress bar for reading; the rest is for sorting and writing

std::string folderOf(const std::string& path) {
    const fs::path folder = fs::path(path).parent_path();
    return folder.empty() ? "." : folder.string();
}

std::vector<std::string> sentencesOf(const ImportLosses& losses) {
    std::vector<std::string> out;
    const auto say = [&](std::int64_t count, const char* one, const char* many) {
        if (count > 0) out.push_back(fmt::format("{} {}", count, count == 1 ? one : many));
    };
    say(losses.untimed, "event had no usable time and was left out", "events had no usable time and were left out");
    say(losses.negative, "duration below zero was taken as zero", "durations below zero were taken as zero");
    say(losses.unclosed, "range had no end of its own and ends with its parent or the trace",
        "ranges had no end of their own and end with their parent or the trace");
    say(losses.unopened, "end of a range had no beginning and was left out",
        "ends of ranges had no beginning and were left out");
    say(losses.unbound, "end of a flow met no span and was left out", "ends of flows met no span and were left out");
    say(losses.tooDeep, "span is nested too deep and lies on its parent",
        "spans are nested too deep and lie on their parents");
    say(losses.unknownKind, "event was of a kind that has no place on a timeline",
        "events were of kinds that have no place on a timeline");
    say(losses.longArgs, "span had arguments too long to keep", "spans had arguments too long to keep");
    return out;
}

/// aside: where the trace lies until it is complete; `out` is its name in errors.
ImportResult convert(const ImportFormat& format, const std::string& path, const std::string& aside,
                     const std::string& out, const Progress& progress, const std::stop_token& stop) {
    const auto part = [&](double from, double to) -> Progress {
        if (!progress) return {};
        return [&progress, from, to](double fraction, std::string_view what) {
            progress(from + (to - from) * fraction, what);
        };
    };
    TimelineBuilder timeline(folderOf(out));
    const ImportedFacts facts = format.read(path, timeline, part(0, kReadingShare), stop);
    if (timeline.empty())
        throw Error(ErrorKind::BadInput, fmt::format("{} holds no event with a time: there is nothing to show", path),
                    fmt::format("record it again; it was read as {}", format.title));
    {
        TraceStore store(aside, false, out); // an empty file so far
        RunInfo info;
        info.name = fs::path(path).filename().string();
        info.method = info.backend = kImported;
        info.device = facts.device;
        info.linkTiming = Timing::Measured;
        info.knows = Knowledge::nothing(); // the trace knows spans, counters and flows alone
        store.beginRun(info, RecordLevel::Counters);
        store.commit();
        store.finish();
    }
    const auto written = timeline.write(aside, out, facts.originNs, part(kReadingShare, 1), stop);

    ImportResult result;
    result.source = facts.source;
    result.spans = written.spans;
    result.counters = written.counters;
    result.flows = written.flows;
    result.remarks = sentencesOf(timeline.losses());
    result.remarks.insert(result.remarks.end(), facts.remarks.begin(), facts.remarks.end());
    result.status = "imported from " + facts.source;
    for (const std::string& remark : result.remarks) result.status += "; " + remark;
    const nlohmann::ordered_json parameters{
        {"imported_from", path}, {"format", format.title}, {"origin_ns", written.originNs}};
    Connection connection(aside, Connection::Mode::ReadWrite, out);
    connection.execute("PRAGMA synchronous=OFF");
    Statement update(connection, "UPDATE run SET status=?, status_message=?, params_json=?,"
                                 " created_utc=coalesce(nullif(?, ''), created_utc)");
    const std::string text = parameters.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    update
        .bindAll(std::string_view(nameOf(RunStatus::Finished)), std::string_view(result.status), std::string_view(text),
                 std::string_view(facts.recordedUtc))
        .run();
    return result;
}

} // namespace

const ImportFormat* findImportFormat(const std::string& path) {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return nullptr;
    std::array<char, kHeadBytes> bytes;
    std::ifstream file(path, std::ios::binary);
    file.read(bytes.data(), std::streamsize(bytes.size()));
    const std::string_view head(bytes.data(), std::size_t(file.gcount()));
    for (const ImportFormat& format : importFormats())
        if (format.recognises(path, head)) return &format;
    return nullptr;
}

ImportResult importTrace(const std::string& path, const std::string& out, const Progress& progress,
                         const std::stop_token& stop) {
    std::error_code ignored;
    if (!fs::exists(path, ignored))
        throw Error(ErrorKind::Storage, fmt::format("there is no file {}", path), "check its name");
    if (!fs::is_regular_file(path, ignored))
        throw Error(ErrorKind::Storage, fmt::format("{} is not a file", path), "choose a file to import");
    if (access(path.c_str(), R_OK) != 0)
        throw Error(ErrorKind::Storage, fmt::format("{} cannot be read: permission denied", path),
                    "change its permissions");
    if (fs::file_size(path, ignored) == 0)
        throw Error(ErrorKind::BadInput, fmt::format("{} is empty", path), "record or copy it again");
    if (fs::equivalent(path, out, ignored))
        throw Error(ErrorKind::BadInput, fmt::format("{} cannot be converted into itself", path),
                    "give the trace another name");
    const ImportFormat* format = findImportFormat(path);
    if (!format) {
        std::vector<const char*> titles;
        for (const ImportFormat& known : importFormats()) titles.push_back(known.title);
        throw Error(ErrorKind::BadInput, fmt::format("{} is of no format that can be imported", path),
                    fmt::format("choose a file of one of these: {}", fmt::join(titles, ", ")));
    }
    const WriterLock lock(out); // the file may be a trace that another program is recording
    if (fs::exists(out, ignored)) refuseWhileWritten(out, lock.tookOver() ? Heartbeat::IsOver : Heartbeat::Counts);
    WholeFile whole(out);
    ImportResult result = convert(*format, path, whole.aside(), out, progress, stop);
    if (const std::string failure = whole.appear(); !failure.empty())
        throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: {}", out, failure),
                    "choose a folder you may write to");
    return result;
}

} // namespace kvscope
