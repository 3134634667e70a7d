#include "app/cli/quality_report.h"
#include "app/cli/json_number.h"

#include "app/terminal/output.h"
#include "core/select/method.h"
#include "profiler/tune/share.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <optional>

namespace kvscope::cli {
namespace {

std::string nameOfMethod(const QualityCell& cell) {
    std::string name = cell.method;
    for (const auto& [key, value] : cell.settings) name += fmt::format(" {}={}", key, value);
    return name;
}

std::string nameOfTask(const QualityCell& cell) {
    return fmt::format("{} {} {}", nameOf(cell.task), cell.context, nameOf(cell.pace));
}

Json ratio(double a, double b) { return b > 0 ? Json(a / b) : Json(nullptr); }

Json shareOf(std::int64_t good, std::int64_t all) {
    if (all == 0) return nullptr;
    const ShareInterval interval = wilsonInterval(good, all);
    return {{"good", good},
            {"of", all},
            {"share", double(good) / double(all)},
            {"low", interval.low},
            {"high", interval.high}};
}

/// Sums of a cell's finished batches.
struct CellSums {
    std::map<int, std::vector<std::int32_t>> texts; // by the prompt's number
    std::int64_t prompts = 0, right = 0, forwards = 0, blocks = 0, promptNs = 0, decodeNs = 0;
    double density = 0, densities = 0; // weighed by prompts
};

CellSums sumsOf(const QualityCell& cell, const QualitySize& size, const FinishedPoints& finished) {
    CellSums sums;
    for (int first = 0; first < size.prompts; first += size.batch) {
        const int count = std::min(size.batch, size.prompts - first);
        const Json* const point = finished.find(keyOf(cell, false, first, count));
        if (point == nullptr) continue;
        sums.prompts += count;
        for (const Json& right : point->at("right")) sums.right += right.get<int>();
        int number = first;
        for (const Json& ids : point->at("generated")) sums.texts[number++] = ids.get<std::vector<std::int32_t>>();
        sums.forwards += point->at("forwards").get<std::int64_t>();
        sums.blocks += point->at("blocks").get<std::int64_t>();
        sums.promptNs += point->at("prompt_ns").get<std::int64_t>();
        sums.decodeNs += point->at("decode_ns").get<std::int64_t>();
        if (!point->at("density").is_number()) continue;
        sums.density += count * point->at("density").get<double>();
        sums.densities += count;
    }
    return sums;
}

/// Adds how often a cell agrees with full attention, over the prompts that both have: the share of prompts with the
/// same text, and the share of tokens that are the same.
void addAgreement(Json& row, const CellSums& own, const CellSums& dense) {
    std::int64_t prompts = 0, same = 0, tokens = 0, sameTokens = 0;
    for (const auto& [number, ids] : own.texts) {
        const auto other = dense.texts.find(number);
        if (other == dense.texts.end()) continue;
        ++prompts;
        same += ids == other->second;
        for (std::size_t i = 0; i < std::min(ids.size(), other->second.size()); ++i)
            ++tokens, sameTokens += ids[i] == other->second[i];
    }
    row["same_text"] = shareOf(same, prompts);
    row["same_tokens"] = ratio(double(sameTokens), double(tokens));
}

Json settingsOf(const QualityCell& cell) {
    Json settings = Json::object();
    for (const auto& [key, value] : cell.settings) settings[key] = value;
    return settings;
}

Json boundRow(const QualityCell& cell, const QualitySize& size, const FinishedPoints& finished) {
    BoundSum sum;
    for (int first = 0; first < size.boundBlocks; first += size.batch) {
        const Json* const point =
            finished.find(keyOf(cell, true, first, std::min(size.batch, size.boundBlocks - first)));
        if (point == nullptr) continue;
        sum.nll += point->at("nll").get<double>();
        sum.terms += point->at("terms").get<std::int64_t>();
    }
    return {{"method", cell.method},
            {"settings", settingsOf(cell)},
            {"context", cell.context},
            {"terms", sum.terms},
            {"perplexity_bound", numberOrNull(sum.perplexity())}};
}

std::string percent(const Json& share) {
    if (share.is_null()) return "-";
    return fmt::format("{:.1f} [{:.1f}, {:.1f}]", 100 * share.at("share").get<double>(),
                       100 * share.at("low").get<double>(), 100 * share.at("high").get<double>());
}

std::string cellText(const Json& value, const char* format) {
    return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

} // namespace

std::string keyOf(const QualityCell& cell, bool bound, int first, int count) {
    return fmt::format("{} {} #{}+{}", bound ? fmt::format("bound {}", cell.context) : nameOfTask(cell),
                       nameOfMethod(cell), first, count);
}

Json jsonOf(const QualityBatch& batch) {
    Json right = Json::array();
    for (const bool one : batch.right) right.push_back(int(one));
    return {{"right", right},
            {"generated", batch.generated},
            {"forwards", batch.forwards},
            {"blocks", batch.blocks},
            {"density", numberOrNull(batch.density)},
            {"prompt_ns", batch.promptNs},
            {"decode_ns", batch.decodeNs}};
}

Json qualityDocument(const Json& settings, const std::vector<QualityCell>& cells,
                     const std::vector<QualityCell>& bounds, const QualitySize& size, const FinishedPoints& finished) {
    Json document = settings;
    document["prompts"] = size.prompts;
    document["batch"] = size.batch;
    document["rows"] = Json::array();
    document["bounds"] = Json::array();
    std::map<std::string, CellSums> dense; // by task
    for (const QualityCell& cell : cells)
        if (cell.method == "full") dense[nameOfTask(cell)] = sumsOf(cell, size, finished);
    for (const QualityCell& cell : cells) {
        const CellSums sums = sumsOf(cell, size, finished);
        Json row{{"method", cell.method},
                 {"title", findMethod(cell.method).title},
                 {"settings", settingsOf(cell)},
                 {"task", nameOf(cell.task)},
                 {"context", cell.context},
                 {"pace", nameOf(cell.pace)},
                 {"right", shareOf(sums.right, sums.prompts)}};
        addAgreement(row, sums, dense[nameOfTask(cell)]);
        row["density"] = ratio(sums.density, sums.densities);
        row["forwards_per_block"] = ratio(double(sums.forwards), double(sums.blocks));
        row["prompt_ms"] = ratio(double(sums.promptNs) / 1e6, double(sums.prompts));
        row["decode_ms"] = ratio(double(sums.decodeNs) / 1e6, double(sums.prompts));
        document["rows"].push_back(std::move(row));
    }
    for (const QualityCell& cell : bounds) document["bounds"].push_back(boundRow(cell, size, finished));
    return document;
}

void printQuality(const Json& d) {
    printOut("{} on {}; share of answers with its 95 % interval by Wilson; the same text as full attention; density: "
             "tokens of the pages read / prefix\n",
             d.at("model").get<std::string>(), d.at("backend").get<std::string>());
    if (!d.at("rows").empty())
        printOut("{:<8} {:>7} {:<4}  {:<22} {:>7}  {:<20} {:<20} {:>8} {:>9}\n", "task", "context", "pace", "method",
                 "prompts", "right, %", "same text, %", "density", "fwd/block");
    for (const Json& row : d.at("rows")) {
        std::string name = row.at("method").get<std::string>();
        for (const auto& [key, value] : row.at("settings").items())
            name += fmt::format(" {}={}", key, value.get<std::string>());
        const Json& right = row.at("right");
        printOut("{:<8} {:>7} {:<4}  {:<22} {:>7}  {:<20} {:<20} {:>8} {:>9}\n", row.at("task").get<std::string>(),
                 row.at("context").get<int>(), row.at("pace").get<std::string>(), name,
                 right.is_null() ? 0 : right.at("of").get<int>(), percent(right), percent(row.at("same_text")),
                 cellText(row.at("density"), "{:.4f}"), cellText(row.at("forwards_per_block"), "{:.1f}"));
    }
    for (const Json& row : d.at("bounds")) {
        std::string name = row.at("method").get<std::string>();
        for (const auto& [key, value] : row.at("settings").items())
            name += fmt::format(" {}={}", key, value.get<std::string>());
        printOut("bound on perplexity behind {} tokens: {:<28} {:>8} ({} terms)\n", row.at("context").get<int>(), name,
                 cellText(row.at("perplexity_bound"), "{:.3f}"), row.at("terms").get<std::int64_t>());
    }
}

} // namespace kvscope::cli
