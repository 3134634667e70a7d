// kvscope-cli compare: is B slower than A, noise taken into account.
#include "app/cli/cold_option.h"
#include "app/cli/commands.h"
#include "app/cli/json_number.h"
#include "app/cli/long_action.h"
#include "app/cli/run_choice.h"
#include "app/cli/selection_differences.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/check/check.h"
#include "profiler/compare/compare.h"
#include "profiler/insights/words.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

// Exit statuses beside 0, 1 (error) and 2 (command line).
constexpr int kSlower = 3, kNotComparable = 4;

struct Side {
    std::string file;
    std::vector<std::string> more; // repeats in other files, their last runs
    std::vector<int> runs;         // of `file`; empty: the last
};

struct CompareArguments {
    Side a, b;
    std::string failOver;
    std::string differences; // file for the blocks that are selected differently; empty: none
    double confidence = 95;
    std::uint64_t seed = 1;
    bool anyway = false, json = false;
};

/// "3%" is 0.03.
std::optional<double> parseThreshold(const std::string& text) {
    if (text.empty()) return std::nullopt;
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || std::string_view(end, text.data() + text.size()) != "%" || !(value >= 0 && value <= 1e6))
        throw Error(ErrorKind::BadInput, fmt::format("cannot read --fail-over '{}'", text),
                    "write a percentage, e.g. --fail-over 3%");
    return value / 100;
}

std::vector<RunSample> load(const Side& side, LongAction& action, double from) {
    std::vector<RunSample> samples;
    const double count = double(std::max<std::size_t>(1, side.runs.size()) + side.more.size());
    const auto add = [&](const TraceReader& reader, int wanted) {
        const int run = chooseRun(reader, wanted);
        std::error_code ignored;
        for (const RunSample& sample : samples)
            if (sample.run.runId == run && std::filesystem::equivalent(sample.path, reader.path(), ignored))
                throw Error(ErrorKind::BadInput, fmt::format("run {} of {} is given twice", run, reader.path()),
                            "a run is not a repeat of itself: name each run once");
        const double at = from + 0.5 * double(samples.size()) / count;
        samples.push_back(loadRunSample(reader, run, action.stopping(at, at + 0.5 / count)));
        refuseBroken(samples.back(), checkRun(reader, run, counting()));
    };
    const TraceReader reader(side.file);
    for (const int run : side.runs.empty() ? std::vector{0} : side.runs) add(reader, run);
    for (const std::string& file : side.more) {
        const TraceReader repeat(file);
        add(repeat, 0);
    }
    return samples;
}

std::string joined(const std::vector<Obstacle>& obstacles) {
    std::vector<std::string> texts;
    for (const Obstacle& obstacle : obstacles) texts.push_back(obstacle.what);
    return fmt::format("{}", fmt::join(texts, "; "));
}

Json interval(const Interval& i) { return {{"value", i.value}, {"low", i.low}, {"high", i.high}}; }

Json toJson(const ComponentDelta& d) {
    return {
        {"component", d.component},
        {"a_ms", d.aNs / 1e6},
        {"b_ms", d.bNs / 1e6},
        {"delta_ms", {{"value", d.deltaNs.value / 1e6}, {"low", d.deltaNs.low / 1e6}, {"high", d.deltaNs.high / 1e6}}}};
}

Json toJson(const std::vector<RunSample>& side) {
    Json out = Json::array();
    for (const RunSample& sample : side)
        out.push_back({{"trace", sample.path}, {"run_id", sample.run.runId}, {"name", sample.run.name}});
    return out;
}

