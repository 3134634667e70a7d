#include "ui/figures/eval_results.h"

#include "kernels/base/error.h"

#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvscope::ui {
namespace {

using Json = nlohmann::json;

std::optional<double> number(const Json& object, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
        if (const auto found = object.find(key); found != object.end() && found->is_number())
            return found->get<double>();
    return std::nullopt;
}

/// k_q / k itself, or the blocks of the parameters that make it.
std::optional<double> shareOf(const Json& entry) {
    if (const auto share = number(entry, {"kq_over_k", "query_share"})) return share;
    for (const char* key : {"parameters", "params", "settings"})
        if (const auto values = entry.find(key); values != entry.end() && values->is_object()) {
            const auto chosen = number(*values, {"select_blocks"}), total = number(*values, {"total_blocks"});
            if (chosen && total && *total > 0) return *chosen / *total;
        }
    return std::nullopt;
}

} // namespace

std::vector<EvalPoint> readEvalResults(const std::string& path) {
    const auto wrong = [&](const std::string& why) {
        return Error(ErrorKind::BadInput, path + ": " + why,
                     "give a document of kvscope-cli eval --json: a list \"results\" whose entries have method, score, "
                     "tokens_per_s and parameters (or kq_over_k)");
    };
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const Json document = Json::parse(text, nullptr, false);
    if (document.is_discarded()) throw wrong("this is neither a trace nor JSON");
    const Json* list = &document;
    if (document.is_object()) {
        const auto results = document.find("results");
        if (results == document.end()) throw wrong("there is no list \"results\"");
        list = &*results;
    }
    if (!list->is_array() || list->empty()) throw wrong("there are no results");
    std::vector<EvalPoint> points;
    for (const Json& entry : *list) {
        if (!entry.is_object()) throw wrong("a result is no object");
        const auto share = shareOf(entry), score = number(entry, {"score"});
        if (!score) throw wrong("a result has no score");
        if (!share) continue; // a method without a query-aware part is no point of this figure
        const auto speed = number(entry, {"tokens_per_s"});
        points.push_back({entry.value("method", std::string("?")), *share, *score,
                          speed.value_or(std::numeric_limits<double>::quiet_NaN())});
    }
    return points;
}

} // namespace kvscope::ui
