// Tokens in slots on the device against a list that is searched: what hits, what leaves, and what then lies in the
// slots.
#include "kernels/cuda/methods/token_slots.h"

#include "tests/kernels/cuda/device.h"

#include <list>
#include <memory>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct SlotCase {
    int slots, most, chosen, rows;
};
void PrintTo(const SlotCase& c, std::ostream* out) {
    *out << c.rows << " rows of " << c.slots << " slots for " << c.chosen << " of " << c.most << " tokens";
}

class TokenSlotsOnDevice : public CudaTest, public ::testing::WithParamInterface<SlotCase> {
protected:
    static constexpr int kDim = 40;
    const SlotCase c_ = GetParam();
    std::size_t rowsTimes(int count) const { return std::size_t(c_.rows) * std::size_t(count); }
};

TEST_P(TokenSlotsOnDevice, KeepTheTokensThatWereChosenLast) {
    const auto store = halves(rowsTimes(c_.most) * kDim); // row r's tokens begin at r*most
    std::vector<std::int64_t> first;
    for (int row = 0; row < c_.rows; ++row) first.push_back(std::int64_t(row) * c_.most);
    const OnDevice<Half> dstore(store), pool(rowsTimes(c_.slots) * kDim);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<std::int32_t> slotOf(rowsTimes(c_.most)), tokenIn(rowsTimes(c_.slots)),
        last(std::vector<std::int32_t>(rowsTimes(c_.slots), 0)), turns(std::vector<std::int32_t>(rowsTimes(2), 0)),
        place(rowsTimes(c_.chosen)), fetch(rowsTimes(c_.chosen)), freed(rowsTimes(c_.chosen + 1)),
        missing(std::size_t(c_.rows)), madeSlot(std::size_t(c_.rows)), missingRecord(std::size_t(c_.rows));
    std::vector<std::list<std::int32_t>> held(std::size_t(c_.rows)); // the token chosen last in front
    int hits = 0, misses = 0;
    for (int step = 0; step < 60; ++step) {
        SCOPED_TRACE(::testing::Message() << "step " << step);
        std::vector<std::uint8_t> active(std::size_t(c_.rows), 1);
        if (c_.rows > 1) active[std::size_t(step % c_.rows)] = 0;
        std::vector<std::int32_t> position, tokens(rowsTimes(c_.chosen), -7), count;
        std::vector<Half> newKey;
        for (int row = 0; row < c_.rows; ++row) {
            // The new token is among the chosen ones in every second step; mostly they are a few of the last ones.
            const int made = std::min(c_.most - 1, c_.most - 70 + step + row),
                      n = uniform(1, std::min(c_.chosen, made));
            std::set<std::int32_t> chosen;
            if (step % 2 == 0) chosen.insert(made);
            while (int(chosen.size()) < n)
                chosen.insert(uniform(0, 3) == 0 ? uniform(0, made - 1)
                                                 : std::max(0, made - 1 - uniform(0, c_.chosen + c_.chosen / 2)));
            std::copy(chosen.begin(), chosen.end(), tokens.begin() + std::ptrdiff_t(row) * c_.chosen);
            position.push_back(made);
            count.push_back(n);
            const std::size_t at = std::size_t(row * c_.most + made) * kDim;
            newKey.insert(newKey.end(), store.begin() + std::ptrdiff_t(at), store.begin() + std::ptrdiff_t(at) + kDim);
        }
        const OnDevice<std::int32_t> dposition(position), dtokens(tokens), dcount(count);
        const OnDevice<std::uint8_t> dactive(active), hit(rowsTimes(c_.chosen));
        const OnDevice<Half> dnewKey(newKey);
        FetchTokenSlotsArgs fetches;
        AdmitTokensArgs& a = fetches.admitted;
        a.slots = {c_.slots, c_.most, slotOf.get(), tokenIn.get(), last.get(), turns.get()};
        a.rows = c_.rows;
        a.position = dposition.get();
        a.active = dactive.get();
        a.tokens = dtokens.get();
        a.count = dcount.get();
        a.capacity = c_.chosen;
        a.place = place.get();
        a.fetch = fetch.get();
        a.missing = missing.get();
        a.madeSlot = madeSlot.get();
        a.freed = freed.get();
        a.missingRecord = missingRecord.get();
        a.hitRecord = hit.get();
        fetches.dim = kDim;
        fetches.store = dstore.bf16();
        fetches.first = dfirst.get();
        fetches.newKey = dnewKey.bf16();
        fetches.pool = pool.bf16();
        admitTokens(launch, a);
        fetchTokenSlots(launch, fetches);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto gotHit = hit.read();
        const auto gotPlace = place.read(), gotMissing = missing.read(), gotRecord = missingRecord.read(),
                   gotMade = madeSlot.read(), gotSlotOf = slotOf.read(), gotTokenIn = tokenIn.read();
        const auto gotPool = pool.read();
        for (int row = 0; row < c_.rows; ++row) {
            if (active[std::size_t(row)] == 0) continue;
            SCOPED_TRACE(::testing::Message() << "row " << row);
            std::list<std::int32_t>& mine = held[std::size_t(row)];
            const std::size_t list = std::size_t(row * c_.chosen);
            const int n = count[std::size_t(row)], made = position[std::size_t(row)];
            const std::vector<std::int32_t> chosen(tokens.begin() + std::ptrdiff_t(list),
                                                   tokens.begin() + std::ptrdiff_t(list) + n);
            const std::set<std::int32_t> lay(mine.begin(), mine.end());
            int came = 0;
            for (int i = 0; i < n; ++i) {
                const std::int32_t token = chosen[std::size_t(i)];
                const bool there = token == made || lay.contains(token);
                ASSERT_EQ(int(gotHit[list + std::size_t(i)]), there ? 1 : 0) << "token " << token;
                came += there ? 0 : 1;
            }
            ASSERT_EQ(gotMissing[std::size_t(row)], came);
            ASSERT_EQ(gotRecord[std::size_t(row)], came);
            hits += n - came, misses += came;
            std::vector<std::int32_t> now = chosen;
            if (std::find(now.begin(), now.end(), made) == now.end()) now.push_back(made);
            for (const std::int32_t token : now) mine.remove(token);
            mine.insert(mine.begin(), now.rbegin(), now.rend()); // of one step, the lower positions leave first
            while (int(mine.size()) > c_.slots) mine.pop_back();
            // The slots hold these tokens and no others, with their keys.
            const auto slotAt = [&](std::int32_t token) { return gotSlotOf[std::size_t(row * c_.most + token)]; };
            std::set<std::int32_t> slots;
            for (const std::int32_t token : mine) {
                const std::int32_t slot = slotAt(token);
                ASSERT_TRUE(slot >= 0 && slot < c_.slots) << "token " << token;
                ASSERT_TRUE(slots.insert(slot).second) << "two tokens in slot " << slot;
                ASSERT_EQ(gotTokenIn[std::size_t(row * c_.slots + slot)], token);
                for (int c = 0; c < kDim; ++c)
                    ASSERT_EQ(gotPool[std::size_t((row * c_.slots + slot) * kDim + c)],
                              store[std::size_t((row * c_.most + token) * kDim + c)])
                        << "token " << token;
            }
            const std::set<std::int32_t> lie(mine.begin(), mine.end());
            for (std::int32_t token = 0; token < c_.most; ++token)
                if (!lie.contains(token)) {
                    ASSERT_EQ(slotAt(token), -1) << "token " << token << " has left";
                }
            for (int i = 0; i < n; ++i)
                ASSERT_EQ(gotPlace[list + std::size_t(i)], slotAt(chosen[std::size_t(i)])) << "entry " << i;
            ASSERT_EQ(gotMade[std::size_t(row)], slotAt(made));
        }
    }
    EXPECT_GT(hits, 0);
    EXPECT_GT(misses, 0);
}

