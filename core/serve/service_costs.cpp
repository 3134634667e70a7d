#include "core/serve/service_costs.h"

#include "base/error.h"
#include "base/json_reading.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace kvscope::serve {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuseCosts(const std::string& message) {
    throw Error(ErrorKind::BadInput, message, "kvscope-cli simulate --print-costs shows a complete file");
}

[[noreturn]] void refuseCost(const std::string& key, const std::string& why) {
    refuseCosts(fmt::format("cannot read '{}' of the costs: {}", key, why));
}

double costNumber(const std::string& key, const nlohmann::json& value, double least) {
    if (!value.is_number()) refuseCost(key, "it is not a number");
    const double number = value.get<double>();
    if (!std::isfinite(number) || number < least || number > 1e15)
        refuseCost(key, fmt::format("{} is not from {} to 1e15", number, least));
    return number;
}

/// Tables of older versions have 1e9 for a link without limit; null stands for it now.
double linkRate(const std::string& key, const nlohmann::json& value) {
    constexpr double leastRate = 1e-6, withoutLimit = 1e9;
    const double rate = value.is_null() ? withoutLimit : costNumber(key, value, leastRate);
    return rate >= withoutLimit ? std::numeric_limits<double>::infinity() : rate;
}

Json jsonOfRate(double rate) { return std::isinf(rate) ? Json() : Json(rate); }

int wholeNumber(const std::string& key, const nlohmann::json& value, int least) {
    if (!value.is_number()) refuseCost(key, "it is not a number");
    const double number = value.get<double>();
    if (number != std::floor(number) || number < least || number > 1e9)
        refuseCost(key, fmt::format("{} is not a whole number from {} to 1e9", number, least));
    return int(number);
}

bool truthOf(const std::string& key, const nlohmann::json& value) {
    if (!value.is_boolean()) refuseCost(key, "it is neither true nor false");
    return value.get<bool>();
}

Curve curveOf(const std::string& key, const nlohmann::json& value, double most) {
    if (!value.is_array() || value.empty() || value.size() > 1000)
        refuseCost(key, "it is not a list of 1 to 1000 points");
    Curve curve;
    for (const nlohmann::json& point : value) {
        if (!point.is_array() || point.size() != 2) refuseCost(key, "a point is not a pair of numbers");
        const double x = costNumber(key, point[0], 0), y = costNumber(key, point[1], 0);
        if (y > most) refuseCost(key, fmt::format("{} is above {}", y, most));
        if (!curve.points.empty() && x <= curve.points.back().first) refuseCost(key, "its points do not ascend");
        curve.points.emplace_back(x, y);
    }
    return curve;
}

Json jsonOf(const Curve& curve) {
    Json out = Json::array();
    for (const auto& [x, y] : curve.points) out.push_back(Json::array({x, y}));
    return out;
}

/// The document of a text that is JSON. An object that has a key twice is refused: one of its numbers would count
/// without a word.
nlohmann::json withoutRepeats(std::string_view text) {
    std::vector<std::set<std::string>> open; // the keys of each object that is read
    const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
        using Event = nlohmann::json::parse_event_t;
        if (event == Event::object_start) open.emplace_back();
        if (event == Event::object_end) open.pop_back();
        if (event == Event::key && !open.back().insert(value.get<std::string>()).second)
            refuseCost(shown(value.get<std::string>()), "it is given twice");
        return true;
    };
    return nlohmann::json::parse(text, watch);
}

using Read = std::function<void(const std::string&, const nlohmann::json&)>;

void readMembers(const nlohmann::json& object, const std::string& of,
                 const std::vector<std::pair<const char*, Read>>& known) {
    for (const auto& item : object.items()) {
        const std::string& key = item.key();
        const auto found =
            std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first == key; });
        if (found == known.end()) refuseCost(shown(key), fmt::format("no such key in {}", of));
        found->second(key, item.value());
    }
}

} // namespace

double Curve::at(double x) const {
    if (points.size() == 1 || x <= points.front().first) return points.front().second;
    auto right =
        std::lower_bound(points.begin(), points.end(), x, [](const auto& point, double v) { return point.first < v; });
    if (right == points.end()) --right;
    const auto left = right - 1;
    return left->second + (right->second - left->second) * (x - left->first) / (right->first - left->first);
}

double ServiceCosts::residentDecode(int rows, std::int64_t contextTokens) const {
    return rows <= 0 ? 0 : decodeMs.at(rows) + double(contextTokens) * decodeUsPerKtoken * 1e-6;
}

double ServiceCosts::decode(int rows, std::int64_t contextTokens, std::int64_t missBytes,
                            const SchedulerOptions& options) const {
    if (rows <= 0) return 0;
    const auto transfers = std::size_t(options.transfers);
    const double compute = residentDecode(rows, contextTokens);
    const double loads = double(missBytes) / (linkGbps[transfers] * 1e6);
    const double setUp = options.offload ? offloadMs[transfers] + rows * offloadUsPerRow[transfers] * 1e-3 : 0;
    return (overlap ? std::max(compute, loads) : compute + loads) + setUp;
}

