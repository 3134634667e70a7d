// How far is the simulator from the engine? A table of costs is fitted to two servers on the CPU, and predicts others
// that differ in budget, arrivals and method. Times are processor time, which does not count what other programs take.
// But other programs slow this one down through cache and memory. Therefore a few requests, always the same, are served
// before and after every rate, and the rate's clock is scaled by the time that they took.
#include "bench/bench.h"
#include "bench/serving.h"

#include "base/error.h"
#include "core/prompt/prompts.h"
#include "core/serve/capacity.h"
#include "core/serve/load.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve;

/// One server and what is offered to it. Servers that are compared differ from the first one in what the name says.
struct Server {
    const char* name;
    const char* method;
    std::vector<std::pair<std::string, std::string>> settings; // of the method
    std::int64_t deviceMiB;
    const char* cache;
    Arrivals arrivals;
};

const std::vector<Server>& fittedServers() {
    static const std::vector<Server> list{{"nosa, 64 MiB", "nosa", {}, 64, "partition", Arrivals::Poisson},
                                          {"quest, 48 MiB", "quest", {}, 48, "partition", Arrivals::Poisson}};
    return list;
}
const std::vector<Server>& testedServers() {
    static const std::vector<Server> list{
        {"a smaller device", "nosa", {}, 24, "partition", Arrivals::Poisson},
        {"bursts", "nosa", {}, 64, "partition", Arrivals::Gamma},
        {"another method", "infllmv2", {}, 64, "partition", Arrivals::Poisson},
        {"one pool for all rows", "nosa", {}, 32, "global-lru", Arrivals::Poisson},
    };
    return list;
}

/// How often a rate is served again where the machine was slower or faster after it than before.
constexpr int kRepeats = 2;
constexpr double kSteady = 0.1; // speeds that differ by less are taken for one

struct Limits {
    int counted = 48;
    double tolerance = 0.025; // of capacities
    std::uint64_t seed = 1;
};

class Comparison {
public:
    Comparison(const Limits& limits, const Log& log)
        : limits_(limits), log_(log), model_(Model::load(kDefaultModel)), prompts_(*model_) {}

    Json make() {
        Json out{{"clock", "processor time of one thread"},
                 {"model", model_->name()},
                 {"workload", "longmix --scale 8"},
                 {"counted", limits_.counted}};
        reference_ = probe();
        const ServiceCosts costs = fitBoth(out);
        double worstTime = 0, worstCapacity = 0;
        for (const Server& server : testedServers()) {
            Json entry = compare(server, costs);
            worstTime = std::max(worstTime, entry["iteration_time_error_p50"].get<double>());
            worstCapacity = std::max(worstCapacity, std::abs(entry["capacity_error"].get<double>()));
            out["tested"].push_back(std::move(entry));
        }
        const auto [slowest, fastest] = std::minmax_element(speeds_.begin(), speeds_.end());
        out["speed"] = {{"lowest", *slowest}, {"highest", *fastest}, {"served_again", again_}, {"unsteady", unsteady_}};
        out["worst_iteration_time_error_p50"] = worstTime;
        out["worst_capacity_error"] = worstCapacity;
        log_(fmt::format(
            "worst: iteration time {:.1f} %, capacity {:.1f} %; the machine's speed was {:.2f} to {:.2f} of that "
            "at the beginning, {} rates were served again, {} rates count although it changed",
            100 * worstTime, 100 * worstCapacity, *slowest, *fastest, again_, unsteady_));
        return out;
    }

private:
    /// Processor time of a few requests, always the same, in ms.
    double probe() {
        Workload workload;
        for (int i = 0; i < 6; ++i) workload.lines.push_back({0, 512, 24, "", std::uint64_t(i)});
        workload.spanUs = 3'600'000'000;
        LoadOptions options = loadOptions();
        options.counted = 0, options.warmUpRequests = 0;
        EngineOptions engine = engineOf(fittedServers().front());
        return load(model_, workload, engine, options).numbers.e2e.max;
    }
    /// The speed of the machine, 1 at the beginning.
    double speed() {
        speeds_.push_back(reference_ / probe());
        return speeds_.back();
    }
    /// Serves the workload by a clock that runs as fast as the machine at present. Where it is another speed behind the
    /// run than before it, what was measured is thrown away, unless that happened too often.
    LoadResult serve(const Workload& workload, const EngineOptions& engine, const LoadOptions& options) {
        double before = speed();
        for (int again = 0;; ++again) {
            LoadOptions timed = options;
            CostFit fit;
            if (options.fit) fit = *options.fit, timed.fit = &fit;
            timed.processorSpeed = before;
            LoadResult result = load(model_, workload, engine, timed);
            const double after = speed();
            const bool steady = std::abs(after / before - 1) < kSteady;
            if (!steady && again < kRepeats) {
                ++again_, before = after;
                continue;
            }
            unsteady_ += steady ? 0 : 1;
            if (options.fit) *options.fit = fit;
            return result;
        }
    }

    /// Fits one table to both servers at half of what they can do. The first plans come from a short measurement.
    ServiceCosts fitBoth(Json& out) {
        CostFit fit;
        ServiceCosts costs;
        for (const Server& server : fittedServers()) {
            EngineOptions engine = engineOf(server);
            LoadOptions options = loadOptions();
            options.processorSpeed = speed();
            engine.costs = measureCosts(model_, engine, options);
            options.fit = &fit;
            const Workload workload = workloadOf(server);
            const double rate = halfUsed(workload, simulationOf(engine, engine.costs));
            const LoadResult result = serve(atRate(workload, rate), engine, options);
            costs = result.costs;
            log_(fmt::format("fitted to {} at {:.3g} requests/s: {} iterations", server.name, rate,
                             result.numbers.iterations));
            out["fitted"].push_back({{"server", server.name},
                                     {"method", server.method},
                                     {"device_mib", server.deviceMiB},
                                     {"rate_per_s", rate},
                                     {"iterations", result.numbers.iterations}});
        }
        costs = fit.fit(costs, engineOf(fittedServers().back()).scheduler);
        out["costs"] = Json::parse(costs.toJson());
        return costs;
    }

