// The modelled transfers of the CPU backend, under a clock that the test moves: every count and every time.
#include "core/engine/cpu/cpu_transfers.h"

#include "core/cache/cache_policy.h"
#include "core/session/decode_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;

/// Chooses nothing by itself: the tests say what the items want.
class GivenChoice final : public Selector {
public:
    void choose(std::span<HeadStep>) override {}
    Loads load(std::span<HeadStep>) override { return loads; }
    std::int64_t storedBytes(LayerId, int tokens) const override { return tokens * 3; }

    Loads loads; // where the method keeps its own device tier
};

/// Two layers of one KV head, blocks of 16 tokens, four device slots. The link moves 1 GB/s, a byte a nanosecond, after
/// a latency of 100 ns.
class CpuTransfersOf : public ::testing::Test {
protected:
    static constexpr int kBlock = 16, kDim = 64, kTokens = 160;

    void make(bool ahead, bool ownTier = false) {
        spec_.blockSize = spec_.grid.blockSize = kBlock;
        spec_.ownDeviceTier = ownTier;
        KvCacheOptions options;
        options.shape = {2, 1, kDim, kDim};
        options.layout = {kBlock, kDim, false, -1};
        options.maxTokens = {kTokens};
        options.slots = 4;
        options.plans = LayerPlans(2, spec_, {.remembers = true});
        cache_ = std::make_unique<KvCache>(options, spec_, findCachePolicy("lru"));
        Abilities abilities;
        if (ahead) abilities.ahead = Ahead::NextLayer;
        context_ = std::make_unique<SelectorContext>(SelectorContext{*kernels_,
                                                                     *cache_,
                                                                     *model(),
                                                                     spec_,
                                                                     cache_->plans(),
                                                                     abilities,
                                                                     rules_,
                                                                     options.shape,
                                                                     rope_,
                                                                     {kTokens},
                                                                     true,
                                                                     false});
        selector_ = std::make_unique<GivenChoice>();
        Link link;
        link.gigabytesPerSecond = 1;
        link.latencyUs = 0.1;
        transfers_ = std::make_unique<CpuTransfers>(*context_, *selector_, link, [this] { return now_; });
        key_.resize(kDim);
        std::iota(key_.begin(), key_.end(), 1.f);
        // The prompt ends with block 4 complete: nothing is on the device.
        for (int layer = 0; layer < 2; ++layer)
            for (int b = 0; b < kTokens / kBlock; ++b) {
                KvHead& head = cache_->head(RowId{0}, LayerId{layer}, KvHeadId{0});
                std::fill_n(cache_->storeBlock(head, BlockId{b}), options.layout.floats(), float(100 * layer + b));
            }
    }
    static const std::shared_ptr<const Model>& model() {
        static const auto model = Model::load(kDefaultModel);
        return model;
    }
    std::int64_t blockBytes() const { return cache_->layout().bytes(); }
    std::int64_t linkNs(std::int64_t blocks) const { return blocks == 0 ? 0 : 100 + blocks * blockBytes(); }

    /// An item of a step at `position` in a layer that wants these blocks, the last of which is its own.
    HeadStep& want(int layer, int position, std::vector<std::int32_t> wanted) {
        item_.layer = LayerId{layer};
        item_.head = &cache_->head(item_.sequence, item_.layer, item_.kvHead);
        item_.position = position;
        item_.rows.key = item_.rows.value = key_.data();
        item_.ahead.predicted = -1;
        item_.ahead.used = item_.ahead.wasted = item_.ahead.late = 0;
        item_.selected.clear();
        for (const std::int32_t id : wanted) item_.selected.push_back({id, Origin::QueryAware, 0});
        item_.wanted = std::move(wanted);
        return item_;
    }
    LayerRecord load(int layer) {
        LayerRecord record;
        transfers_->load(LayerId{layer}, {&item_, 1}, 1, record);
        return record;
    }
    void fetchAhead(int layer, std::vector<std::int32_t> blocks) {
        std::vector<PrefetchRequest> requests{{LayerId{layer}, RowId{0}, KvHeadId{0}, std::move(blocks)}};
        transfers_->fetchAhead({&item_, 1}, requests, 1);
        EXPECT_TRUE(requests.empty());
    }

    std::int64_t now_ = 1'000'000;
    SelectionSpec spec_;
    AttentionRules rules_{1, 0.125f, {}};
    RopeTables rope_;
    std::unique_ptr<Kernels> kernels_ = makeCpuKernels(1);
    std::unique_ptr<KvCache> cache_;
    std::unique_ptr<SelectorContext> context_;
    std::unique_ptr<GivenChoice> selector_;
    std::unique_ptr<CpuTransfers> transfers_;
    std::vector<float> key_;
    HeadStep item_;
};

TEST_F(CpuTransfersOf, AStepWaitsInFullForWhatItLoadsOnDemand) {
    make(false);
    want(0, 80, {1, 3, 5}); // opens block 5: a hit, nothing to load
    const LayerRecord first = load(0);
    EXPECT_EQ(first.h2dBlocks, 2);
    EXPECT_EQ(first.h2dBytes, 2 * blockBytes());
    EXPECT_EQ(first.d2hBlocks, 0);
    EXPECT_EQ(first.transferNs, linkNs(2));
    EXPECT_EQ(first.exposedNs, linkNs(2));
    EXPECT_THAT(item_.loads.hit, ElementsAre(0, 0, 1));
    ASSERT_EQ(item_.views.size(), 3u);
    EXPECT_EQ(item_.views[0].keys[0], 1.f) << "block 1 of the store";
    EXPECT_EQ(item_.views[2].tokens, 1) << "the newest block holds one token";
    EXPECT_EQ(item_.views[2].keys[kBlock], 2.f) << "its second channel";

    want(0, 81, {1, 5});
    const LayerRecord second = load(0);
    EXPECT_EQ(second.h2dBlocks, 0);
    EXPECT_EQ(second.exposedNs, 0);
    EXPECT_THAT(item_.loads.hit, ElementsAre(1, 1));
}

