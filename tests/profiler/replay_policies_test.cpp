// The policies of a replay do what their books say, one cache and one history of requests at a time.
#include "profiler/replay/replay.h"

#include "tests/profiler/replay_histories.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <map>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::History;
using test::missesOf;
using test::randomHistory;
using test::visitsOf;

/// The same by the book: the block that is in no request and has the lowest rank leaves, of equals the lowest.
struct Use {
    int loaded = 0, last = 0, count = 0; // requests
};
template <class RankOf> std::vector<int> byTheBook(const History& history, int slots, const RankOf& rankOf) {
    std::map<std::int32_t, Use> resident;
    std::vector<int> result;
    for (int r = 0; r < int(history.size()); ++r) {
        const auto& wanted = history[std::size_t(r)];
        std::vector<std::pair<decltype(rankOf(Use{})), std::int32_t>> idle;
        for (const auto& [block, use] : resident)
            if (!std::binary_search(wanted.begin(), wanted.end(), block)) idle.emplace_back(rankOf(use), block);
        std::sort(idle.begin(), idle.end());
        int misses = 0;
        for (const std::int32_t block : wanted) {
            const auto [entry, isNew] = resident.try_emplace(block, Use{r, r, 0});
            misses += isNew;
            entry->second.last = r;
            ++entry->second.count;
        }
        for (std::size_t i = 0; int(resident.size()) > slots; ++i) resident.erase(idle.at(i).second);
        result.push_back(misses);
    }
    return result;
}

TEST(Replay, PoliciesAreTheOnesOfTheBook) {
    std::mt19937 random(23);
    for (int round = 0; round < 30; ++round) {
        const History history = randomHistory(random, 300, 40, 12);
        for (int slots = visitsOf(history).largest(); slots <= 42; slots += 2) {
            EXPECT_EQ(missesOf(history, "lru", slots), byTheBook(history, slots, [](const Use& u) { return u.last; }));
            EXPECT_EQ(missesOf(history, "fifo", slots),
                      byTheBook(history, slots, [](const Use& u) { return u.loaded; }));
            EXPECT_EQ(missesOf(history, "lfu", slots),
                      byTheBook(history, slots, [](const Use& u) { return std::pair(u.count, u.last); }));
        }
    }
}

/// Adaptive replacement as its paper writes it, one block at a time. Lists: most recent first.
std::vector<int> adaptiveByTheBook(const std::vector<std::int32_t>& blocks, int c) {
    using List = std::vector<std::int32_t>;
    List t1, t2, b1, b2;
    int p = 0;
    std::vector<int> misses;
    const auto take = [](List& list, std::int32_t block) { return std::erase(list, block) > 0; };
    const auto front = [](List& list, std::int32_t block) { list.insert(list.begin(), block); };
    const auto size = [](const List& list) { return int(list.size()); };
    for (const std::int32_t x : blocks) {
        const auto replace = [&](bool inB2) {
            const bool recent = !t1.empty() && (size(t1) > p || (inB2 && size(t1) == p));
            List &from = recent ? t1 : t2, &to = recent ? b1 : b2;
            front(to, from.back());
            from.pop_back();
        };
        misses.push_back(0);
        if (take(t1, x) || take(t2, x)) {
            front(t2, x);
            continue;
        }
        misses.back() = 1;
        const bool inB1 = std::count(b1.begin(), b1.end(), x) > 0, inB2 = std::count(b2.begin(), b2.end(), x) > 0;
        if (inB1 || inB2) {
            if (inB1) p = std::min(c, p + std::max(1, size(b2) / size(b1)));
            if (inB2) p = std::max(0, p - std::max(1, size(b1) / size(b2)));
            replace(inB2);
            take(b1, x), take(b2, x);
            front(t2, x);
            continue;
        }
        if (size(t1) + size(b1) == c) {
            if (size(t1) < c)
                b1.pop_back(), replace(false);
            else
                t1.pop_back();
        } else if (size(t1) + size(t2) + size(b1) + size(b2) >= c) {
            if (size(t1) + size(t2) + size(b1) + size(b2) == 2 * c) b2.pop_back();
            replace(false);
        }
        front(t1, x);
    }
    return misses;
}

TEST(Replay, ArcIsTheOneOfThePaperWhenARequestIsOneBlock) {
    std::mt19937 random(29);
    for (int round = 0; round < 40; ++round) {
        History history;
        std::vector<std::int32_t> blocks;
        for (int r = 0; r < 600; ++r) { // phases of loops and of repeated use; never the same block twice in a row
            const bool loop = (r / 70 + round) % 2 == 0;
            std::int32_t block = loop ? r % 17 : std::int32_t(random() % 6u);
            if (!blocks.empty() && block == blocks.back()) block = (block + 1) % 17;
            blocks.push_back(block);
            history.push_back({block});
        }
        for (int slots = 2; slots <= 18; slots += 2)
            EXPECT_EQ(missesOf(history, "arc", slots), adaptiveByTheBook(blocks, slots)) << slots;
    }
}

