#include "app/cli/eval_results.h"

#include "app/cli/eval_chart.h"
#include "app/cli/json_number.h"
#include "app/terminal/output.h"
#include "base/error.h"
#include "base/json_reading.h"
#include "base/text_file.h"
#include "base/whole_file.h"
#include "core/select/method.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

namespace kvscope::cli {
namespace {

namespace fs = std::filesystem;

double share(const EvalResult& r) { return r.budgetBlocks > 0 ? double(r.queryAwareBlocks) / r.budgetBlocks : NAN; }
/// The share of attention mass that a method captures: 1 for a method that attends to everything, else `value`.
double captured(const EvalResult& r, double value) { return r.dense && !r.text.nll.empty() ? 1 : value; }
double hitRate(const EvalResult& r) { return r.hits + r.misses > 0 ? double(r.hits) / double(r.hits + r.misses) : NAN; }
double perStep(const EvalResult& r, double sum) { return r.decodeSteps > 0 ? sum / double(r.decodeSteps) : NAN; }

} // namespace

Json evalRow(const EvalResult& r, const TextScore& full) {
    Json settings = Json::object();
    for (const auto& [key, value] : r.row.settings) settings[key] = value;
    Json byDepth = Json::array(), byPosition = Json::array();
    for (const NeedleScore& score : r.needles)
        byDepth.push_back({{"depth", score.depth},
                           {"prompts", score.prompts},
                           {"correct", score.correct},
                           {"accuracy", double(score.correct) / score.prompts}});
    constexpr std::size_t kParts = 4; // of the scored text
    for (std::size_t i = 0; i < kParts; ++i) {
        const std::size_t n = r.text.nll.size(), first = n * i / kParts, end = n * (i + 1) / kParts;
        if (end == first) continue;
        byPosition.push_back({{"from", std::size_t(r.context) + first},
                              {"to", std::size_t(r.context) + end - 1},
                              {"perplexity", r.text.perplexity(first, end - first)},
                              {"full_perplexity", full.perplexity(first, end - first)}});
    }
    return {{"method", r.row.method},
            {"title", findMethod(r.row.method).title},
            {"settings", settings},
            {"parameters", Json::parse(r.parametersJson)},
            {"context", r.context},
            {"unit_tokens", r.dense ? Json(nullptr) : Json(r.unitTokens)},
            {"k", r.dense ? Json(nullptr) : Json(r.budgetBlocks)},
            {"k_q", r.dense ? Json(nullptr) : Json(r.queryAwareBlocks)},
            {"k_q_share", numberOrNull(share(r))},
            {"needle_accuracy", numberOrNull(r.accuracy())},
            {"needle_by_depth", byDepth},
            {"perplexity", numberOrNull(r.text.perplexity())},
            {"full_perplexity", numberOrNull(full.perplexity())},
            {"perplexity_ratio", numberOrNull(r.text.perplexity() / full.perplexity())},
            {"perplexity_by_position", byPosition},
            {"mass", numberOrNull(captured(r, r.selection.mass))},
            {"best_mass", numberOrNull(captured(r, r.selection.bestMass))},
            {"recall", numberOrNull(captured(r, r.selection.recall))},
            {"far_mass", numberOrNull(captured(r, r.selection.farMass))},
            {"far_best_mass", numberOrNull(captured(r, r.selection.farBestMass))},
            {"far_recall", numberOrNull(captured(r, r.selection.farRecall))},
            {"tokens_per_s", numberOrNull(r.tokensPerSecond())},
            {"tokens_per_s_with_link", numberOrNull(r.tokensPerSecondWithLink())},
            {"hit_rate", numberOrNull(hitRate(r))},
            {"locality_mean", numberOrNull(r.localityMean)},
            {"h2d_bytes_per_step", numberOrNull(perStep(r, double(r.h2dBytes)))},
            {"exposed_ms_per_step", numberOrNull(perStep(r, double(r.exposedNs) / 1e6))}};
}

std::string evalRowName(const Json& row) {
    std::string name = row.at("method").get<std::string>();
    for (const auto& [key, value] : row.at("settings").items())
        name += fmt::format(" {}={}", key, value.get<std::string>());
    return name;
}

namespace {

/// "-" for what does not exist.
std::string resultCell(const Json& value, int digits) {
    return value.is_number() ? fmt::format("{:.{}f}", value.get<double>(), digits) : "-";
}

struct Column {
    const char *title, *key;
    int width, digits;
};

constexpr Column kEvalColumns[] = {{"perplexity", "perplexity", 10, 3},
                                   {"/ full", "perplexity_ratio", 8, 4},
                                   {"mass", "mass", 6, 3},
                                   {"recall", "recall", 6, 3},
                                   {"far_mass", "far_mass", 8, 3},
                                   {"far_recall", "far_recall", 10, 3},
                                   {"hit_rate", "hit_rate", 9, 3},
                                   {"tokens/s", "tokens_per_s", 9, 1},
                                   {"with link", "tokens_per_s_with_link", 9, 1}};

} // namespace

void printEvalTable(const Json& d) {
    const Json& rows = d.at("rows");
    printOut(
        "{} on {}; needles at {} depths, {} each, {} facts in the text; perplexity of {} tokens behind the context; "
        "link {}\n",
        d.at("model").get<std::string>(), d.at("backend").get<std::string>(),
        rows.empty() ? 0 : rows.front().at("needle_by_depth").size(), d.at("prompts_per_depth").get<int>(),
        d.at("needles").get<int>(), d.at("text_tokens").get<int>(), d.at("link").get<std::string>());
    std::size_t width = 6;
    for (const Json& row : rows) width = std::max(width, evalRowName(row).size());
    std::string head = fmt::format("{:<{}} {:>8} {:>5} {:>5} {:>7} ", "method", width, "context", "k", "k_q", "needle");
    if (!rows.empty())
        for (const Json& score : rows.front().at("needle_by_depth"))
            head += fmt::format("{:>5.0f}%", 100 * score.at("depth").get<double>());
    for (const Column& column : kEvalColumns) head += fmt::format(" {:>{}}", column.title, column.width);
    printOut("{}\n", head);
    for (const Json& row : rows) {
        const bool dense = row.at("k").is_null();
        std::string line = fmt::format(
            "{:<{}} {:>8} {:>5} {:>5} {:>7} ", evalRowName(row), width, row.at("context").get<int>(),
            dense ? "all" : std::to_string(row.at("k").get<int>()),
            dense ? "-" : std::to_string(row.at("k_q").get<int>()), resultCell(row.at("needle_accuracy"), 3));
        for (const Json& score : row.at("needle_by_depth"))
            line += fmt::format("{:>6}",
                                fmt::format("{}/{}", score.at("correct").get<int>(), score.at("prompts").get<int>()));
        for (const Column& column : kEvalColumns)
            line += fmt::format(" {:>{}}", resultCell(row.at(column.key), column.digits), column.width);
        printOut("{}\n", line);
    }
}

std::string evalCsv(const Json& d) {
    constexpr const char* keys[] = {"context",
                                    "k",
                                    "k_q",
                                    "needle_accuracy",
                                    "perplexity",
                                    "full_perplexity",
                                    "perplexity_ratio",
                                    "mass",
                                    "best_mass",
                                    "recall",
                                    "far_mass",
                                    "far_best_mass",
                                    "far_recall",
                                    "tokens_per_s",
                                    "tokens_per_s_with_link",
                                    "hit_rate",
                                    "locality_mean",
                                    "h2d_bytes_per_step",
                                    "exposed_ms_per_step"};
    std::string text = "method,settings";
    for (const char* key : keys) text += fmt::format(",{}", key);
    const Json& rows = d.at("rows");
    if (!rows.empty())
        for (const Json& score : rows.front().at("needle_by_depth"))
            text += fmt::format(",needle_at_{:g}", score.at("depth").get<double>());
    text += '\n';
    for (const Json& row : rows) {
        std::vector<std::string> settings;
        for (const auto& [key, value] : row.at("settings").items())
            settings.push_back(fmt::format("{}={}", key, value.get<std::string>()));
        text += fmt::format("{},\"{}\"", row.at("method").get<std::string>(), fmt::join(settings, " "));
        const auto field = [&](const Json& value) { text += value.is_null() ? "," : "," + value.dump(); };
        for (const char* key : keys) field(row.at(key));
        for (const Json& score : row.at("needle_by_depth")) field(score.at("accuracy"));
        text += '\n';
    }
    return text;
}

namespace {

/// Whether two documents say the same, in whatever order their keys are: another program may have sorted them.
bool isSame(const Json& one, const Json& other) { return nlohmann::json(one) == nlohmann::json(other); }

bool isRowOf(const Json& row, const EvalCase& wanted, int context) {
    Json settings = Json::object();
    for (const auto& [key, value] : wanted.settings) settings[key] = value;
    return row.at("method") == wanted.method && row.at("context") == context && isSame(row.at("settings"), settings);
}

/// A number, or null where the row does not know it.
bool isKnownOrNull(const Json& value, double least, double most) {
    return value.is_null() || (value.is_number() && value.get<double>() >= least && value.get<double>() <= most);
}

bool isCount(const Json& value, int least) {
    return value.is_number_integer() && isKnownOrNull(value, least, std::numeric_limits<int>::max());
}

bool isNeedleScore(const Json& score) {
    return score.is_object() && isKnownOrNull(score.value("depth", Json("")), 0, 1) && !score["depth"].is_null() &&
           isCount(score.value("prompts", Json()), 1) && isCount(score.value("correct", Json()), 0) &&
           score["correct"] <= score["prompts"] && isKnownOrNull(score.value("accuracy", Json("")), 0, 1);
}

/// The first key of a row that evalRow() cannot have written like this; empty: none.
std::string faultyKey(const Json& row) {
    const auto valueOf = [&](const std::string& key) { return row.is_object() ? row.value(key, Json("")) : Json(""); };
    if (!valueOf("method").is_string() || valueOf("method") == "") return "method";
    const Json settings = valueOf("settings"), depths = valueOf("needle_by_depth");
    if (!settings.is_object() ||
        !std::all_of(settings.begin(), settings.end(), [](const Json& value) { return value.is_string(); }))
        return "settings";
    if (!depths.is_array() || !std::all_of(depths.begin(), depths.end(), isNeedleScore)) return "needle_by_depth";
    if (!isCount(valueOf("context"), 1)) return "context";
    const bool dense = valueOf("k").is_null();
    for (const char* key : {"k", "k_q", "unit_tokens"})
        if (dense ? !valueOf(key).is_null() : !isCount(valueOf(key), 0)) return key;
    for (const char* key : {"needle_accuracy", "mass", "best_mass", "recall", "far_mass", "far_best_mass", "far_recall",
                            "hit_rate", "locality_mean"})
        if (!isKnownOrNull(valueOf(key), 0, 1 + 1e-6)) return key; // sums of float32 may exceed 1 by their rounding
    for (const char* key : {"perplexity", "full_perplexity", "perplexity_ratio", "tokens_per_s",
                            "tokens_per_s_with_link", "h2d_bytes_per_step", "exposed_ms_per_step"})
        if (!isKnownOrNull(valueOf(key), 0, std::numeric_limits<double>::max())) return key;
    return {};
}

void refuseUnwritten(const std::string& path, const std::string& fault) {
    if (!fault.empty())
        throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: {}", path, fault),
                    "check permissions and free space, or choose another folder with -o");
}

} // namespace

