#include "ui/figures/served_points.h"

#include "base/error.h"
#include "base/json_reading.h"

#include <charconv>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <limits>

namespace kvscope::ui {
namespace {

using Json = nlohmann::json;

std::string textOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

double numberIn(const Json& object, const char* key) {
    const Json& value = member(object, key);
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// The point of a result, which serving_report.h of the command line writes.
ServedPoint servedPointOf(const Json& result) {
    ServedPoint point;
    point.measured = member(result, "measured") != Json(false);
    point.ttftMs = numberIn(member(result, "ttft_ms"), "mean");
    point.tbtMs = numberIn(member(result, "tbt_ms"), "mean");
    point.tbtP99Ms = numberIn(member(result, "tbt_ms"), "p99_interpolated");
    point.tokensPerSecond = numberIn(result, "output_tokens_per_s");
    point.bytesLoaded = numberIn(result, "loaded_bytes") / numberIn(result, "iterations");
    return point;
}

/// The rung, the seed and the rate of a key "measured +offload seed 1 rate 2.5"; false for the key of something else.
bool readKey(const std::string& key, ServedPoint& point) {
    const std::size_t begin = key.find(' '), end = key.find(" seed "), rate = key.find(" rate ");
    const std::string kind = key.substr(0, begin);
    if (begin == std::string::npos || end == std::string::npos || rate == std::string::npos || end <= begin ||
        rate <= end + 6)
        return false;
    if (kind != "measured" && kind != "simulated") return false;
    point.series = key.substr(begin + 1, end - begin - 1);
    char* stop = nullptr;
    if (int seed = 0; std::from_chars(key.data() + end + 6, key.data() + rate, seed).ec == std::errc())
        point.seed = seed; // a seed above 31 bits is not told from that of another file
    const std::string number = key.substr(rate + 6);
    point.rate = std::strtod(number.c_str(), &stop);
    return stop != number.c_str() && *stop == '\0' && point.rate > 0;
}

} // namespace

bool holdsServedPoints(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string line;
    std::getline(file, line);
    if (member(parseJson(line), "settings").is_object()) return true;
    const Json document = parseJson(textOf(path));
    return member(document, "points").is_array() && member(document, "workload").is_string();
}

std::vector<ServedPoint> readServedPoints(const std::string& path) {
    std::vector<ServedPoint> points;
    const std::string text = textOf(path);
    const Json document = parseJson(text);
    for (const Json& one : member(document, "points")) {
        ServedPoint point = servedPointOf(one);
        point.rate = numberIn(one, "rate");
        const Json& method = member(document, "method");
        point.series = method.is_string() ? method.get<std::string>() : "load";
        if (point.rate > 0) points.push_back(std::move(point));
    }
    for (std::size_t begin = 0; document.is_discarded() && begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const Json line = parseJson(std::string_view(text).substr(begin, end - begin));
        begin = end + 1;
        const Json &key = member(line, "key"), &result = member(member(line, "point"), "result");
        if (!key.is_string() || !result.is_object()) continue; // settings, or costs
        ServedPoint point = servedPointOf(result);
        point.holds = member(member(line, "point"), "broken") == Json("");
        if (readKey(key.get<std::string>(), point)) points.push_back(std::move(point));
    }
    if (points.empty())
        throw Error(ErrorKind::BadInput, path + ": there are no points of a load",
                    "give the file of kvscope-cli load --rungs ... --resume FILE, or the document of load --json");
    return points;
}

} // namespace kvscope::ui