    /// Searches the capacity of a server with the engine, whose plans come from the fitted table, and in the simulator.
    Json compare(const Server& server, const ServiceCosts& costs) {
        EngineOptions engine = engineOf(server);
        engine.costs = costs;
        const Workload workload = workloadOf(server);
        const SimulationOptions simulation = simulationOf(engine, costs);
        CapacityOptions rule;
        rule.tolerance = limits_.tolerance;
        const Capacity simulated = findCapacity(workload, simulation, rule);
        double error = 0; // of the largest rate that the engine kept
        const Capacity measured = searchCapacity(halfUsed(workload, simulation), limits_.tolerance, [&](double rate) {
            LoadResult result = serve(atRate(workload, rate), engine, loadOptions());
            const std::string broken = brokenBound(result.numbers, simulation, rule);
            if (broken.empty()) error = result.numbers.predictedError;
            log_(fmt::format("{} at {:.3g} requests/s: {}", server.name, rate, broken.empty() ? "holds" : broken));
            result.numbers.outcomes.clear();
            return CapacityPoint{rate, broken, std::move(result.numbers)};
        });
        const double capacityError = measured.rate > 0 ? simulated.rate / measured.rate - 1 : 1;
        const double utilisation = utilisationOf(atRate(workload, simulated.rate), simulation);
        log_(fmt::format("{}: capacity {:.3g} requests/s measured, {:.3g} simulated ({:+.1f} %) at utilisation {:.2f}; "
                         "iteration time off by {:.1f} % in the median",
                         server.name, measured.rate, simulated.rate, 100 * capacityError, utilisation, 100 * error));
        return {{"server", server.name},
                {"method", server.method},
                {"device_mib", server.deviceMiB},
                {"cache", server.cache},
                {"arrivals", server.arrivals == Arrivals::Gamma ? "gamma, shape 0.25" : "Poisson"},
                {"capacity_measured_per_s", measured.rate},
                {"broke_first_measured", measured.broken},
                {"capacity_simulated_per_s", simulated.rate},
                {"broke_first_simulated", simulated.broken},
                {"capacity_error", capacityError},
                {"utilisation_simulated", utilisation},
                {"iteration_time_error_p50", error},
                {"rates_tried", measured.points.size()}};
    }

    static EngineOptions engineOf(const Server& server) {
        EngineOptions options;
        options.session.method = server.method, options.session.threads = 1;
        options.session.settings = server.settings;
        ParameterValues knobs = schedulerDefaults();
        knobs.set(schedulerParameters(), "cache", server.cache);
        knobs.set(schedulerParameters(), "rows", "16");
        options.scheduler = schedulerOptions(knobs);
        options.budget.host = 1024 * kMi, options.budget.device = server.deviceMiB * kMi;
        options.budget.scratch = 256 * kMi;
        return options;
    }
    LoadOptions loadOptions() const {
        LoadOptions options;
        static_cast<WindowOptions&>(options) = window();
        options.processorTime = true;
        options.prompt = [this](const WorkloadLine& line, std::int64_t request) {
            return prompts_.prompt(line.promptTokens, request, line.seed);
        };
        return options;
    }
    SimulationOptions simulationOf(const EngineOptions& engine, const ServiceCosts& costs) const {
        SimulationOptions options;
        static_cast<WindowOptions&>(options) = window();
        options.scheduler = engine.scheduler, options.budget = engine.budget, options.costs = costs;
        return options;
    }
    WindowOptions window() const {
        WindowOptions options;
        options.counted = limits_.counted, options.warmUpRequests = limits_.counted / 4, options.warmUpSeconds = 0;
        return options;
    }
    Workload workloadOf(const Server& server) const {
        Workload workload = longmix(limits_.counted, limits_.seed);
        changeLengths(workload, {8, 1, 0});
        drawArrivals(workload, server.arrivals, 0.25, limits_.seed);
        return workload;
    }
    static Workload atRate(Workload workload, double rate) {
        changeRate(workload, rate / workload.rate());
        return workload;
    }

    const Limits limits_;
    const Log& log_;
    const std::shared_ptr<const Model> model_;
    const SplicedPrompts prompts_;
    double reference_ = 0;       // the probe at the beginning, ms
    std::vector<double> speeds_; // of all probes, in units of that one
    int again_ = 0, unsteady_ = 0;
};

} // namespace

/// Settings: counted=48 (requests of a window), tolerance=0.025 (of a capacity), seed=1.
Json servingSimulator(const Settings& settings, const Log& log) {
    Limits limits;
    for (const auto& [key, value] : settings) {
        char* end = nullptr;
        const double number = std::strtod(value.c_str(), &end);
        const bool isNumber = end != value.c_str() && *end == '\0';
        if (key == "counted" && isNumber && number >= 16 && number <= 1e5)
            limits.counted = int(number);
        else if (key == "tolerance" && isNumber && number >= 0.005 && number <= 0.5)
            limits.tolerance = number;
        else if (key == "seed" && isNumber && number >= 0 && number <= 1e9)
            limits.seed = std::uint64_t(number);
        else
            throw Error(ErrorKind::BadInput, fmt::format("serving-simulator cannot take '{}={}'", key, value),
                        "its settings are counted (from 16 on), tolerance (from 0.005 to 0.5) and seed");
    }
    return Comparison(limits, log).make();
}

} // namespace kvscope::bench