double ServiceCosts::prefillLayer(int from, int to) const {
    const double a = from, b = to;
    return (b - a) * prefillUsPerToken * 1e-3 + (b * b - a * a) * prefillPsPerToken2 * 1e-9;
}

double ServiceCosts::hitRate(const SchedulerOptions& options, std::int64_t stepBytes, std::int64_t available) const {
    if (!options.offload || stepBytes <= 0) return 1;
    if (options.cache == CachePlan::Partition)
        return std::clamp(partitionHits.at(double(shape.partitionBlocks(options)) / shape.selectedBlocks), 0.0, 1.0);
    return available <= 0 ? 0 : std::clamp(lruHits.at(double(stepBytes) / double(available)), 0.0, 1.0);
}

std::int64_t ServiceCosts::workingSet(const SchedulerOptions& options, int steps, std::int64_t context) const {
    if (!options.offload || options.cache == CachePlan::Partition) return shape.firstWorkingSet(options, context);
    const double grown = 1 + drift * (std::clamp(steps, 1, options.window) - 1);
    const std::int64_t all = (context + shape.blockTokens - 1) / shape.blockTokens * shape.offloadedLayers() *
                             shape.kvHeads * shape.blockBytes;
    return std::min(all, std::int64_t(double(shape.selectionBytes(context)) * grown));
}

ServiceCosts ServiceCosts::fromJson(std::string_view text, const std::string& origin) {
    try {
        return fromJson(text);
    } catch (const Error& error) {
        throw Error(error.kind, fmt::format("{}: {}", origin, error.what()), error.hint);
    }
}

ServiceCosts ServiceCosts::fromJson(std::string_view text) {
    if (parseJson(text).is_discarded()) refuseCosts("the costs are not JSON, or a number in them is too large");
    const nlohmann::json document = withoutRepeats(text);
    if (!document.is_object()) refuseCosts("the costs are not a JSON object");
    ServiceCosts costs;
    const auto number = [](double& target, double least = 0) -> Read {
        return
            [&target, least](const std::string& key, const nlohmann::json& v) { target = costNumber(key, v, least); };
    };
    const auto whole = [](auto& target, int least = 1) -> Read {
        return
            [&target, least](const std::string& key, const nlohmann::json& v) { target = wholeNumber(key, v, least); };
    };
    const auto truth = [](bool& target) -> Read {
        return [&target](const std::string& key, const nlohmann::json& v) { target = truthOf(key, v); };
    };
    const auto curve = [](Curve& target, double most) -> Read {
        return [&target, most](const std::string& key, const nlohmann::json& v) { target = curveOf(key, v, most); };
    };
    const auto object = [](const std::string& key, const nlohmann::json& v) -> const nlohmann::json& {
        if (!v.is_object()) refuseCost(key, "it is not a JSON object");
        return v;
    };
    MemoryShape& shape = costs.shape;
    const auto rate = [](double& target) -> Read {
        return [&target](const std::string& key, const nlohmann::json& v) { target = linkRate(key, v); };
    };
    const auto byTransfers = [&](double(&target)[3]) -> Read {
        return [&number, &object, &target](const std::string& key, const nlohmann::json& v) {
            readMembers(object(key, v), key,
                        {{"calls", number(target[0])}, {"batched", number(target[1])}, {"kernel", number(target[2])}});
        };
    };
    // The version is read before all else: a later one may have keys that are not known here.
    if (const auto version = document.find("version"); version != document.end())
        if (const int is = wholeNumber("version", *version, 1); is > kVersion)
            refuseCost("version", fmt::format("the table is of version {}, and this program knows versions up to {}",
                                              is, kVersion));
    readMembers(document, "the costs",
                {{"version", [](const std::string&, const nlohmann::json&) {}},
                 {"fitted", // keys whose numbers were measured; programs that show or write a table read this key
                  [](const std::string& key, const nlohmann::json& v) {
                      const Json terms = Json::parse(ServiceCosts().toJson());
                      if (!v.is_array()) refuseCost(key, "it is not a list of keys");
                      for (const nlohmann::json& term : v)
                          if (!term.is_string() || !terms.contains(term.get<std::string>()))
                              refuseCost(key, fmt::format("{} is not a key of the costs", shownJson(term)));
                  }},
                 {"method", // the method that was measured; likewise
                  [](const std::string& key, const nlohmann::json& v) {
                      if (!v.is_string()) refuseCost(key, "it is not a name of a method");
                  }},
                 {"decode_ms", curve(costs.decodeMs, 1e9)},
                 {"decode_us_per_ktoken", number(costs.decodeUsPerKtoken)},
                 {"full_us_per_ktoken", number(costs.fullUsPerKtoken)},
                 {"prefill_us_per_token", number(costs.prefillUsPerToken)},
                 {"prefill_ps_per_token2", number(costs.prefillPsPerToken2)},
                 {"link_gbps",
                  [&](const std::string& key, const nlohmann::json& v) {
                      readMembers(object(key, v), key,
                                  {{"calls", rate(costs.linkGbps[0])},
                                   {"batched", rate(costs.linkGbps[1])},
                                   {"kernel", rate(costs.linkGbps[2])}});
                  }},
                 {"overlap", truth(costs.overlap)},
                 {"offload_ms", byTransfers(costs.offloadMs)},
                 {"offload_us_per_row", byTransfers(costs.offloadUsPerRow)},
                 {"plan_ms", number(costs.planMs)},
                 {"gap_ms", number(costs.gapMs)},
                 {"gap_us_per_row", number(costs.gapUsPerRow)},
                 {"admit_ms", number(costs.admitMs)},
                 {"admit_us_per_token", number(costs.admitUsPerToken)},
                 {"between_ms", number(costs.betweenMs)},
                 {"between_us_per_row", number(costs.betweenUsPerRow)},
                 {"request_ms", number(costs.requestMs)},
                 {"drift", number(costs.drift)},
                 {"lru_hits", curve(costs.lruHits, 1)},
                 {"partition_hits", curve(costs.partitionHits, 1)},
                 {"shape", [&](const std::string& key, const nlohmann::json& v) {
                      readMembers(object(key, v), key,
                                  {{"layers", whole(shape.layers)},
                                   {"kv_heads", whole(shape.kvHeads)},
                                   {"block_tokens", whole(shape.blockTokens)},
                                   {"block_bytes", whole(shape.blockBytes)},
                                   {"index_bytes_per_token", whole(shape.indexBytesPerToken, 0)},
                                   {"selected_blocks", whole(shape.selectedBlocks)},
                                   {"hidden", whole(shape.hidden)},
                                   {"host_run_blocks", whole(shape.hostRunBlocks)},
                                   {"piece_tokens", whole(shape.pieceTokens)},
                                   {"pauses_in_layer", truth(shape.pausesInLayer)},
                                   {"resident_layers", whole(shape.residentLayers, 0)},
                                   {"row_bytes_per_token", whole(shape.rowBytesPerToken, 0)},
                                   {"row_bytes", whole(shape.rowBytes, 0)}});
                  }}});
    shape.check();
    return costs;
}

