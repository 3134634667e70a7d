#include "ui/figures/eval_results.h"

#include "base/error.h"

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

/// The share k_q / k of a row: as the row states it, or else from select_blocks and total_blocks of its parameters.
std::optional<double> shareOf(const Json& entry) {
    if (const auto share = number(entry, {"k_q_share", "kq_over_k"})) return share;
    for (const char* key : {"parameters", "params", "settings"})
        if (const auto values = entry.find(key); values != entry.end() && values->is_object()) {
            const auto chosen = number(*values, {"select_blocks"}), total = number(*values, {"total_blocks"});
            if (chosen && total && *total > 0) return *chosen / *total;
        }
    return std::nullopt;
}

/// Adds the needles of all depths.
void countNeedles(const Json& entry, EvalPoint& point) {
    const auto depths = entry.find("needle_by_depth");
    if (depths == entry.end() || !depths->is_array()) return;
    for (const Json& depth : *depths) {
        if (!depth.is_object()) continue;
        const auto right = number(depth, {"correct"}), prompts = number(depth, {"prompts"});
        if (!right || !prompts || *right < 0 || *right > *prompts || *prompts > 1e9) continue;
        point.right += std::int64_t(*right);
        point.prompts += std::int64_t(*prompts);
    }
}

} // namespace

std::vector<EvalPoint> readEvalResults(const std::string& path) {
    const auto wrong = [&](const std::string& why) {
        return Error(
            ErrorKind::BadInput, path + ": " + why,
            "give a document of kvscope-cli eval --json: a list \"rows\" whose entries have method, k_q_share, "
            "needle_accuracy (or score) and tokens_per_s");
    };
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const Json document = Json::parse(text, nullptr, false);
    if (document.is_discarded()) throw wrong("this is neither a trace nor JSON");
    const Json* list = &document;
    if (document.is_object()) {
        const auto rows = document.find("rows");
        if (rows == document.end()) throw wrong("there is no list \"rows\"");
        list = &*rows;
    }
    if (!list->is_array() || list->empty()) throw wrong("there are no rows");
    std::vector<EvalPoint> points;
    for (const Json& entry : *list) {
        if (!entry.is_object()) throw wrong("a row is not an object");
        const auto share = shareOf(entry), own = number(entry, {"score"}), needle = number(entry, {"needle_accuracy"});
        if (!own && !needle) throw wrong("a row has no score");
        const auto method = entry.find("method");
        if (method != entry.end() && !method->is_string()) throw wrong("a row's method is not a name");
        const auto tokensPerSecond = number(entry, {"tokens_per_s"}), context = number(entry, {"context"});
        if (const auto bad = [](std::optional<double> value,
                                double most) { return value && !(*value >= 0 && *value <= most); };
            bad(needle, 1) || bad(share, 1) || bad(tokensPerSecond, 1e12) || bad(context, 1e9))
            throw wrong("a row has an impossible needle_accuracy, k_q_share, tokens_per_s or context");
        constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
        EvalPoint point;
        point.method = method != entry.end() ? method->get<std::string>() : "?";
        point.context = int(context.value_or(0));
        point.share = share.value_or(kUnknown);
        point.score = own ? *own : *needle;
        point.scoreName = own ? "Score" : "Needle accuracy";
        point.tokensPerSecond = tokensPerSecond.value_or(kUnknown);
        point.bytesPerToken = number(entry, {"h2d_bytes_per_step"}).value_or(kUnknown); // a step feeds one token
        countNeedles(entry, point);
        points.push_back(std::move(point));
    }
    return points;
}

} // namespace kvscope::ui