EvalFolder::EvalFolder(std::string folder, Json document) : folder_(std::move(folder)), document_(std::move(document)) {
    document_["rows"] = Json::array();
    if (folder_.empty()) return;
    std::error_code failed;
    fs::create_directories(folder_, failed);
    if (failed)
        throw Error(ErrorKind::Storage, fmt::format("the folder {} cannot be made: {}", folder_, failed.message()),
                    "choose another with -o");
    const fs::path path = fs::path(folder_) / "eval.json";
    refuseUnwritten(path.string(), whyUnwritable(path.string())); // before the first row is measured
    if (!fs::exists(path, failed)) return;
    Json earlier = Json::parse(readTextFile(path.string(), "the evaluation"), nullptr, false);
    if (!earlier.is_object() || !earlier.contains("rows") || !earlier["rows"].is_array())
        throw Error(ErrorKind::BadInput, fmt::format("{} is not an evaluation", path.string()),
                    "move it away, or choose another folder with -o");
    Json rows = std::move(earlier["rows"]);
    earlier["rows"] = Json::array();
    if (!isSame(earlier, document_)) {
        std::string what;
        for (const auto& [key, value] : earlier.items())
            if (what.empty() && !document_.contains(key)) what = fmt::format("{}, now nothing", shown(key));
        for (const auto& [key, value] : document_.items())
            if (what.empty() && (!earlier.contains(key) || !isSame(earlier[key], value)))
                what = fmt::format("{} {}, now {}", key, earlier.contains(key) ? shown(earlier[key].dump()) : "nothing",
                                   value.dump());
        throw Error(ErrorKind::BadInput, fmt::format("{} was measured with other options ({})", path.string(), what),
                    "repeat those options to go on, or choose another folder with -o");
    }
    for (std::size_t number = 0; number < rows.size(); ++number)
        if (const std::string key = faultyKey(rows[number]); !key.empty())
            throw Error(
                ErrorKind::BadInput,
                fmt::format("row {} of {} has no '{}' that eval could have written", number + 1, path.string(), key),
                "remove the row, which is measured again then, or choose another folder with -o");
    document_["rows"] = std::move(rows);
}