TEST_P(TokenSlotsOnDevice, StoresEveryRowsNewToken) {
    const auto store = halves(rowsTimes(c_.most) * kDim), newKey = halves(rowsTimes(kDim));
    std::vector<std::int64_t> first;
    std::vector<std::int32_t> position;
    std::vector<std::uint8_t> active;
    for (int row = 0; row < c_.rows; ++row) {
        first.push_back(std::int64_t(row) * c_.most);
        position.push_back(uniform(0, c_.most - 1));
        active.push_back(row == 1 ? 0 : 1);
    }
    const OnDevice<Half> dstore(store), dnewKey(newKey);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<std::int32_t> dposition(position);
    const OnDevice<std::uint8_t> dactive(active);
    StoreTokenArgs a;
    a.rows = c_.rows;
    a.dim = kDim;
    a.position = dposition.get();
    a.active = dactive.get();
    a.newKey = dnewKey.bf16();
    a.store = dstore.bf16();
    a.first = dfirst.get();
    storeTokens(launch, a);
    check(cudaStreamSynchronize(launch.stream), "testing");
    std::vector<Half> want = store;
    for (int row = 0; row < c_.rows; ++row)
        if (active[std::size_t(row)] != 0)
            std::copy_n(newKey.begin() + std::ptrdiff_t(row) * kDim, kDim,
                        want.begin() + std::ptrdiff_t(row * c_.most + position[std::size_t(row)]) * kDim);
    EXPECT_EQ(dstore.read(), want);
}

/// Slots that hold little more than one choice, that hold everything, and more of both than a thread block has threads.
INSTANTIATE_TEST_SUITE_P(Sizes, TokenSlotsOnDevice,
                         ::testing::Values(SlotCase{23, 300, 11, 3}, SlotCase{12, 200, 11, 1},
                                           SlotCase{150, 150, 40, 2}, SlotCase{1300, 3000, 700, 2},
                                           SlotCase{9, 120, 8, 1}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
