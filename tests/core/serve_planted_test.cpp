// Planted selections: localities are those of the list, and every row, layer and KV head draws for itself.
#include "core/plan/planted_selections.h"
#include "kernels/selection.h"
#include "tests/core/served_requests.h"
#include "tests/core/small_session.h"

#include <array>
#include <gmock/gmock.h>
#include <map>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

/// Mean kept / selected of a head over so many steps that open no block, by the engines' own rule of choice.
double localityOf(const SelectionBudget& budget, int blocks, PlantedStream of, int heads, int steps) {
    constexpr int kBlock = 64;
    std::vector<float> aware(static_cast<std::size_t>(blocks)),
        agnostic(static_cast<std::size_t>(budget.queryAgnostic > 0 ? blocks : 0));
    std::vector<SelectedBlock> chosen;
    std::vector<std::int32_t> before, now;
    std::int64_t kept = 0, selected = 0;
    for (int g = 0; g < heads; ++g) {
        const std::uint32_t head = plantedHead(of.stream, g);
        before.clear();
        for (int step = 0; step < steps; ++step) {
            const int position = (blocks - 1) * kBlock + step; // as if the context stayed as long
            for (int b = 0; b < blocks; ++b) {
                aware[std::size_t(b)] = plantedScore(head, b, position, of.rate);
                if (!agnostic.empty()) agnostic[std::size_t(b)] = plantedPrior(head, b);
            }
            selectBlocks(budget, blocks - 1, aware, agnostic, chosen);
            now.clear();
            for (const SelectedBlock& block : chosen) now.push_back(block.block);
            if (!before.empty()) {
                std::vector<std::int32_t> both;
                std::set_intersection(before.begin(), before.end(), now.begin(), now.end(), std::back_inserter(both));
                kept += std::int64_t(both.size()), selected += std::int64_t(now.size());
            }
            std::swap(before, now);
        }
    }
    return double(kept) / double(selected);
}

TEST(PlantedSelections, HaveTheLocalitiesOfTheList) {
    SelectionBudget nosa, quest;
    nosa.sink = 1, nosa.window = 16, nosa.queryAware = 16, nosa.queryAgnostic = 31;
    quest.queryAware = 63, quest.windowAddsCurrent = true;
    for (const SelectionBudget& budget : {nosa, quest}) {
        const PlantedRates rates(budget, 600);
        for (const int blocks : {80, 170, 550})
            for (const double locality : {0.9, 0.93, 0.98}) {
                const PlantedStream stream{77, rates.rateOf(blocks, locality)};
                // Where few blocks are left out, NOSA's query-agnostic picks stay even when every score is drawn anew.
                const double least = localityOf(budget, blocks, {78, kPlantedWhole}, 8, 120);
                // 8 heads x 120 steps x 16 or more blocks that may change: a standard error of 0.003 at most
                EXPECT_NEAR(localityOf(budget, blocks, stream, 8, 120), std::max(locality, least), 0.012)
                    << blocks << " blocks, " << budget.queryAware << " by the query";
                if (least < locality - 0.012) {
                    EXPECT_LT(stream.rate, kPlantedWhole);
                }
            }
        EXPECT_EQ(rates.rateOf(10, 0.9), 0u) << "everything is selected";
        EXPECT_EQ(rates.rateOf(550, 1), 0u);
        EXPECT_EQ(rates.rateOf(550, 0), kPlantedWhole) << "as near as the choice can come";
    }
}

TEST(PlantedSelections, AreStretchedOverTheLayers) {
    SelectionSpec spec;
    spec.budget.queryAware = 4;
    const PlantedSelections planted({0.8, 1.0, 0.9}, spec, 40);
    EXPECT_DOUBLE_EQ(planted.localityOf(0, 5), 0.8);
    EXPECT_DOUBLE_EQ(planted.localityOf(1, 5), 0.9);
    EXPECT_DOUBLE_EQ(planted.localityOf(2, 5), 1.0);
    EXPECT_DOUBLE_EQ(planted.localityOf(4, 5), 0.9);
    EXPECT_DOUBLE_EQ(planted.localityOf(0, 1), 0.8);
    const PlantedSelections one({0.7}, spec, 40);
    EXPECT_DOUBLE_EQ(one.localityOf(31, 32), 0.7);
}

TEST(PlantedSelections, AreReadFromAList) {
    EXPECT_EQ(plantedLocalities("0.5,1,0.25"), (std::vector<double>{0.5, 1, 0.25}));
    EXPECT_GT(plantedLocalities("nosa-tiny").size(), 1u);
    for (const char* wrong : {"", "0.5,", "1.5", "-0.1", "nan", "0.5;0.6", "tiny"}) {
        try {
            plantedLocalities(wrong);
            ADD_FAILURE() << "'" << wrong << "' was read";
        } catch (const Error& error) {
            EXPECT_THAT(oneLine(error), HasSubstr("localities"));
        }
    }
}