bool EvalFolder::holds(const EvalCase& row, int context) const {
    return std::any_of(document_["rows"].begin(), document_["rows"].end(),
                       [&](const Json& known) { return isRowOf(known, row, context); });
}

void EvalFolder::add(Json row) {
    document_["rows"].push_back(std::move(row));
    writeAll();
}

void EvalFolder::finish(const std::vector<EvalCase>& cases, const std::vector<int>& contexts) {
    Json known = std::move(document_["rows"]), rows = Json::array();
    const auto take = [&](const auto& matches) {
        for (Json& row : known)
            if (!row.is_null() && matches(row)) rows.push_back(std::exchange(row, Json()));
    };
    for (const int context : contexts)
        for (const EvalCase& wanted : cases) take([&](const Json& row) { return isRowOf(row, wanted, context); });
    take([](const Json&) { return true; }); // of other methods, from earlier
    document_["rows"] = std::move(rows);
    writeAll();
}

void EvalFolder::writeAll() const {
    if (folder_.empty()) return;
    write("eval.json", document_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    write("eval.csv", evalCsv(document_));
    write("eval.svg", evalChart(document_));
}

/// Writes a file of the folder, whole or not at all. @throws Error(Storage)
void EvalFolder::write(const char* name, const std::string& text) const {
    const std::string path = (fs::path(folder_) / name).string();
    refuseUnwritten(path, writeWholeFile(path, [&](std::ostream& out) { out << text; }));
}

} // namespace kvscope::cli
