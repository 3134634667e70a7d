// Pages that travel ahead of a forward, under a clock that the test moves: every count and every time.
#include "core/engine/cpu/cpu_prefix_transfers.h"

#include "core/cache/cache_policy.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;

/// Two layers of one KV head, ten pages of 16 tokens, three device slots. The link moves 1 GB/s, a byte a nanosecond,
/// after a latency of 100 ns.
class PrefixTransfers : public ::testing::Test {
protected:
    PrefixTransfers() {
        spec_.blockSize = spec_.grid.blockSize = 16;
        spec_.dense = false;
        KvCacheOptions options;
        options.shape = {2, 1, 64, 64};
        options.layout = {16, 64, false, -1};
        options.maxTokens = {160};
        options.slots = 3;
        options.plans = LayerPlans(2, spec_, {.offload = true});
        cache_ = std::make_unique<KvCache>(options, spec_, findCachePolicy("lru"));
        Link link;
        link.gigabytesPerSecond = 1;
        link.latencyUs = 0.1;
        transfers_ = std::make_unique<CpuPrefixTransfers>(*kernels_, *cache_, link, options.shape.heads(1),
                                                          [this] { return now_; });
        for (int layer = 0; layer < 2; ++layer)
            for (int page = 0; page < 10; ++page)
                std::fill_n(cache_->storeBlock(head(layer), BlockId{page}), options.layout.floats(),
                            float(100 * layer + page));
    }
    KvHead& head(int layer) { return cache_->head(RowId{0}, LayerId{layer}, KvHeadId{0}); }
    std::int64_t linkNs(std::int64_t pages) const { return pages == 0 ? 0 : 100 + pages * cache_->layout().bytes(); }
    void ask(int layer, std::vector<std::int32_t> pages) {
        transfers_->askAhead(LayerId{layer}, RowId{0}, KvHeadId{0}, pages, step_);
        transfers_->sendAhead(LayerId{layer});
    }
    /// The layer attends to these pages of ten complete ones.
    LayerRecord attend(int layer, std::vector<std::int32_t> pages) {
        LayerRecord record;
        transfers_->arrive(LayerId{layer}, record);
        transfers_->fetch(LayerId{layer}, RowId{0}, KvHeadId{0}, pages, 10, step_, hit_);
        transfers_->account(record, true);
        for (const std::int32_t page : pages)
            EXPECT_EQ(transfers_->page(head(layer), BlockId{page})[5], float(100 * layer + page));
        selection_ = {};
        transfers_->recordAhead(LayerId{layer}, RowId{0}, KvHeadId{0}, selection_);
        return record;
    }

    SelectionSpec spec_;
    const std::unique_ptr<Kernels> kernels_ = makeCpuKernels(1);
    std::unique_ptr<KvCache> cache_;
    std::int64_t now_ = 1'000'000;
    int step_ = 1;
    std::unique_ptr<CpuPrefixTransfers> transfers_;
    std::vector<std::uint8_t> hit_;
    SelectionRecord selection_;
};

TEST_F(PrefixTransfers, WhatHasArrivedExposesNothing) {
    ask(0, {1, 4});
    ask(1, {2});
    const LayerRecord first = attend(0, {1, 4, 7}); // at once: the layer waits for two pages, then for a third one
    EXPECT_THAT(hit_, ElementsAre(0, 0, 0)) << "what travelled is no hit";
    EXPECT_EQ(first.h2dBlocks, 3);
    EXPECT_EQ(first.h2dBytes, 3 * cache_->layout().bytes());
    // the page that layer 0 asks for last queues behind the page that travels for layer 1
    EXPECT_EQ(first.exposedNs, linkNs(2) + linkNs(1) + linkNs(1));
    EXPECT_EQ(first.transferNs, linkNs(2) + linkNs(1));
    EXPECT_EQ(selection_.predicted, 2);
    EXPECT_EQ(selection_.used, 2);
    EXPECT_EQ(selection_.wasted, 0);
    EXPECT_EQ(selection_.late, 2);
    const LayerRecord second = attend(1, {2}); // has come meanwhile
    EXPECT_EQ(second.exposedNs, 0);
    EXPECT_EQ(second.h2dBlocks, 1);
    EXPECT_EQ(second.transferNs, linkNs(1));
    EXPECT_EQ(selection_.late, 0);
    ++step_;
    ask(0, {1, 4, 7}); // all of them are there
    const LayerRecord third = attend(0, {1, 4});
    EXPECT_THAT(hit_, ElementsAre(1, 1));
    EXPECT_EQ(third.h2dBlocks, 0);
    EXPECT_EQ(third.exposedNs, 0);
    EXPECT_EQ(selection_.predicted, 3);
    EXPECT_EQ(selection_.used, 2);
    EXPECT_EQ(selection_.wasted, 0) << "a page that was there has not travelled in vain";
}

TEST_F(PrefixTransfers, ALayerWaitsForWhatIsLeftOnItsWay) {
    ask(0, {0, 1, 2});
    now_ += linkNs(3) - 9000; // a page takes 8192
    const LayerRecord record = attend(0, {0, 2});
    EXPECT_EQ(record.exposedNs, 9000);
    EXPECT_EQ(record.h2dBlocks, 3);
    EXPECT_EQ(selection_.predicted, 3);
    EXPECT_EQ(selection_.used, 2);
    EXPECT_EQ(selection_.wasted, 1);
    EXPECT_EQ(selection_.late, 1);
    EXPECT_THAT(hit_, ElementsAre(0, 0));
}

TEST_F(PrefixTransfers, NoMoreIsAskedForThanThereAreSlots) {
    ask(0, {0, 1, 2, 3, 4});
    now_ += 10 * linkNs(5);
    const LayerRecord record = attend(0, {0, 3, 4});
    EXPECT_EQ(selection_.predicted, 3);
    EXPECT_EQ(selection_.used, 1);
    EXPECT_EQ(selection_.wasted, 2);
    EXPECT_EQ(record.h2dBlocks, 5) << "0, 1 and 2 ahead, 3 and 4 on demand";
    EXPECT_EQ(record.exposedNs, linkNs(2));
}

TEST_F(PrefixTransfers, OnDemandNothingIsSentAhead) {
    const LayerRecord record = attend(0, {5, 6});
    EXPECT_EQ(selection_.predicted, -1);
    EXPECT_EQ(record.h2dBlocks, 2);
    EXPECT_EQ(record.exposedNs, linkNs(2));
    EXPECT_EQ(record.transferNs, linkNs(2));
    EXPECT_EQ(attend(0, {5, 6}).h2dBlocks, 0);
    EXPECT_THAT(hit_, ElementsAre(1, 1));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
