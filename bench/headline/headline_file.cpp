#include "bench/headline/headline_file.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "base/text_file.h"
#include "base/whole_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <ostream>
#include <sstream>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kHeadlineFormat = 1;
constexpr std::array kSameInAllParts{"machine", "driver", "commit"};

} // namespace

Json headlineFile(const HeadlinePlace& place) {
    return {{"format", kHeadlineFormat},
            {"machine", place.machine},
            {"driver", place.driver},
            {"commit", place.commit},
            {"parts", Json::object()}};
}

Json readHeadline(const std::string& path) {
    const std::string text = readTextFile(path, "the headline file");
    const Json file = parseJson(text).is_discarded() ? Json() : Json::parse(text); // rows in their order
    bool whole = file.is_object() && file.contains("format") && file["format"] == kHeadlineFormat &&
                 file.contains("parts") && file["parts"].is_object();
    for (const char* key : kSameInAllParts) whole = whole && file.contains(key) && file[key].is_string();
    if (!whole)
        throw Error(ErrorKind::BadInput, fmt::format("{} is not a file of `kvscope-bench headline`", path),
                    "name one with out= or join=");
    return file;
}

void joinHeadline(Json& headline, const Json& other, std::string_view from) {
    for (const char* key : kSameInAllParts)
        if (headline[key] != other[key])
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} has parts of another {}: {} there, {} here", from, key,
                                    shownJson(nlohmann::json(other[key])), shownJson(nlohmann::json(headline[key]))),
                        "parts of one file are measured on one machine, with one driver and one build; name another "
                        "file with out=");
    for (const auto& [name, part] : other["parts"].items()) headline["parts"][name] = part;
}

Json rowsOfRuns(const std::vector<Json>& runs) {
    Json out = Json::object();
    for (const Json& run : runs)
        for (const auto& [row, values] : run.items())
            for (const auto& [of, value] : values.items()) {
                Json& all = out[row][of];
                if (value.is_string() || all.is_string()) {
                    if (!all.is_string()) all = value;
                } else if (value.is_array()) {
                    for (const Json& each : value) all.push_back(each);
                } else {
                    all.push_back(value);
                }
            }
    for (const auto& [row, values] : out.items())
        for (const auto& [of, value] : values.items()) {
            bool whole = value.is_string() || value.is_array();
            if (value.is_array())
                for (const Json& each : value) whole = whole && each.is_number() && std::isfinite(each.get<double>());
            for (const Json& run : runs)
                whole = whole && run.contains(row) && run[row].contains(of) && !run[row][of].empty();
            if (!whole) throw Error(ErrorKind::BadInput, fmt::format("a run has no value of '{}' in row {}", of, row));
        }
    return out;
}

void writeHeadline(const std::string& path, const Json& headline) {
    const std::string why = writeWholeFile(path, [&](std::ostream& out) { out << headline.dump(1) << '\n'; });
    if (!why.empty()) throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: {}", path, why));
}

Json clocksOf(const std::string& lines) {
    constexpr std::array kNames{"sm_mhz", "watts", "degrees"};
    constexpr double kBusy = 50; // per cent: below it the GPU waits, and its clock says nothing about what was measured
    std::array<std::vector<double>, kNames.size()> busy;
    std::istringstream text(lines);
    for (std::string line; std::getline(text, line);) {
        double share = 0;
        std::array<double, kNames.size()> values{};
        if (std::sscanf(line.c_str(), "%lf, %lf, %lf, %lf", &share, &values[0], &values[1], &values[2]) != 4) continue;
        if (share < kBusy) continue;
        for (std::size_t i = 0; i < values.size(); ++i) busy[i].push_back(values[i]);
    }
    if (busy[0].empty()) return nullptr;
    Json out;
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        std::sort(busy[i].begin(), busy[i].end());
        out[kNames[i]] = {
            {"least", busy[i].front()}, {"median", busy[i][busy[i].size() / 2]}, {"most", busy[i].back()}};
    }
    return out;
}

} // namespace kvscope::bench