Json toJson(const Comparison& c) {
    Json out{{"verdict", nameOf(c.verdict)},
             {"sentence", c.sentence},
             {"ratio", interval(c.ratio)},
             {"mean_ratio", interval(c.meanRatio)},
             {"confidence", c.confidence},
             {"fail_over", c.threshold},
             {"median_step_ms", {{"a", c.aMedianNs / 1e6}, {"b", c.bMedianNs / 1e6}}},
             {"steps", c.steps},
             {"left_out", {{"first", c.first}, {"opening", c.opening}, {"unpaired", c.unpaired}}},
             {"block_length", c.blockLength},
             {"between_runs", numberOrNull(c.betweenRuns)},
             {"step", toJson(c.step)},
             {"components", Json::array()},
             {"exposed", toJson(c.exposed)},
             {"quantities", Json::array()},
             {"differences", Json::array()},
             {"notes", c.notes}};
    for (const ComponentDelta& component : c.components) out["components"].push_back(toJson(component));
    for (const Quantity& q : c.quantities)
        out["quantities"].push_back(
            {{"name", q.name}, {"unit", q.unit}, {"a", numberOrNull(q.a)}, {"b", numberOrNull(q.b)}});
    for (const SettingDifference& d : c.differences)
        out["differences"].push_back({{"setting", d.key}, {"a", d.a}, {"b", d.b}});
    return out;
}

void printSide(const char* name, const std::vector<RunSample>& side) {
    for (const RunSample& sample : side)
        printOut("{}  {}, run {} of {}\n", name, sample.run.name, sample.run.runId, sample.path);
}

/// A number, or a dash where the run does not know or does not have it.
std::string cell(double value, const char* form) {
    return std::isnan(value) ? "-" : fmt::format(fmt::runtime(form), value);
}

void printRow(const ComponentDelta& d) {
    const auto ms = [](double ns, const char* form = "{:.4f}") { return cell(ns / 1e6, form); };
    printOut("{:<18} {:>12} {:>12} {:>12} {:>12} {:>12}\n", d.component, ms(d.aNs), ms(d.bNs),
             ms(d.deltaNs.value, "{:+.4f}"), ms(d.deltaNs.low, "{:+.4f}"), ms(d.deltaNs.high, "{:+.4f}"));
}

