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
    /// The mean, with the lowest and the highest where there are several seeds.
    std::string text() const {
        const auto [low, high] = std::minmax_element(capacities.begin(), capacities.end());
        return fmt::format("{:.4g}", mean()) +
               (capacities.size() > 1 ? fmt::format(" [{:.4g}, {:.4g}]", *low, *high) : "");
    }
};

/// Multiplies the gains of the rungs, each over the one before it.
class Gains {
public:
    /// @return the gain over the rung before; 0: there is none, or one of the two is void
    double add(const Found& found) {
        const double now = found.isVoid() ? 0 : found.mean();
        const double gain = before_ > 0 ? now / before_ : 0;
        whole_ = whole_ && now > 0;
        if (gain > 0) product_ *= gain;
        before_ = now;
        return gain;
    }
    /// null where a rung was void
    Json product() const { return whole_ ? Json(product_) : Json(nullptr); }

private:
    double product_ = 1, before_ = 0;
    bool whole_ = true;
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
        Gains gains, measuredGains;
        for (std::size_t i = 0; i < ladder_.rungs.size(); ++i) {
            const Rung& rung = ladder_.rungs[i];
            done_ = double(i) / double(ladder_.rungs.size());
            const Found found = search(rung);
            Json entry = jsonOf(rung, found);
            const double gain = gains.add(found);
            addGain(entry, found, gain);
            if (print_) printRung(rung, found, gain);
            if (gain > 0 && gain < 1 && print_) say(fmt::format("  below the rung before it: {}", found.broken));
            if (ladder_.measured && ladder_.searchMeasured)
                entry["measured_search"] = searchedByEngine(rung, found, measuredGains);
            else if (ladder_.measured && !found.isVoid())
                entry["measured"] = confirm(rung, found, i == 0 || i + 1 == ladder_.rungs.size());
            list.push_back(std::move(entry));
        }
        if (print_ && ladder_.rungs.size() > 1) sayProduct("", gains);
        Json out{{"rungs", std::move(list)}, {"product_of_gains", gains.product()}};
        if (ladder_.searchMeasured) {
            if (print_ && ladder_.rungs.size() > 1) sayProduct("measured: ", measuredGains);
            out["product_of_measured_gains"] = measuredGains.product();
        }
        return out;
    }

private:
    void say(const std::string& line) {
        ladder_.clearProgress();
        printOut("{}\n", line);
    }

    void sayProduct(const char* of, const Gains& gains) {
        if (const Json product = gains.product(); product.is_number())
            say(fmt::format("{}product of the gains {:.3g}", of, product.get<double>()));
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
            searchFrom(first, rung, seed, false, found);
        }
        return found;
    }

    /// Searches one seed, in the simulator or with the engine.
    void searchFrom(double first, const Rung& rung, std::uint64_t seed, bool measured, Found& found) {
        Json best;
        const Capacity capacity = searchCapacity(first, ladder_.rule.tolerance, [&](double rate) {
            const LadderPoint point = at(rung, seed, rate, measured);
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

    /// Searches with the engine from what the simulator found, seed by seed.
    Json searchedByEngine(const Rung& rung, const Found& simulated, Gains& gains) {
        Found found;
        for (std::size_t s = 0; s < ladder_.seeds.size(); ++s) {
            if (const double first = simulated.capacities[s]; first > 0)
                searchFrom(first, rung, ladder_.seeds[s], true, found);
            else
                found.capacities.push_back(0), found.broken = simulated.broken;
        }
        const double gain = gains.add(found);
        const double error = found.isVoid() ? 0 : simulated.mean() / found.mean() - 1;
        if (print_ && found.isVoid()) say(fmt::format("  measured: void: {}", found.broken));
        if (print_ && !found.isVoid()) {
            const Json& best = found.best;
            say(fmt::format("  measured {:>26} {:>6} {:>7.1f} {:>6.1f} ms {:>9.1f} {:>6.3f}  {}; simulated {:+.1f} %",
                            found.text(), gain > 0 ? fmt::format("x{:.2f}", gain) : "", numberIn(best, "/decode_rows"),
                            numberIn(best, "/tbt_ms/p99_interpolated"), numberIn(best, "/output_tokens_per_s"),
                            numberIn(best, "/hit_rate"), found.broken, 100 * error));
            if (gain > 0 && gain < 1) say(fmt::format("  below the rung before it: {}", found.broken));
        }
        Json out = jsonOf(rung, found);
        addGain(out, found, gain);
        out["simulated_error"] = found.isVoid() ? Json(nullptr) : Json(error);
        return out;
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

    /// Why a rung is below the one before it: what broke first above its capacity.
    static void addGain(Json& entry, const Found& found, double gain) {
        entry["gain"] = gain > 0 ? Json(gain) : Json(nullptr);
        entry["below_the_rung_before"] = gain > 0 && gain < 1 ? Json(found.broken) : Json(nullptr);
    }

    void printRung(const Rung& rung, const Found& found, double gain) {
        if (found.isVoid()) return say(fmt::format("{:<11} void: {}", rung.name, found.broken));
        const Json& best = found.best;
        say(fmt::format("{:<11} {:>24} {:>6} {:>7.1f} {:>6.1f} ms {:>9.1f} {:>6.3f}  {}", rung.name, found.text(),
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

void addCapacityOptions(Options& command, CapacityArguments& arguments) {
    command.add("--rule", arguments.rule, "What a rate has to keep")
        .oneOf({"mean-queue", "median-queue", "attainment"})
        .showsDefault();
    command.add("--queue", arguments.queueSeconds, "Bound of mean-queue and median-queue, seconds")
        .positive()
        .showsDefault();
    command.add("--attainment", arguments.attainment, "Bound of attainment").range(0.0, 1.0).showsDefault();
}

void refuseVainCapacity(const Options& command, const CapacityArguments& arguments) {
    refuseVain(arguments.rule == "attainment", command, {"--queue"}, "with --rule attainment");
    refuseVain(arguments.rule != "attainment", command, {"--attainment"}, "with --rule " + arguments.rule);
}

CapacityOptions capacityOf(const CapacityArguments& arguments) {
    CapacityOptions options;
    options.rule = arguments.rule == "attainment"     ? CapacityRule::Attainment
                   : arguments.rule == "median-queue" ? CapacityRule::MedianQueue
                                                      : CapacityRule::MeanQueue;
    options.queueMs = arguments.queueSeconds * 1000;
    options.attainment = arguments.attainment;
    return options;
}

Option addLadderOptions(Options& command, LadderArguments& arguments, const char* help, const Option& search) {
    const Option rungs = command.add("--rungs", arguments.rungs, help).valueName("RUNG,...").needs(search);
    command.add("--resume", arguments.resume, "Keep finished points of --rungs in this file and do not try them again")
        .valueName("FILE")
        .needs(rungs);
    return rungs;
}

Ladder::Ladder(const ServingArguments& serving, const LadderArguments& arguments, const char* knobOption)
    : searchMeasured(arguments.searchEngine) {
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
