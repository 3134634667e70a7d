#include "ui/figures/quality_results.h"

#include "base/error.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace kvscope::ui {
namespace {

using Json = nlohmann::json;

Json documentOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    return Json::parse(text, nullptr, false);
}

const Json* firstRow(const Json& document) {
    if (!document.is_object()) return nullptr;
    const auto rows = document.find("rows");
    return rows != document.end() && rows->is_array() && !rows->empty() ? &rows->front() : nullptr;
}

double number(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_number() ? found->get<double>() : std::nan("");
}

QualityPoint qualityPointOf(const Json& row) {
    QualityPoint point;
    point.method = row.at("method").get<std::string>();
    point.title = row.value("title", point.method);
    point.task = row.at("task").get<std::string>();
    point.pace = row.at("pace").get<std::string>();
    point.context = row.at("context").get<int>();
    if (const Json& settings = row.at("settings"); settings.contains("budget"))
        point.budget = std::atoi(settings.at("budget").get<std::string>().c_str());
    point.density = number(row, "density");
    const Json& right = row.at("right");
    if (right.is_null()) return point;
    point.prompts = right.at("of").get<int>();
    point.right = number(right, "share");
    point.low = number(right, "low");
    point.high = number(right, "high");
    const Json& same = row.at("same_text");
    point.sameText = same.is_null() ? std::nan("") : number(same, "share");
    return point;
}

} // namespace

bool holdsQuality(const std::string& path) {
    const Json document = documentOf(path);
    const Json* const row = firstRow(document);
    return row != nullptr && row->is_object() && row->contains("task") && row->contains("pace");
}

std::vector<QualityPoint> readQuality(const std::string& path) {
    const Json document = documentOf(path);
    std::vector<QualityPoint> points;
    try {
        for (const Json& row : document.at("rows"))
            if (QualityPoint point = qualityPointOf(row); point.prompts > 0) points.push_back(std::move(point));
    } catch (const Json::exception&) {
        throw Error(ErrorKind::BadInput, path + ": a row is not complete",
                    "give a document of kvscope-cli quality --json");
    }
    if (points.empty())
        throw Error(ErrorKind::BadInput, path + ": no cell has a finished prompt",
                    "go on with kvscope-cli quality --resume");
    return points;
}

} // namespace kvscope::ui