void printText(const std::vector<RunSample>& a, const std::vector<RunSample>& b, const Comparison& c) {
    printOut("{}.\n", c.sentence);
    printSide("A", a);
    printSide("B", b);
    for (const SettingDifference& d : c.differences) printOut("   {}: {} -> {}\n", d.key, d.a, d.b);
    printOut("each run's median step: {:.4g} ms -> {:.4g} ms; {} compared, left out: {} cold, {} opening a block, {} "
             "not in all runs\n",
             c.aMedianNs / 1e6, c.bMedianNs / 1e6, words::many(c.steps, "step"), c.first, c.opening, c.unpaired);
    printOut("\n{:<18} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "ms per step, mean", "A", "B", "B - A", "from", "to");
    for (const ComponentDelta& component : c.components) printRow(component);
    printRow(c.step);
    ComponentDelta exposed = c.exposed;
    exposed.component = fmt::format("exposed, {}", a.front().run.timing.text());
    printRow(exposed);
    printOut("\n{:<20} {:>14} {:>14}\n", "whole run", "A", "B");
    for (const Quantity& q : c.quantities)
        printOut("{:<20} {:>14} {:>14} {}\n", q.name, cell(q.a, "{:.6g}"), cell(q.b, "{:.6g}"), q.unit);
    for (const std::string& note : c.notes) printOut("note: {}\n", note);
}

/// Writes the file of --differences; nothing without it.
std::optional<GapSums> writeDifferences(const CompareArguments& arguments) {
    if (arguments.differences.empty()) return std::nullopt;
    const TraceReader a(arguments.a.file), b(arguments.b.file);
    const int runA = chooseRun(a, arguments.a.runs.empty() ? 0 : arguments.a.runs.front());
    const int runB = chooseRun(b, arguments.b.runs.empty() ? 0 : arguments.b.runs.front());
    LongAction action;
    return writeSelectionDifferences(a, runA, b, runB, arguments.differences, action.stopping());
}

Json toJson(const GapSums& sums) {
    return {{"sentence", sums.sentence()}, {"kv_heads", sums.heads},      {"differing_kv_heads", sums.differingHeads},
            {"selected", sums.chosen},     {"differing", sums.differing}, {"with_scores", sums.scored},
            {"near_ties", sums.nearTies}};
}

int run(const CompareArguments& arguments) {
    const std::optional<GapSums> gaps = writeDifferences(arguments);
    if (gaps && !arguments.json) printOut("{}: {}.\n", arguments.differences, gaps->sentence());
    CompareOptions options;
    const std::optional<double> threshold = parseThreshold(arguments.failOver);
    options.threshold = threshold.value_or(0);
    options.confidence = arguments.confidence / 100;
    options.seed = arguments.seed;
    std::vector<RunSample> a, b;
    {
        LongAction action;
        a = load(arguments.a, action, 0);
        b = load(arguments.b, action, 0.5);
    }
    std::vector<Obstacle> obstacles = findObstacles(a, b);
    const bool canBeIgnored =
        std::all_of(obstacles.begin(), obstacles.end(), [](const auto& o) { return o.mayBeIgnored; });
    if (!obstacles.empty() && !(arguments.anyway && canBeIgnored)) {
        if (arguments.json) {
            Json out{{"verdict", "not comparable"}, {"reasons", Json::array()}};
            for (const Obstacle& o : obstacles)
                out["reasons"].push_back({{"reason", o.what}, {"anyway", o.mayBeIgnored}});
            if (gaps) out["selections"] = toJson(*gaps);
            printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
        } else {
            printErr("kvscope-cli: not comparable: {}{}\n", joined(obstacles),
                     canBeIgnored ? "; --anyway compares them nevertheless" : "");
        }
        return kNotComparable;
    }
    Comparison comparison = compareRuns(a, b, options);
    for (const Obstacle& obstacle : obstacles)
        comparison.notes.insert(comparison.notes.begin(), "compared anyway: " + obstacle.what);
    const int status = threshold && comparison.verdict == Verdict::Slower ? kSlower : 0;
    if (arguments.json) {
        Json out = toJson(comparison);
        out["a"] = toJson(a);
        out["b"] = toJson(b);
        out["exposed_is"] = a.front().run.timing.text();
        out["exit_status"] = status;
        if (gaps) out["selections"] = toJson(*gaps);
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        printText(a, b, comparison);
    }
    return status;
}

} // namespace

Command addCompare(Options& program) {
    auto arguments = std::make_shared<CompareArguments>();
    Options sub = program.command(
        "compare", "Judge two runs: is B slower than A, beyond noise? Exit status 3: slower than --fail-over "
                   "beyond noise; 4: not comparable");
    sub.add("a", arguments->a.file, "The .kvtrace file to compare with").required();
    sub.add("b", arguments->b.file, "The .kvtrace file to judge; may be the same one").required();
    sub.add("--run-a", arguments->a.runs, "Run of A; several (1,2,3) are repeats; default: the last").commaSeparated();
    sub.add("--run-b", arguments->b.runs, "Run of B, likewise").commaSeparated();
    sub.add("--also-a", arguments->a.more, "Another trace whose last run repeats A; repeatable");
    sub.add("--also-b", arguments->b.more, "Another trace whose last run repeats B; repeatable");
    sub.add("--fail-over", arguments->failOver,
            "Exit with status 3 if B takes more time per step than this, beyond noise, e.g. 3%");
    sub.add("--confidence", arguments->confidence, "Confidence of the intervals in percent")
        .range(50.0, 99.9)
        .showsDefault();
    sub.add("--seed", arguments->seed, "Seed of the resampling; the same seed gives the same numbers").showsDefault();
    sub.add("--differences", arguments->differences,
            "Also write which blocks the first runs of A and B select differently, with their scores' gaps, as .csv "
            "or .jsonl");
    sub.flag("--anyway", arguments->anyway,
             "Compare also runs that are unfinished, lack steps, or differ in context length or device");
    sub.flag("--json", arguments->json, "Print one JSON document");
    addColdOption(sub);
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