TEST(PlantedSelections, ADrawChangesOnceInAsManyStepsAsTheRateSays) {
    for (const std::uint64_t rate : {kPlantedWhole, kPlantedWhole / 4, kPlantedWhole / 50, std::uint64_t(0)}) {
        int changes = 0;
        for (int block = 0; block < 100; ++block)
            for (int position = 5000; position < 5200; ++position)
                changes += plantedScore(3, block, position, rate) != plantedScore(3, block, position + 1, rate) ? 1 : 0;
        EXPECT_NEAR(changes, 20000.0 * double(rate) / double(kPlantedWhole), 100);
    }
}

// ---- Served ---------------------------------------------------------------------------------------------------------

using namespace serve;

using Selected = std::map<std::array<int, 3>, std::vector<std::int32_t>>; // by token, layer, KV head

class Keeper final : public EngineObserver {
public:
    void token(RequestId id, std::int32_t, int generated, std::int64_t, const StepRecord& record) override {
        if (generated == 1) return;
        for (const SelectionRecord& selection : record.selections) {
            of[id][{generated, selection.layer, selection.kvHead}] = test::idsOf(record, selection);
            if (record.opensBlock || selection.kept < 0) continue;
            auto& [kept, selected] = locality[selection.layer];
            kept += selection.kept, selected += selection.selected;
        }
    }
    std::map<RequestId, Selected> of;
    std::map<int, std::pair<double, double>> locality; // [layer] kept, selected
};

void serveAll(const std::vector<Submission>& requests, const char* cache, Keeper& keeper) {
    EngineOptions options;
    options.session.method = "nosa";
    options.session.threads = 1;
    for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{
             {"sink_blocks", "1"}, {"window_blocks", "1"}, {"select_blocks", "8"}, {"total_blocks", "12"}})
        options.session.settings.emplace_back(key, value);
    ParameterValues knobs = schedulerDefaults();
    knobs.set(schedulerParameters(), "cache", cache);
    knobs.set(schedulerParameters(), "rows", "3");
    options.scheduler = schedulerOptions(knobs);
    options.budget = {0, std::int64_t(1) << 30, std::int64_t(1) << 30, std::int64_t(1) << 28, true};
    options.planted = {0.75, 0.95};
    Engine engine(embedded(), options, keeper);
    EXPECT_THAT(engine.runInfo().paramsJson, HasSubstr("planted_localities"));
    for (const Submission& request : requests) engine.submit(request);
    while (engine.iterate()) {
    }
}

TEST(PlantedSelections, AreThoseOfTheRequestWhateverIsServedBesideIt) {
    KVSCOPE_NEEDS_NOSA_TINY();
    std::vector<Submission> requests = requestsOf({{1300, 90}, {1300, 90}, {1000, 90}});
    requests[1].prompt = requests[0].prompt; // two requests with one text
    Keeper together, pooled;
    serveAll(requests, "partition", together);
    serveAll(requests, "global-lru", pooled);
    EXPECT_EQ(together.of, pooled.of);
    for (const Submission& request : requests) {
        Keeper alone;
        serveAll({request}, "partition", alone);
        EXPECT_EQ(alone.of[request.id], together.of[request.id]);
    }
    // Streams of two rows, of two layers and of two KV heads share what chance and forced blocks give them.
    const Selected &first = together.of[0], &second = together.of[1];
    int same = 0;
    for (const auto& [key, blocks] : first) same += second.at(key) == blocks ? 1 : 0;
    EXPECT_LT(same, int(first.size()) / 50) << "each row draws for itself";
    int sameHead = 0, heads = 0, sameLayer = 0, layers = 0;
    for (const auto& [key, blocks] : first) {
        if (key[2] > 0) ++heads, sameHead += first.at({key[0], key[1], 0}) == blocks ? 1 : 0;
        if (key[1] > 0) ++layers, sameLayer += first.at({key[0], 0, key[2]}) == blocks ? 1 : 0;
    }
    EXPECT_LE(sameHead, heads / 50);
    EXPECT_LE(sameLayer, layers / 50);
    const int count = embedded()->config().layers;
    for (const auto& [layer, sums] : together.locality) {
        const double wanted = 0.75 + 0.2 * double(layer) / double(count - 1);
        EXPECT_NEAR(sums.first / sums.second, wanted, 0.035) << "layer " << layer; // 3 rows, 89 steps
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
