// A server's engine for a long time on the CPU: does it become slower or larger, and does anything stay behind?
#include "bench/bench.h"
#include "bench/machine.h"

#include "base/error.h"
#include "core/prompt/prompts.h"
#include "core/serve/engine.h"
#include "core/serve/random_draws.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <unistd.h>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using namespace serve;

constexpr int kQuarters = 4, kInFlight = 12, kMostPrompt = 600;
constexpr double kMiB = 1024.0 * 1024;

/// Memory of this process that is in the machine's memory.
double residentMiB() {
    std::ifstream statm("/proc/self/statm");
    std::int64_t total = 0, resident = 0;
    statm >> total >> resident;
    return double(resident) * double(sysconf(_SC_PAGESIZE)) / kMiB;
}

/// Counts what becomes of requests, and which are there.
class Ends final : public EngineObserver {
public:
    void token(RequestId, std::int32_t, int, std::int64_t, const StepRecord&) override { ++tokens; }
    void ended(RequestId id, Ending ending, std::int64_t, const Error* error) override {
        ++counts[std::size_t(ending)];
        open.erase(id);
        if (ending == Ending::Failed && failure.empty() && error) failure = oneLine(*error);
    }

    std::int64_t tokens = 0;
    std::int64_t counts[5] = {};
    std::set<RequestId> open;
    std::string failure;
};

class Soak {
public:
    Soak() : model_(Model::load(kDefaultModel)), prompts_(*model_), engine_(model_, options(), ends_) {}

    /// Requests that are cancelled at once or in one of the next iterations.
    Json cancelEach(int cycles, const Log& log) {
        double warm = 0;
        for (int i = 0; i < cycles; ++i) {
            if (i == cycles / 10) warm = residentMiB();
            const RequestId id = submit(8 + int(draws_.below(24)), 4);
            // Most leave from the queue; the others have a row, a part of a prompt or tokens by then.
            for (std::uint64_t iterations = draws_.below(10) == 0 ? 1 + draws_.below(4) : 0; iterations > 0;
                 --iterations)
                engine_.iterate();
            engine_.cancel(id);
            engine_.iterate();
        }
        const double grown = residentMiB() - warm;
        log(fmt::format("{} submit-cancel cycles: {:+.1f} MiB behind the first tenth", cycles, grown));
        return {{"cycles", cycles}, {"grown_mib", grown}, {"left_open", int(ends_.open.size())}};
    }

    /// Serves and cancels for so long. Rates and memory are those of each quarter.
    Json serve(double seconds, const Log& log) {
        Json quarters = Json::array();
        std::vector<double> rates, memory;
        for (int quarter = 0; quarter < kQuarters; ++quarter) {
            const auto began = Clock::now();
            const std::int64_t before = ends_.tokens;
            const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
            while (elapsed() < seconds / kQuarters) {
                while (int(ends_.open.size()) < kInFlight)
                    submit(16 + int(draws_.below(kMostPrompt - 16)), 1 + int(draws_.below(48)));
                if (draws_.below(200) == 0) cancelOne();
                engine_.iterate();
            }
            rates.push_back(double(ends_.tokens - before) / elapsed());
            memory.push_back(residentMiB());
            log(fmt::format("quarter {}: {:.1f} tokens/s, {:.1f} MiB resident", quarter + 1, rates.back(),
                            memory.back()));
            quarters.push_back({{"tokens_per_s", rates.back()}, {"resident_mib", memory.back()}});
        }
        return {{"seconds", seconds},
                {"quarters", quarters},
                {"last_rate_over_first", rates.back() / rates.front()},
                {"grown_mib_since_first_quarter", memory.back() - memory.front()}};
    }

    /// Ends everything. @return what is still reserved or open; all 0 in a sound engine
    Json leave() {
        const std::set<RequestId> open = ends_.open;
        for (const RequestId id : open) engine_.cancel(id);
        while (engine_.iterate()) {
        }
        const Amounts& used = engine_.table().ledger().used();
        Json ended = Json::object();
        for (const Ending ending : {Ending::Length, Ending::Stop, Ending::Cancelled, Ending::Refused, Ending::Failed})
            ended[nameOf(ending)] = ends_.counts[std::size_t(ending)];
        return {{"ended", ended},
                {"first_failure", ends_.failure.empty() ? Json(nullptr) : Json(ends_.failure)},
                {"open_requests", engine_.requests()},
                {"open_rows", engine_.openRows()},
                {"reserved_bytes", used.host + used.device + used.scratch + used.hard + used.workingSets}};
    }

private:
    static EngineOptions options() {
        EngineOptions options;
        options.session.method = "nosa";
        ParameterValues knobs = schedulerDefaults();
        // A small device, so that rows wait and are paused.
        for (const auto& [key, value] : {std::pair("rows", "8"), std::pair("cache", "global-lru")})
            knobs.set(schedulerParameters(), key, value);
        options.scheduler = schedulerOptions(knobs);
        options.budget = {0, std::int64_t(128) << 20, std::int64_t(24) << 20, std::int64_t(32) << 20, true};
        return options;
    }
    RequestId submit(int promptTokens, int newTokens) {
        Submission request;
        request.id = next_++;
        request.prompt = prompts_.prompt(promptTokens, request.id, std::uint64_t(request.id));
        request.maxTokens = newTokens;
        request.stopAtEos = false;
        ends_.open.insert(request.id);
        const RequestId id = request.id;
        engine_.submit(std::move(request));
        return id;
    }
    void cancelOne() {
        auto chosen = ends_.open.begin();
        std::advance(chosen, long(draws_.below(ends_.open.size())));
        engine_.cancel(*chosen);
    }

    const std::shared_ptr<const Model> model_;
    const SplicedPrompts prompts_;
    Ends ends_;
    Engine engine_;
    Draws draws_{1};
    RequestId next_ = 0;
};

double numberOr(const Settings& settings, const char* key, double fallback) {
    const auto found = settings.find(key);
    if (found == settings.end()) return fallback;
    char* end = nullptr;
    const double number = std::strtod(found->second.c_str(), &end);
    if (end == found->second.c_str() || *end != '\0' || !(number >= 10) || number > 1e7)
        throw Error(ErrorKind::BadInput, fmt::format("'{}' is not a number of {} from 10 to 1e7", found->second, key));
    return number;
}

} // namespace

/// Settings: seconds=3600, cycles=100000.
Json servingSoak(const Settings& settings, const Log& log) {
    for (const auto& [key, value] : settings)
        if (key != "seconds" && key != "cycles")
            throw Error(ErrorKind::BadInput, fmt::format("serving-soak has no setting '{}'", key),
                        "known settings: seconds, cycles");
    const double seconds = numberOr(settings, "seconds", 3600);
    const int cycles = int(numberOr(settings, "cycles", 100'000));
    Soak soak;
    Json out;
    out["submit_cancel"] = soak.cancelEach(cycles, log);
    out["soak"] = soak.serve(seconds, log);
    out["after"] = soak.leave();
    return out;
}

} // namespace kvscope::bench