std::string ServiceCosts::toJson() const {
    const auto byTransfers = [](const double(&values)[3]) {
        return Json{{"calls", values[0]}, {"batched", values[1]}, {"kernel", values[2]}};
    };
    const Json out{{"version", kVersion},
                   {"decode_ms", jsonOf(decodeMs)},
                   {"decode_us_per_ktoken", decodeUsPerKtoken},
                   {"full_us_per_ktoken", fullUsPerKtoken},
                   {"prefill_us_per_token", prefillUsPerToken},
                   {"prefill_ps_per_token2", prefillPsPerToken2},
                   {"link_gbps",
                    {{"calls", jsonOfRate(linkGbps[0])},
                     {"batched", jsonOfRate(linkGbps[1])},
                     {"kernel", jsonOfRate(linkGbps[2])}}},
                   {"overlap", overlap},
                   {"offload_ms", byTransfers(offloadMs)},
                   {"offload_us_per_row", byTransfers(offloadUsPerRow)},
                   {"plan_ms", planMs},
                   {"gap_ms", gapMs},
                   {"gap_us_per_row", gapUsPerRow},
                   {"admit_ms", admitMs},
                   {"admit_us_per_token", admitUsPerToken},
                   {"between_ms", betweenMs},
                   {"between_us_per_row", betweenUsPerRow},
                   {"request_ms", requestMs},
                   {"drift", drift},
                   {"lru_hits", jsonOf(lruHits)},
                   {"partition_hits", jsonOf(partitionHits)},
                   {"shape",
                    {{"layers", shape.layers},
                     {"kv_heads", shape.kvHeads},
                     {"block_tokens", shape.blockTokens},
                     {"block_bytes", shape.blockBytes},
                     {"index_bytes_per_token", shape.indexBytesPerToken},
                     {"selected_blocks", shape.selectedBlocks},
                     {"hidden", shape.hidden},
                     {"host_run_blocks", shape.hostRunBlocks},
                     {"piece_tokens", shape.pieceTokens},
                     {"pauses_in_layer", shape.pausesInLayer},
                     {"resident_layers", shape.residentLayers},
                     {"row_bytes_per_token", shape.rowBytesPerToken},
                     {"row_bytes", shape.rowBytes}}}};
    return out.dump(2);
}

} // namespace kvscope::serve
