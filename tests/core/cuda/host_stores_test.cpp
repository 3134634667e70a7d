// Host memory that rows give back is lent to the rows after them. No GPU: the calls are counted, not made.
#include "base/error.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/host_stores.h"
#include "core/serve/random_draws.h"
#include "tests/kernels/cuda/counting_calls.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <map>
#include <utility>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using cuda::test::CountingCalls;

constexpr std::int64_t kMi = std::int64_t(1) << 20;

std::uintptr_t addressOf(const HostStores::Part& part) { return reinterpret_cast<std::uintptr_t>(part.data()); }

TEST(HostStores, LendPartsThatDoNotOverlap) {
    CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    const cuda::Living before = cuda::living();
    {
        HostStores stores(400 * kMi);
        serve::Draws draws(5);
        std::vector<HostStores::Part> parts;
        for (int i = 0; i < 3000; ++i) {
            if (parts.size() < 12 && draws.uniform() < 0.6) {
                parts.push_back(stores.take(1 + draws.below(20 * std::uint64_t(kMi))));
            } else if (!parts.empty()) {
                std::swap(parts[draws.below(parts.size())], parts.back());
                parts.pop_back();
            }
            std::map<std::uintptr_t, std::size_t> order;
            std::int64_t lent = 0;
            for (const HostStores::Part& part : parts) {
                EXPECT_EQ(addressOf(part) % HostStores::kAlignment, addressOf(parts[0]) % HostStores::kAlignment);
                order.emplace(addressOf(part), part.bytes());
                lent += std::int64_t(part.bytes());
            }
            ASSERT_EQ(order.size(), parts.size());
            for (auto part = order.begin(); part != order.end() && std::next(part) != order.end(); ++part)
                ASSERT_LE(part->first + part->second, std::next(part)->first) << "step " << i;
            ASSERT_EQ(stores.lent(), lent);
            ASSERT_EQ(stores.held(), cuda::living().hostBytes - before.hostBytes);
            ASSERT_LE(stores.held(), 400 * kMi);
        }
    }
    EXPECT_EQ(cuda::living(), before);
}

TEST(HostStores, TakeNothingNewWhereEarlierRowsLeftRoom) {
    CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    HostStores stores(1 << 30);
    EXPECT_EQ(stores.take(0).data(), nullptr);
    EXPECT_EQ(stores.held(), 0);
    for (int i = 0; i < 4; ++i) stores.take(5 * kMi);
    EXPECT_EQ(stores.held(), std::int64_t(HostStores::kSmallest)) << "one after the other in the same place";
    std::vector<HostStores::Part> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(stores.take(std::size_t(i % 2 == 0 ? 40 : 8) * kMi));
    const int asked = calls.asked();
    const std::int64_t held = stores.held();
    for (int i = 0; i < 500; ++i) { // rows leave in the order in which they came, and others of their sizes join
        const std::size_t bytes = parts.front().bytes();
        parts.erase(parts.begin());
        parts.push_back(stores.take(bytes));
    }
    EXPECT_EQ(calls.asked(), asked);
    EXPECT_EQ(stores.held(), held);
}

TEST(HostStores, GiveUpWhatNobodyUsesBeforeTheyPassTheLimit) {
    CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    HostStores stores(100 * kMi);
    HostStores::Part small = stores.take(10 * kMi);
    stores.take(60 * kMi);
    EXPECT_EQ(stores.held(), 16 * kMi + 60 * kMi);
    {
        const HostStores::Part large = stores.take(80 * kMi);
        EXPECT_EQ(stores.held(), 16 * kMi + 80 * kMi) << "the slab of 60 MiB was idle";
        const HostStores::Part beyond = stores.take(20 * kMi); // the free parts are too small for it
        EXPECT_EQ(stores.held(), 16 * kMi + 80 * kMi + 20 * kMi);
    }
    EXPECT_LE(stores.held(), 100 * kMi) << "as soon as it can";
    small = {};
    EXPECT_EQ(stores.lent(), 0);
}

TEST(HostStores, LoseNothingWhenMemoryIsRefused) {
    const cuda::Living before = cuda::living();
    CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    const auto serve = [] {
        HostStores stores(1 << 30);
        const HostStores::Part first = stores.take(16 * kMi);
        HostStores::Part second = stores.take(10 * kMi);
        second = stores.take(50 * kMi);
        EXPECT_EQ(stores.lent(), 66 * kMi);
    };
    serve();
    const int each = calls.asked();
    int refused = 0;
    for (int call = 0; call < each; ++call) {
        calls.refuseAfter(call);
        try {
            serve();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::OutOfMemory);
            ++refused;
        }
        ASSERT_EQ(calls.living(), "") << "call " << call << " of " << each << " was refused";
    }
    EXPECT_GT(refused, 0) << "a slab of the size that is needed is not asked for twice";
    EXPECT_LT(refused, each) << "a part is taken alone where a whole slab is refused, or when idle slabs are given up";
    EXPECT_EQ(cuda::living(), before);
}

TEST(HostStores, AnArenaPutsItsStoresIntoWhatItIsLent) {
    CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    HostStores stores(1 << 30);
    DeviceArena arena;
    std::int16_t *keys = nullptr, *values = nullptr;
    std::int32_t* report = nullptr;
    arena.planStore(keys, 1000, {"keys", "the KV store", Holds::Kv});
    arena.planHost(report, 100, "a report");
    arena.planStore(values, 3000, {"values", "the KV store", Holds::Kv});
    EXPECT_EQ(arena.storeBytes(), 2048u + 6144u) << "each begins at a multiple of 256 bytes";
    EXPECT_EQ(arena.hostBytes(), 2000u + 400u + 6000u);
    const HostStores::Part part = stores.take(arena.storeBytes());
    arena.lend(part.data());
    EXPECT_EQ(arena.hostBytes(), 400u);
    const cuda::Living before = cuda::living();
    arena.take();
    EXPECT_EQ(cuda::living().hostBytes - before.hostBytes, 400);
    EXPECT_EQ(static_cast<void*>(keys), part.data());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values), addressOf(part) + 2048);
    EXPECT_EQ(report[99], 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
