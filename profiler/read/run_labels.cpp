#include "profiler/read/run_labels.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/own_views.h"
#include "profiler/read/trace_reader.h"
#include "profiler/sqlite/sqlite.h"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope {
namespace {

// This statement is also in resources/sql/schema.sql.
constexpr const char* kMetaTable = "CREATE TABLE IF NOT EXISTS run_meta (run_id INTEGER NOT NULL, key TEXT NOT NULL,"
                                   " value TEXT NOT NULL, PRIMARY KEY (run_id, key)) STRICT, WITHOUT ROWID";

std::string wordOf(const nlohmann::json& object, const char* key) {
    const nlohmann::json& value = member(object, key);
    return value.is_string() ? value.get<std::string>() : std::string();
}

/// Asks the system first: SQLite would find out only after it has made a journal, and opening must not create a file.
Connection openForLabels(const std::string& path) {
    if (access(path.c_str(), F_OK) != 0)
        throw Error(ErrorKind::Storage, fmt::format("the trace {} is not there", path), "check its name");
    if (access(path.c_str(), W_OK) != 0)
        throw Error(ErrorKind::Storage,
                    fmt::format("the labels were not kept: {} cannot be written: {}", path,
                                errno == EROFS ? "its file system is read-only" : "permission denied"),
                    "copy the trace to a folder of yours and label the copy");
    Connection connection(path, Connection::Mode::ReadWrite);
    if (connection.integer("PRAGMA application_id") != trace::kApplicationId)
        throw Error(ErrorKind::Storage, fmt::format("{} is not a KVScope trace", path), "open a .kvtrace file");
    return connection;
}

} // namespace

RunLabels parseRunLabels(const std::string& json) {
    const nlohmann::json object = parseJson(json);
    RunLabels labels;
    labels.name = wordOf(object, "name");
    labels.note = wordOf(object, "note");
    labels.pinned = member(object, "pinned").is_boolean() && object.at("pinned").get<bool>();
    if (const nlohmann::json& tags = member(object, "tags"); tags.is_array())
        for (const nlohmann::json& tag : tags)
            if (tag.is_string()) labels.tags.push_back(tag.get<std::string>());
    return labels;
}

RunLabels labelsOf(const RunRow& run) { return parseRunLabels(run.metaOr(run_meta::kLabels)); }

std::string toJson(const RunLabels& labels) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    if (!labels.name.empty()) object["name"] = labels.name;
    if (!labels.note.empty()) object["note"] = labels.note;
    if (!labels.tags.empty()) object["tags"] = labels.tags;
    if (labels.pinned) object["pinned"] = true;
    return object.empty() ? std::string()
                          : object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void setLabels(const std::string& path, int runId, const RunLabels& labels) {
    RunLabels kept = labels;
    std::ranges::sort(kept.tags);
    const auto duplicates = std::ranges::unique(kept.tags);
    kept.tags.erase(duplicates.begin(), duplicates.end());
    const std::string text = toJson(kept);
    if (text.size() > std::size_t(kLongestName))
        throw Error(ErrorKind::BadInput,
                    fmt::format("the labels have {} bytes, and {} are kept", text.size(), kLongestName),
                    "write a shorter note");
    Connection connection = openForLabels(path);
    connection.execute("BEGIN IMMEDIATE");
    Statement run(connection, "SELECT 1 FROM run WHERE run_id=?");
    run.bindAll(runId);
    if (!run.step())
        throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", path, runId),
                    "kvscope-cli info lists its runs");
    connection.execute(kMetaTable);
    if (text.empty())
        Statement(connection, "DELETE FROM run_meta WHERE run_id=? AND key=?")
            .bindAll(runId, std::string_view(run_meta::kLabels))
            .run();
    else
        Statement(connection, "INSERT OR REPLACE INTO run_meta(run_id, key, value) VALUES (?, ?, ?)")
            .bindAll(runId, std::string_view(run_meta::kLabels), std::string_view(text))
            .run();
    connection.execute("COMMIT"); // without it, closing rolls back
}

} // namespace kvscope
