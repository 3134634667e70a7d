// A small serving run for tests: an engine's memory of a few bytes, requests made by hand, and iterations that take
// what the test says.
#pragma once

#include "core/serve/request_table.h"
#include "core/serve/scheduler.h"

#include <string>
#include <utility>
#include <vector>

namespace kvscope::serve::small {

/// Two layers, one KV head, blocks of 4 tokens and 8 bytes, 4 blocks selected; a token of a layer takes 1 ms to read.
inline ServiceCosts smallCosts() {
    ServiceCosts costs;
    costs.decodeMs = {{{1, 1.0}, {64, 1.0}}};
    costs.decodeUsPerKtoken = 0, costs.prefillUsPerToken = 1000, costs.prefillPsPerToken2 = 0;
    costs.planMs = costs.gapMs = 0;
    MemoryShape& shape = costs.shape;
    shape.layers = 2, shape.kvHeads = 1, shape.blockTokens = 4, shape.blockBytes = 8, shape.indexBytesPerToken = 1;
    shape.selectedBlocks = 4, shape.hidden = 1, shape.hostRunBlocks = 2, shape.pieceTokens = 8;
    return costs;
}

inline SchedulerOptions optionsOf(const std::vector<std::pair<std::string, std::string>>& knobs) {
    ParameterValues values = schedulerDefaults();
    for (const auto& [key, value] : knobs) values.set(schedulerParameters(), key, value);
    return schedulerOptions(values);
}

/// A budget in which nothing is short.
inline Budget plenty(const SchedulerOptions& options) {
    return {options.rows, 1 << 30, 1 << 30, 1 << 30, options.workingSetControl};
}

/// Scheduler and table with a clock that the test moves.
class Server {
public:
    Server(const SchedulerOptions& options, const ServiceCosts& costs, const Budget& budget)
        : scheduler(options, costs), table(budget) {}

    ServeRequest requestOf(RequestId id, int prompt, int tokens) const {
        ServeRequest request;
        request.id = id, request.queuedNs = now;
        request.promptTokens = prompt, request.maxTokens = tokens;
        request.needs = scheduler.costs().shape.needsOf(scheduler.options(), prompt, tokens);
        request.workingSetBytes = scheduler.costs().shape.firstWorkingSet(scheduler.options(), prompt + tokens);
        return request;
    }
    void arrive(RequestId id, int prompt, int tokens) { table.arrive(requestOf(id, prompt, tokens)); }

    /// Plans one iteration, which lasts as long as predicted, and ends requests that have all their tokens.
    const IterationPlan& step() {
        scheduler.plan(table.snapshot(now, 1), plan);
        table.begin(plan, now);
        now += std::int64_t(plan.predictedMs * 1e6);
        ended.clear();
        for (const RequestTable::Token& token : table.end(plan, now))
            if (token.generated >= table.find(token.id)->maxTokens) ended.push_back(token.id);
        for (const RequestId id : ended) table.finish(id);
        return plan;
    }
    /// @return iterations until nothing is left, or -1 after `most`
    int drain(int most = 100000) {
        for (int i = 0; i < most; ++i) {
            if (table.idle()) return i;
            step();
        }
        return -1;
    }

    Scheduler scheduler;
    RequestTable table;
    IterationPlan plan;
    std::vector<RequestId> ended;
    std::int64_t now = 0;
};

inline std::vector<RequestId> idsOf(const std::vector<Member>& members) {
    std::vector<RequestId> ids;
    for (const Member& member : members) ids.push_back(member.id);
    return ids;
}

} // namespace kvscope::serve::small