TEST(Replay, NoPolicyBeatsBeladyAndSpaceDoesNotHurtLruAndBelady) {
    std::mt19937 random(11);
    const auto count = [](const std::vector<int>& misses) { return std::accumulate(misses.begin(), misses.end(), 0); };
    for (int round = 0; round < 40; ++round) {
        const History history = randomHistory(random, 200, 40, 12);
        std::map<std::string, int> previous;
        for (int slots = visitsOf(history).largest(); slots <= 44; slots += 3) {
            const int bound = count(missesOf(history, "belady", slots));
            for (const ReplayPolicyEntry& policy : replayPolicies()) {
                const int misses = count(missesOf(history, policy.name, slots));
                EXPECT_GE(misses, bound) << policy.name << " with " << slots;
                if (policy.name != "lru" && policy.name != "belady") continue;
                const auto entry = previous.try_emplace(policy.name, misses).first;
                EXPECT_LE(misses, entry->second) << policy.name << " with " << slots;
                entry->second = misses;
            }
        }
    }
}

/// Requests of one block each, for which textbooks say what a policy does.
std::vector<int> missedRequests(const std::string& policy, int slots, const std::vector<std::int32_t>& blocks) {
    History history;
    for (const std::int32_t block : blocks) history.push_back({block});
    std::vector<int> missed;
    const std::vector<int> misses = missesOf(history, policy, slots);
    for (int r = 0; r < int(misses.size()); ++r)
        if (misses[std::size_t(r)] > 0) missed.push_back(r);
    return missed;
}

TEST(Replay, PoliciesLetGoWhatTheyShould) {
    using testing::ElementsAre;
    // After 0 1 2 0 comes 3: fifo lets 0 go, lru 1, lfu 1 (of 1 and 2 the older), keep-selected whatever is in slot 0.
    const std::vector<std::int32_t> blocks{0, 1, 2, 0, 3, 0, 1};
    EXPECT_THAT(missedRequests("fifo", 3, blocks), ElementsAre(0, 1, 2, 4, 5, 6));
    EXPECT_THAT(missedRequests("lru", 3, blocks), ElementsAre(0, 1, 2, 4, 6));
    EXPECT_THAT(missedRequests("lfu", 3, blocks), ElementsAre(0, 1, 2, 4, 6));
    EXPECT_THAT(missedRequests("belady", 3, blocks), ElementsAre(0, 1, 2, 4));
    EXPECT_THAT(missedRequests("keep-selected", 3, blocks), ElementsAre(0, 1, 2, 3, 4, 5, 6));
    // A scan of blocks used once: lfu and arc keep 0 and 1, which were used twice, lru does not.
    const std::vector<std::int32_t> scan{0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1};
    EXPECT_THAT(missedRequests("lru", 3, scan), ElementsAre(0, 1, 4, 5, 6, 7, 8, 9, 10));
    EXPECT_THAT(missedRequests("lfu", 3, scan), ElementsAre(0, 1, 4, 5, 6, 7, 8));
    EXPECT_THAT(missedRequests("arc", 3, scan), ElementsAre(0, 1, 4, 5, 6, 7, 8));
}

TEST(Replay, ABegunBlockIsAHitAndWhatIsUncountedStillFillsTheCache) {
    BlockVisits visits;
    const History wanted{{3}, {0, 3}, {1, 3}, {0, 4}, {3, 4}};
    for (std::size_t r = 0; r < wanted.size(); ++r) visits.add(wanted[r], r == 0 ? 3 : r == 3 ? 4 : -1, r > 0);
    for (const ReplayPolicyEntry& policy : replayPolicies()) {
        SCOPED_TRACE(policy.name);
        std::vector<RequestOutcome> outcomes;
        const auto state = policy.make(visits, 2);
        replayPool(visits, *state, [&](std::size_t, const RequestOutcome& o) { outcomes.push_back(o); });
        const int hits[] = {0, 1, 1, 1, 1}, misses[] = {0, 1, 1, 1, 1}, compulsory[] = {0, 1, 1, 0, 0};
        for (std::size_t r = 0; r < wanted.size(); ++r) {
            EXPECT_EQ(outcomes[r].hits, hits[r]) << r;
            EXPECT_EQ(outcomes[r].misses, misses[r]) << r;
            EXPECT_EQ(outcomes[r].loads, misses[r]) << r;
            EXPECT_EQ(outcomes[r].compulsory, compulsory[r]) << r;
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
