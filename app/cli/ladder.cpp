#include "app/cli/ladder.h"

#include "app/cli/serving_report.h"
#include "app/cli/setting_options.h"
#include "app/cli/vain.h"
#include "app/terminal/output.h"
#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve;

/// Reads a number from a result, which comes from a file of points that a person may have edited.
double numberIn(const Json& result, const char* pointer) {
    const Json::json_pointer at(pointer);
    if (!result.contains(at) || !result[at].is_number())
        throw Error(ErrorKind::BadInput, fmt::format("a finished point lacks the number '{}'", pointer),
                    "remove its line from the file of --resume");
    return result[at].get<double>();
}

/// What the search found for one rung.
struct Found {
    std::vector<double> capacities; // [seed] the capacity; 0: nothing holds on the rung, which is void then
    std::string broken;             // what broke first above the capacity of the first seed
    Json best;                      // result of the largest rate that holds for the first seed; null: no rate holds

    double mean() const {
        return std::accumulate(capacities.begin(), capacities.end(), 0.0) / double(capacities.size());
    }
    bool isVoid() const { return *std::min_element(capacities.begin(), capacities.end()) <= 0; }
};

/// @throws Error(BadInput) where a knob is given that the rungs decide
void refuseKnobsOfRungs(const std::vector<std::string>& knobs, const char* option) {
    for (const std::string& setting : knobs) {
        const std::string key = setting.substr(0, setting.find('='));
        const auto& decided = knobsOfRungs();
        if (std::find(decided.begin(), decided.end(), key) != decided.end())
            throw Error(ErrorKind::BadInput, fmt::format("{} {} has no effect: every rung decides it", option, setting),
                        fmt::format("leave out {}, or leave out --rungs", fmt::join(decided, ", ")));
    }
}

class Climb {
public:
    Climb(const Ladder& ladder, bool print) : ladder_(ladder), print_(print), finished_(*ladder.finished) {}

    Json make() {
        Json list = Json::array();
        if (print_) {
            if (finished_.found() > 0)
                say(fmt::format("{} finished points in {}", finished_.found(), finished_.file()));
            say(fmt::format("{:<11} {:>24} {:>6} {:>7} {:>9} {:>9} {:>6}  {}", "rung", "capacity, requests/s", "gain",
                            "rows", "TBT P99", "tokens/s", "hits", "above it"));
        }
        double product = 1, before = 0;
        bool whole = true; // no rung was void
        for (std::size_t i = 0; i < ladder_.rungs.size(); ++i) {
            const Rung& rung = ladder_.rungs[i];
            done_ = double(i) / double(ladder_.rungs.size());
            const Found found = search(rung);
            Json entry = jsonOf(rung, found);
            const bool counts = !found.isVoid() && before > 0;
            if (counts) product *= found.mean() / before;
            entry["gain"] = counts ? Json(found.mean() / before) : Json(nullptr);
            if (print_) printRung(rung, found, counts ? found.mean() / before : 0);
            if (counts && found.mean() < before && print_)
                say(fmt::format("  below the rung before it: {}", found.broken));
            if (ladder_.measured && !found.isVoid())
                entry["measured"] = confirm(rung, found, i == 0 || i + 1 == ladder_.rungs.size());
            whole = whole && !found.isVoid();
            before = found.isVoid() ? 0 : found.mean();
            list.push_back(std::move(entry));
        }
        if (print_ && whole && ladder_.rungs.size() > 1) say(fmt::format("product of the gains {:.3g}", product));
        return {{"rungs", std::move(list)}, {"product_of_gains", whole ? Json(product) : Json(nullptr)}};
    }

private:
    void say(const std::string& line) {
        ladder_.clearProgress();
        printOut("{}\n", line);
    }

    LadderPoint at(const Rung& rung, std::uint64_t seed, double rate, bool measured) {
        const std::string key =
            fmt::format("{} {} seed {} rate {:.17g}", measured ? "measured" : "simulated", rung.name, seed, rate);
        ladder_.progress(done_, fmt::format("{}, seed {}: {:.4g} requests/s{}", rung.name, seed, rate,
                                            measured ? ", measuring" : ""));
        if (const Json* kept = finished_.find(key)) return pointOf(*kept, rate);
        const LadderPoint point = measured ? ladder_.measured(rung, seed, rate) : simulated(rung, seed, rate);
        finished_.add(key, {{"broken", point.broken}, {"refused", point.refused}, {"result", point.result}});
        return point;
    }

    LadderPoint simulated(const Rung& rung, std::uint64_t seed, double rate) {
        SimulationOptions options = ladder_.simulation(rung);
        options.between = [&] { ladder_.progress(done_, rung.name); }; // a Ctrl-C ends the search here
        const CapacityPoint point = simulatePoint(ladder_.workloads.at(seed), rate, options, ladder_.rule);
        return {rate, point.broken, point.result.refused, cli::jsonOf(point.result, point.broken)};
    }