TEST_F(CpuTransfersOf, ABlockThatBecomesFullIsStoredAndNobodyWaitsForIt) {
    make(false);
    want(0, 80, {5});
    load(0);
    for (int position = 81; position < 95; ++position) want(0, position, {5}), load(0);
    EXPECT_EQ(cache_->storeBlock(cache_->head(RowId{0}, LayerId{0}, KvHeadId{0}), BlockId{5})[0], 5.f)
        << "not yet stored";
    want(0, 95, {5});
    const LayerRecord full = load(0);
    EXPECT_EQ(full.d2hBlocks, 1);
    EXPECT_EQ(full.d2hBytes, blockBytes());
    EXPECT_EQ(full.transferNs, linkNs(1));
    EXPECT_EQ(full.exposedNs, 0);
    EXPECT_EQ(cache_->storeBlock(cache_->head(RowId{0}, LayerId{0}, KvHeadId{0}), BlockId{5})[15], 1.f)
        << "the first channel of the newest token";
}

TEST_F(CpuTransfersOf, WhatWasSentAheadIsExposedAsFarAsItIsNotThere) {
    make(true);
    want(0, 80, {5});
    load(0);
    now_ = 2'000'000;
    fetchAhead(1, {1, 3, 5}); // layer 1 will open block 5 too
    now_ += linkNs(1);        // one of the two blocks has arrived
    want(1, 80, {1, 2, 5});
    const LayerRecord record = load(1);
    EXPECT_EQ(item_.ahead.predicted, 3);
    EXPECT_EQ(item_.ahead.used, 2);   // 1 and 5
    EXPECT_EQ(item_.ahead.wasted, 1); // 3 travelled for nothing
    EXPECT_EQ(item_.ahead.late, 1);
    EXPECT_THAT(item_.loads.hit, ElementsAre(0, 0, 1)) << "what travelled ahead is no hit";
    EXPECT_EQ(record.h2dBlocks, 3);
    EXPECT_EQ(record.transferNs, linkNs(2) + linkNs(1));
    const std::int64_t waited = linkNs(2) - linkNs(1);
    EXPECT_EQ(record.exposedNs, waited + linkNs(1)) << "block 2 is loaded on demand, once the link is free";
}

TEST_F(CpuTransfersOf, ATransferWaitsForTheLinkAndTheMachineForTheTransfer) {
    make(true);
    want(0, 81, {5});
    fetchAhead(0, {0, 1});
    fetchAhead(1, {0}); // behind the other one
    want(0, 81, {0, 1, 5});
    const LayerRecord first = load(0);
    EXPECT_EQ(first.exposedNs, linkNs(2) + linkNs(1) + linkNs(1))
        << "its own two blocks, then block 5 on demand behind the other layer's transfer";
    want(1, 81, {0, 5});
    const LayerRecord second = load(1);
    EXPECT_EQ(item_.ahead.late, 0) << "it came while the machine stood still";
    EXPECT_EQ(second.exposedNs, linkNs(1)) << "block 5 alone, on demand";
    EXPECT_EQ(second.transferNs, linkNs(1) + linkNs(1));
}

TEST_F(CpuTransfersOf, AMethodsOwnTierCountsWhatItSays) {
    make(true, true);
    selector_->loads = {7, 7'000, 16};
    std::vector<PrefetchRequest> requests{{LayerId{1}, RowId{0}, KvHeadId{0}, {}, 5'000}};
    want(0, 80, {5});
    transfers_->fetchAhead({&item_, 1}, requests, 1);
    now_ += 1'100; // a thousand bytes have arrived
    want(1, 80, {5});
    const LayerRecord record = load(1);
    EXPECT_EQ(record.h2dBlocks, 7);
    EXPECT_EQ(record.h2dBytes, 7'000);
    EXPECT_EQ(record.d2hBytes, 16);
    EXPECT_EQ(record.exposedNs, 4'000 + 100 + 2'000) << "the rest of what was sent, then what was not";
    EXPECT_EQ(record.transferNs, 100 + 16 + 100 + 5'000 + 100 + 2'000);
}

TEST_F(CpuTransfersOf, APromptIsStoredWhileItIsReadAndItsTailStays) {
    make(false);
    transfers_->keepOnDevice(LayerId{0}, RowId{0}, 5 * kBlock + 3, {});
    want(0, 5 * kBlock + 3, {5});
    EXPECT_EQ(load(0).h2dBlocks, 0) << "the tail was on the device";
    LayerRecord record;
    transfers_->recordStored(LayerId{0}, 5 * kBlock + 3, record);
    transfers_->recordStored(LayerId{0}, 2 * kBlock, record);
    EXPECT_EQ(record.d2hBlocks, 7);
    EXPECT_EQ(record.d2hBytes, 7 * blockBytes());
    EXPECT_EQ(record.transferNs, linkNs(7));
    EXPECT_EQ(record.exposedNs, 0);

    make(false, true);
    LayerRecord own;
    transfers_->recordStored(LayerId{0}, 50, own);
    EXPECT_EQ(own.d2hBytes, 150);
    EXPECT_EQ(own.d2hBlocks, 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
