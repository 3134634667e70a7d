// What the tests of serving share on both backends: requests with what each gives alone, an observer that compares, and
// schedules in which requests join, leave and are cancelled at random.
#pragma once

#include "core/serve/engine.h"
#include "core/serve/random_draws.h"
#include "core/session/decode_session.h"
#include "core/trace/trace_sink.h"
#include "tests/core/embedded_model.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/random_prompt.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// The embedded model, less half of its layers.
inline const std::shared_ptr<const Model>& embedded() { return test::firstLayersOfEmbedded(); }

/// The methods that a backend serves and the embedded model has weights for.
inline std::vector<std::string> servedMethods(Backend backend) {
    if (!test::hasEmbeddedModel()) return {"left_out"};
    std::vector<std::string> names;
    for (const MethodEntry& method : methods())
        if (whyNotServed(method, backend).empty() && hasWeightsFor(method, *embedded())) names.push_back(method.name);
    return names;
}

/// A method's name as gtest takes it for a case.
inline std::string nameOfCase(const ::testing::TestParamInfo<std::string>& parameter) {
    std::string name = parameter.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

/// A request and what it gives alone.
struct Alone {
    Submission submission;
    std::vector<std::int32_t> tokens;
    std::vector<StepRecord> steps; // of the decode steps
};

/// Requests of these lengths (prompt, new tokens), numbered from 0. Every second one draws its tokens.
inline std::vector<Submission> requestsOf(const std::vector<std::pair<int, int>>& lengths) {
    std::vector<Submission> all;
    int seed = 0;
    for (const auto& [prompt, tokens] : lengths) {
        Submission request;
        request.id = seed;
        request.prompt = test::randomPrompt(prompt, unsigned(++seed));
        request.maxTokens = tokens;
        request.stopAtEos = false;
        if (seed % 2 == 0) request.sampling = {0.9, 0.95, 40, std::uint64_t(seed)};
        all.push_back(std::move(request));
    }
    return all;
}

/// What kvscope-cli run gives for the request. options: the method and its settings. slots: of the device tier; 0: the
/// method's own number.
inline Alone aloneWith(SessionOptions options, const Submission& request, int slots) {
    options.maxNewTokens = request.maxTokens;
    options.stopAtEos = request.stopAtEos;
    options.sampling = request.sampling;
    if (slots > 0) options.deviceKvBlocks = slots, options.cachePolicy = "lru";
    CollectingSink sink(RecordLevel::Selections);
    DecodeSession session(embedded(), {request.prompt}, options, sink);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    Alone result{request, session.generated().front(), {}};
    for (StepRecord& step : sink.steps)
        if (step.phase == Phase::Decode) result.steps.push_back(std::move(step));
    return result;
}

/// Whether an engine with these options moves blocks between the tiers by the common rules.
inline bool movesBlocks(const EngineOptions& options) {
    EngineObserver nobody;
    const Engine engine(embedded(), options, nobody);
    return engine.costs().shape.offloadedLayers() > 0 && !engine.ownDeviceTier();
}

/// Compares what an engine tells with what requests give alone, and counts what happened.
class Watcher final : public EngineObserver {
public:
    /// invariant: every token, selection, hit and byte must be the same. Otherwise the first token must be, and
    /// requests with other tokens or selections are counted.
    Watcher(const std::vector<Alone>& expected, bool comparesHits, bool invariant = true)
        : expected_(expected), comparesHits_(comparesHits), invariant_(invariant) {}

    void token(RequestId id, std::int32_t token, int generated, std::int64_t, const StepRecord& record) override {
        const Alone& want = expected_[std::size_t(id)];
        std::vector<std::int32_t>& have = tokens[id];
        have.push_back(token);
        if (int(have.size()) != generated) return fault(id, "the count of its tokens is wrong");
        if (have.size() > want.tokens.size()) return fault(id, "it has too many tokens");
        ++compared;
        if (token != want.tokens[have.size() - 1] && diverged.insert(id).second && (invariant_ || generated == 1))
            fault(id, fmt::format("token {} differs", generated));
        if (generated > 1) compareStep(id, generated, record, want.steps[std::size_t(generated - 2)]);
    }
    void paused(RequestId, std::int64_t) override { ++pauses; }
    void ended(RequestId id, Ending ending, std::int64_t, const Error* error) override {
        const std::vector<std::int32_t>& want = expected_[std::size_t(id)].tokens;
        if (!endings.emplace(id, ending).second) fault(id, "it has ended twice");
        if (error) fault(id, oneLine(*error));
        if (ending == Ending::Length && (invariant_ ? tokens[id] != want : tokens[id].size() != want.size()))
            fault(id, "it has ended early");
    }
    void iteration(const IterationReport& report) override {
        for (const PrefillSegment& segment : report.plan.segments) {
            cuts += segment.last ? 0 : 1;
            cutLayers += !segment.last && segment.to.layer > 0 ? 1 : 0;
            cutInLayer += segment.to.token != 0 ? 1 : 0;
        }
        for (const MemberReport& member : report.members)
            if (member.prefill) {
                const bool within = member.layerTo == member.layerFrom; // the part ends before its layer does
                promptTokens[member.id][within ? member.layerFrom : member.layerTo - 1] += member.tokens;
            }
        mixed += !report.plan.segments.empty() && report.plan.decodeRows() > 0 ? 1 : 0;
        mostRows = std::max(mostRows, report.plan.decodeRows());
        hits += report.hits, misses += report.misses, missedBytes += report.missedBytes;
        if (report.endNs < report.beginNs) fault(-1, "an iteration ends before it begins");
    }

    std::vector<std::string> faults;
    std::map<RequestId, std::vector<std::int32_t>> tokens;
    std::map<RequestId, Ending> endings;
    std::set<RequestId> diverged, otherSelections;
    std::map<RequestId, std::map<int, int>> promptTokens; // [request][layer] of the parts that end in the layer
    int compared = 0, pauses = 0, cuts = 0, cutLayers = 0, cutInLayer = 0, mixed = 0, mostRows = 0;
    std::int64_t hits = 0, misses = 0, missedBytes = 0;

private:
    void compareStep(RequestId id, int generated, const StepRecord& record, const StepRecord& step) {
        if (record.step != step.step) fault(id, "the row's step has another number");
        for (const SelectionRecord& selection : record.selections)
            if (selection.sequence != 0) fault(id, "a selection is another row's");
        if (diverged.count(id) > 0) return;
        if (record.selections.size() != step.selections.size()) fault(id, "it has selected in other layers");
        if (test::idsOf(record.blocks) != test::idsOf(step.blocks)) {
            if (invariant_) fault(id, fmt::format("the selections of token {} differ", generated));
            otherSelections.insert(id);
        }
        if (!invariant_ || !comparesHits_) return;
        if (test::hitsOf(record.blocks) != test::hitsOf(step.blocks))
            fault(id, fmt::format("the hits of token {} differ", generated));
        for (std::size_t layer = 0; layer < step.layers.size(); ++layer)
            if (record.layers[layer].h2dBytes != step.layers[layer].h2dBytes ||
                record.layers[layer].d2hBytes != step.layers[layer].d2hBytes)
                fault(id, fmt::format("it has moved other bytes for token {} in layer {}", generated, layer));
    }
    void fault(RequestId id, const std::string& what) { faults.push_back(fmt::format("request {}: {}", id, what)); }

    const std::vector<Alone>& expected_;
    const bool comparesHits_, invariant_;
};

/// Submits the requests in a random order, cancels some, and calls afterEach behind every iteration, until all have
/// ended. @return the requests that were cancelled, perhaps after they had ended
template <class AfterEach>
std::set<RequestId> serveInRandomOrder(Engine& engine, const std::vector<Alone>& expected, Draws& draws,
                                       AfterEach&& afterEach) {
    std::vector<std::size_t> order(expected.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    draws.shuffle(order);
    std::size_t next = 0;
    std::set<RequestId> cancelled;
    for (int iteration = 0; next < order.size() || engine.requests() > 0; ++iteration) {
        if (iteration == 3000) {
            ADD_FAILURE() << "the schedule does not end";
            break;
        }
        while (next < order.size() && (engine.requests() == 0 || draws.uniform() < 0.4))
            engine.submit(expected[order[next++]].submission);
        if (draws.uniform() < 0.02) { // one that waits, runs or is paused
            std::vector<RequestId> ids;
            for (const auto* list : {&engine.table().running(), &engine.table().waiting(), &engine.table().paused()})
                for (const ServeRequest& request : *list) ids.push_back(request.id);
            if (!ids.empty()) {
                cancelled.insert(ids[std::size_t(draws.below(ids.size()))]);
                for (const RequestId id : cancelled) engine.cancel(id); // some a second time, some that have ended
            }
        }
        engine.iterate();
        afterEach();
        if (::testing::Test::HasFatalFailure()) break;
    }
    return cancelled;
}

/// Expects that every request has ended once and as it should, and that nothing is reserved any more. @return how many
/// were cancelled
inline int expectAllEnded(const Engine& engine, const Watcher& watcher, const std::vector<Alone>& expected,
                          const std::set<RequestId>& cancelled) {
    EXPECT_THAT(watcher.faults, ::testing::IsEmpty());
    EXPECT_TRUE(engine.table().idle());
    EXPECT_EQ(engine.openRows(), 0);
    EXPECT_EQ(engine.table().ledger().used(), Amounts());
    EXPECT_EQ(engine.table().ledger().entries(), 0u);
    EXPECT_EQ(watcher.endings.size(), expected.size()) << "every request ends once";
    int count = 0;
    for (const auto& [id, ending] : watcher.endings) {
        count += ending == Ending::Cancelled ? 1 : 0;
        EXPECT_TRUE(ending == Ending::Length || cancelled.count(id) > 0) << nameOf(ending);
        if (ending != Ending::Length) continue;
        const auto prompt = expected[std::size_t(id)].submission.prompt.size();
        for (const auto& [layer, read] : watcher.promptTokens.at(id))
            EXPECT_EQ(std::size_t(read), prompt) << "request " << id << ", tokens reported as read in layer " << layer;
    }
    return count;
}

/// One of several texts, by chance.
inline std::string oneOf(Draws& draws, std::initializer_list<const char*> values) {
    return *(values.begin() + long(draws.below(values.size())));
}

} // namespace kvscope::serve