    LadderPoint pointOf(const Json& kept, double rate) const {
        if (!kept.contains("broken") || !kept["broken"].is_string() || !kept.contains("refused") ||
            !kept["refused"].is_number_integer() || !kept.contains("result") || !kept["result"].is_object())
            throw Error(ErrorKind::BadInput, fmt::format("a point in '{}' is not complete", finished_.file()),
                        "remove its line");
        return {rate, kept["broken"].get<std::string>(), kept["refused"].get<int>(), kept["result"]};
    }

    Found search(const Rung& rung) {
        Found found;
        for (const std::uint64_t seed : ladder_.seeds) {
            const double first = halfUsed(ladder_.workloads.at(seed), ladder_.simulation(rung));
            const LadderPoint lowest = at(rung, seed, first, false);
            if (lowest.refused > 0) { // at half of the load a server refuses only requests that can never fit
                found.capacities.push_back(0);
                if (found.broken.empty()) found.broken = lowest.broken;
                continue;
            }
            Json best;
            const Capacity capacity = searchCapacity(first, ladder_.rule.tolerance, [&](double rate) {
                const LadderPoint point = at(rung, seed, rate, false);
                if (point.broken.empty()) best = point.result;
                CapacityPoint tried{rate, point.broken, {}};
                tried.result.counted = int(numberIn(point.result, "/requests/counted"));
                tried.result.busy = numberIn(point.result, "/busy");
                return tried;
            });
            found.capacities.push_back(capacity.rate);
            if (found.broken.empty()) found.broken = capacity.broken;
            if (found.best.is_null()) found.best = best;
        }
        return found;
    }

    Json confirm(const Rung& rung, const Found& found, bool everySeed) {
        Json points = Json::array();
        for (const std::uint64_t seed : ladder_.seeds) {
            if (seed != ladder_.seeds.front() && !everySeed) break;
            for (const double share : {0.9, 1.1}) {
                const LadderPoint point = at(rung, seed, share * found.mean(), true);
                if (print_)
                    say(fmt::format("  measured, seed {}: {:.4g} requests/s ({} of the capacity) {}", seed, point.rate,
                                    share, point.broken.empty() ? "holds" : point.broken));
                Json entry = point.result;
                entry["seed"] = seed, entry["rate"] = point.rate, entry["share_of_capacity"] = share;
                points.push_back(std::move(entry));
            }
        }
        return points;
    }

    static Json jsonOf(const Rung& rung, const Found& found) {
        return {{"rung", rung.name},
                {"adds", rung.adds},
                {"void", found.isVoid()},
                {"capacities_per_s", found.capacities},
                {"capacity_per_s", found.isVoid() ? Json(nullptr) : Json(found.mean())},
                {"broke_first", found.broken},
                {"at_capacity", found.best}};
    }

    void printRung(const Rung& rung, const Found& found, double gain) {
        if (found.isVoid()) return say(fmt::format("{:<11} void: {}", rung.name, found.broken));
        const auto [low, high] = std::minmax_element(found.capacities.begin(), found.capacities.end());
        std::string capacity = fmt::format("{:.4g}", found.mean());
        if (found.capacities.size() > 1) capacity += fmt::format(" [{:.4g}, {:.4g}]", *low, *high);
        const Json& best = found.best;
        say(fmt::format("{:<11} {:>24} {:>6} {:>7.1f} {:>6.1f} ms {:>9.1f} {:>6.3f}  {}", rung.name, capacity,
                        gain > 0 ? fmt::format("x{:.2f}", gain) : "", numberIn(best, "/decode_rows"),
                        numberIn(best, "/tbt_ms/p99_interpolated"), numberIn(best, "/output_tokens_per_s"),
                        numberIn(best, "/hit_rate"), found.broken));
    }

    const Ladder& ladder_;
    const bool print_;
    FinishedPoints& finished_;
    double done_ = 0;
};

} // namespace

Option addLadderOptions(Options& command, LadderArguments& arguments, const char* help, const Option& search) {
    const Option rungs = command.add("--rungs", arguments.rungs, help).valueName("RUNG,...").needs(search);
    command.add("--resume", arguments.resume, "Keep finished points of --rungs in this file and do not try them again")
        .valueName("FILE")
        .needs(rungs);
    return rungs;
}

Ladder::Ladder(const ServingArguments& serving, const LadderArguments& arguments, const char* knobOption) {
    refuseKnobsOfRungs(serving.knobs, knobOption);
    refuseRepeated("--rungs", listedValues("--rungs", arguments.rungs));
    rungs = rungsNamed(arguments.rungs);
    std::vector<Workload> bySeed = workloadsOf(serving, serving.seed, arguments.seeds);
    for (int s = 0; s < arguments.seeds; ++s) {
        seeds.push_back(serving.seed + std::uint64_t(s));
        workloads.emplace(seeds.back(), std::move(bySeed[std::size_t(s)]));
    }
}

Json climb(const Ladder& ladder, bool print) { return Climb(ladder, print).make(); }

} // namespace kvscope::cli
