// The pages of a prefix that waits on the host: slots, lists of moves and places, against a simulation with sets, also
// of pages that were asked for ahead; and what lies at those places once a gather has moved it.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/diffusion/prefix_pages.h"
#include "kernels/cuda/transfer/gather.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <set>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Tier {
    int pages, slots; // most pages of a prefix, slots of a KV head
    bool byUse;
};
void PrintTo(const Tier& t, std::ostream* out) {
    *out << t.pages << " pages, " << t.slots << " slots, " << (t.byUse ? "by use" : "the first free one");
}

/// The slots of one KV head.
struct Head {
    std::map<int, int> slotOf, usedAt; // of pages that have a slot
    /// Asks for complete pages. Those that get no slot leave `asked`. @return those that travel
    std::set<int> ask(std::set<int>& asked, int turn, const Tier& tier) {
        const std::set<int> hits = choose(asked, tier.pages, turn, tier);
        std::set<int> kept, travelled;
        for (const int page : asked) {
            if (slotOf.count(page) == 0) continue;
            kept.insert(page);
            if (hits.count(page) == 0) travelled.insert(page);
        }
        asked = kept;
        return travelled;
    }
    /// @return the pages of the union that had a slot, or are incomplete
    std::set<int> choose(const std::set<int>& united, int complete, int turn, const Tier& tier) {
        std::set<int> hits, misses;
        for (const int page : united) (page >= complete || slotOf.count(page) > 0 ? hits : misses).insert(page);
        for (const int page : hits)
            if (page < complete) usedAt[page] = turn;
        for (const int page : misses) {
            const int slot = freeSlot(united, complete, tier);
            if (slot < 0) break;
            for (auto it = slotOf.begin(); it != slotOf.end(); ++it)
                if (it->second == slot) {
                    usedAt.erase(it->first);
                    slotOf.erase(it);
                    break;
                }
            slotOf[page] = slot, usedAt[page] = turn;
        }
        return hits;
    }
    /// The slot that a miss takes; -1: all hold pages of the union.
    int freeSlot(const std::set<int>& united, int complete, const Tier& tier) const {
        std::map<int, int> pageIn;
        for (const auto& [page, slot] : slotOf) pageIn[slot] = page;
        int best = -1;
        std::pair<int, int> least;
        for (int slot = 0; slot < tier.slots; ++slot) {
            const auto held = pageIn.find(slot);
            if (held != pageIn.end() && held->second < complete && united.count(held->second) > 0) continue;
            const std::pair<int, int> rank = held == pageIn.end() || !tier.byUse
                                                 ? std::pair(-1, -1)
                                                 : std::pair(usedAt.at(held->second), held->second);
            if (best < 0 || rank < least) best = slot, least = rank;
        }
        return best;
    }
};

class CudaPrefixPages : public CudaTest, public ::testing::WithParamInterface<Tier> {};

TEST_P(CudaPrefixPages, AreWhereTheKernelsFindThem) {
    constexpr int kRows = 3, kHeads = 2, kItems = kRows * kHeads, kDim = 64, kPage = 16, kBlock = 24, kTurns = 24;
    const Tier tier = GetParam();
    const int maxPages = tier.pages + 3; // with an incomplete one, and room for the block
    const std::size_t elements = blockElements(kPage, kDim), all = std::size_t(kItems * maxPages);
    // Every number of a page says which page of which head it is of.
    const auto valueOf = [&](int item, int page) { return Half(0x3000 + item * maxPages + page); };
    PinnedMemory host(all * elements * sizeof(Half), "the store");
    for (std::size_t block = 0; block < all; ++block)
        std::fill_n(host.as<Half>() + block * elements, elements, Half(0x3000 + block));
    std::vector<std::int64_t> headFirst;
    for (int item = 0; item < kItems; ++item) headFirst.push_back(std::int64_t(item) * maxPages);
    constexpr std::int64_t kOthers = 5; // blocks of slots of another layer
    const std::size_t arrayBlocks = all + kOthers + std::size_t(kItems * tier.slots);
    const OnDevice<Half> blocks(arrayBlocks * elements);
    const OnDevice<std::int64_t> first(headFirst);
    const auto zeros = [](std::size_t count) { return std::vector<std::int32_t>(count, 0); };
    const OnDevice<std::int32_t> slotOf(zeros(all)), usedAt(zeros(all)),
        pageIn(zeros(std::size_t(kItems * tier.slots))), filled(zeros(kItems)), turns(zeros(kItems)), places(all),
        missing(all), freeSlots(std::size_t(kItems * tier.slots));
    const OnDevice<std::uint32_t> askedBits(std::size_t(kItems * ((maxPages + 31) / 32))),
        travelledBits(std::size_t(kItems * ((maxPages + 31) / 32)));
    const OnDevice<AskedPages> came(kItems);
    const OnDevice<BlockMove> loads(all), stores(std::size_t(kItems * 3));
    Head heads[kItems];
    PrefixPagesArgs args;
    const int words = (maxPages + 31) / 32;
    for (int turn = 0; turn < kTurns; ++turn) {
        SCOPED_TRACE(::testing::Message() << "turn " << turn);
        // The prefixes grow; the second row has no forward, and the third one is sparse in turns.
        const int firsts[kRows] = {std::max(0, (tier.pages - kTurns + turn) * kPage + 5), 0, tier.pages / 2 * kPage};
        std::vector<BlockRow> table;
        for (int row = 0; row < kRows; ++row) {
            std::uint32_t flags = row == 1 ? 0 : std::uint32_t(BlockRow::kTaken);
            if (row == 0 || (row == 2 && turn % 3 > 0)) flags |= BlockRow::kSparse;
            if (row == 0 && turn % 4 == 3) flags |= BlockRow::kClean;
            if (row == 0 && turn % 5 > 0) flags |= BlockRow::kAsks;
            if (row == 0 && turn % 5 > 1) flags |= BlockRow::kAsksAgain;
            table.push_back({row, firsts[row], firsts[row], flags});
        }
        std::vector<std::set<int>> united(kItems);
        std::vector<std::int32_t> lists(all, -1), counts(kItems, 0);
        std::vector<std::uint32_t> bits(std::size_t(kItems * words), 0);
        for (int item = 0; item < kItems; ++item) {
            const BlockRow& of = table[std::size_t(item / kHeads)];
            const int complete = of.first / kPage;
            if ((of.flags & BlockRow::kSparse) == 0 || turn % 7 == 6) continue;
            for (int i = uniform(0, tier.pages); i > 0 && complete > 0; --i)
                united[std::size_t(item)].insert(uniform(turn % 2 == 0 ? 0 : complete / 2, complete - 1));
            if (of.first % kPage != 0) united[std::size_t(item)].insert(complete);
            std::copy(united[std::size_t(item)].begin(), united[std::size_t(item)].end(),
                      lists.begin() + item * maxPages);
            counts[std::size_t(item)] = int(united[std::size_t(item)].size());
            for (const int page : united[std::size_t(item)])
                bits[std::size_t(item * words + page / 32)] |= 1u << page % 32;
        }
        std::vector<std::set<int>> asked(kItems);
        std::vector<std::uint32_t> foreseen(std::size_t(kItems * words), 0), before = foreseen;
        for (int item = 0; item < kItems; ++item) {
            const BlockRow& of = table[std::size_t(item / kHeads)];
            const int complete = of.first / kPage;
            for (std::vector<std::uint32_t>* const from : {&foreseen, &before})
                for (int i = uniform(0, tier.pages / 2); i > 0; --i) {
                    const int page = uniform(0, complete); // also the incomplete one, which nobody gets
                    (*from)[std::size_t(item * words + page / 32)] |= 1u << page % 32;
                    const bool isAsked = from == &foreseen || (of.flags & BlockRow::kAsksAgain) != 0;
                    if ((of.flags & BlockRow::kAsks) != 0 && isAsked && page < complete)
                        asked[std::size_t(item)].insert(page);
                }
        }
        const OnDevice<BlockRow> dtable(table);
        const OnDevice<std::int32_t> dlists(lists), dcounts(counts);
        const OnDevice<std::uint32_t> dbits(bits), hits(std::size_t(kItems * words)),
            moved(std::vector<std::uint32_t>(PrefixPagesArgs::kCounts, 0));
        args.rows = {{kHeads, kHeads, kDim, kPage}, kRows, kBlock, dtable.get(), nullptr, first.get()};
        args.slots = {slotOf.get(), usedAt.get(), pageIn.get(), filled.get(), turns.get(), tier.slots, tier.byUse};
        args.firstSlot = std::int64_t(all) + kOthers;
        args.maxPages = maxPages;
        args.pages = dlists.get(), args.count = dcounts.get(), args.united = dbits.get();
        args.places = places.get(), args.hits = hits.get();
        args.missing = missing.get(), args.freeSlots = freeSlots.get();
        args.blocks = blocks.bf16();
        args.store = host.as<__nv_bfloat16>();
        args.moves = {loads.get(), stores.get(), moved.get(), int(blockBytes(kPage, kDim) / kStoreUnit)};
        ASSERT_EQ(args.wordsOf(), words);
        // What the block and the incomplete page wrote to the window, of which clean rows complete some.
        std::vector<Half> window = blocks.read();
        for (int item = 0; item < kItems; ++item) {
            const int complete = firsts[item / kHeads] / kPage;
            std::fill_n(window.begin() + std::ptrdiff_t(std::size_t(item * maxPages) * elements),
                        std::size_t(complete) * elements, Half(0xffff)); // what another layer left
            for (int page = complete; page < complete + 3; ++page)
                std::fill_n(window.begin() + std::ptrdiff_t(std::size_t(item * maxPages + page) * elements), elements,
                            valueOf(item, page));
            if (table[std::size_t(item / kHeads)].flags & BlockRow::kClean) // so that it is seen what is stored
                std::fill_n(host.as<Half>() + std::size_t(item * maxPages + complete) * elements, 3 * elements,
                            Half(0));
        }
        check(cudaMemcpy(blocks.get(), window.data(), window.size() * sizeof(Half), cudaMemcpyHostToDevice), "writing");
        args.ahead = {askedBits.get(), travelledBits.get(), came.get()};
        const OnDevice<std::uint32_t> dforeseen(foreseen), dbefore(before);
        AskPagesArgs asks{args, dforeseen.get(), dbefore.get()};
        asks.pages.moves.counts += PrefixPagesArgs::kAsked;
        askPrefixPages(launch, asks);
        GatherArgs sends;
        sends.shape = args.rows.shape, sends.moves = asks.pages.moves;
        sends.store = args.store, sends.part = GatherArgs::Part::Loads;
        sends.pool = blocks.bf16() + std::size_t(args.firstSlot) * elements;
        // The layer was ready in the step that began at 5, or has not been ready yet.
        const OnDevice<std::uint64_t> times(std::vector<std::uint64_t>{5, turn % 2 == 0 ? 6u : 4u});
        const OnDevice<SelectionHead> late(std::vector<SelectionHead>(kItems, SelectionHead()));
        sends.begin = times.get(), sends.ready = times.get() + 1;
        sends.late = late.get(), sends.slots = tier.slots;
        gatherBlocks(launch, sends);
        placePrefixPages(launch, args);
        GatherArgs gather;
        gather.shape = args.rows.shape, gather.moves = args.moves;
        gather.store = args.store, gather.storeOut = host.as<__nv_bfloat16>(), gather.pool = blocks.bf16();
        gatherBlocks(launch, gather);
        check(cudaStreamSynchronize(launch.stream), "moving");

        window = blocks.read();
        const auto gotPlaces = places.read();
        const auto gotHits = hits.read(), gotMoved = moved.read();
        const auto gotCame = came.read();
        const auto gotLate = late.read();
        std::uint32_t loaded = 0, stored = 0, sent = 0;
        for (int item = 0; item < kItems; ++item) {
            SCOPED_TRACE(::testing::Message() << "item " << item);
            const BlockRow& of = table[std::size_t(item / kHeads)];
            if ((of.flags & BlockRow::kTaken) == 0) continue;
            const int complete = of.first / kPage;
            const auto isPage = [&](std::int64_t block, int page) {
                const auto* const from = window.data() + std::size_t(block) * elements;
                return std::all_of(from, from + elements, [&](Half x) { return x == valueOf(item, page); });
            };
            if ((of.flags & BlockRow::kClean) != 0)
                for (int page = complete; page < complete + 3; ++page) {
                    const bool done = page < (of.first + kBlock) / kPage;
                    stored += done ? 1 : 0;
                    Half* const at = host.as<Half>() + std::size_t(item * maxPages + page) * elements;
                    for (std::size_t i = 0; i < elements; ++i)
                        ASSERT_EQ(at[i], done ? valueOf(item, page) : Half(0)) << "page " << page;
                    std::fill_n(at, elements, valueOf(item, page));
                }
            Head& head = heads[item];
            if ((of.flags & BlockRow::kSparse) == 0) {
                for (int page = 0; page < complete; ++page) {
                    ASSERT_TRUE(isPage(item * maxPages + page, page)) << "page " << page;
                    loaded += head.slotOf.count(page) == 0 ? 1 : 0;
                }
                continue;
            }
            const std::set<int>& mine = united[std::size_t(item)];
            std::set<int>& ahead = asked[std::size_t(item)];
            const bool asksAhead = (of.flags & BlockRow::kAsks) != 0;
            const std::set<int> travels = asksAhead ? head.ask(ahead, turn, tier) : std::set<int>();
            sent += std::uint32_t(travels.size());
            ASSERT_EQ(gotLate[std::size_t(item)].late, turn % 2 == 0 ? travels.size() : 0u);
            const auto inUnion = [&](const std::set<int>& pages) {
                return int(std::count_if(pages.begin(), pages.end(), [&](int page) { return mine.count(page) > 0; }));
            };
            const AskedPages& what = gotCame[std::size_t(item)];
            ASSERT_EQ(what.predicted, asksAhead ? int(ahead.size()) : -1);
            ASSERT_EQ(what.used, inUnion(ahead));
            ASSERT_EQ(what.wasted, int(travels.size()) - inUnion(travels));
            std::set<int> there = head.choose(mine, complete, turn, tier);
            loaded += std::uint32_t(mine.size() - there.size());
            for (const int page : travels) there.erase(page); // what travels is no hit
            int entry = item * maxPages;
            for (const int page : mine) {
                const std::int64_t place = gotPlaces[std::size_t(entry++)] + headFirst[std::size_t(item)];
                ASSERT_TRUE(isPage(place, page)) << "page " << page << " at " << place;
                const bool inSlot = place >= args.firstSlot + std::int64_t(item) * tier.slots &&
                                    place < args.firstSlot + std::int64_t(item + 1) * tier.slots;
                ASSERT_EQ(inSlot, page < complete && head.slotOf.count(page) > 0) << "page " << page;
                if (!inSlot) {
                    ASSERT_EQ(place, headFirst[std::size_t(item)] + page);
                }
            }
            for (int page = 0; page < words * 32; ++page)
                ASSERT_EQ((gotHits[std::size_t(item * words + page / 32)] >> page % 32 & 1) != 0, there.count(page) > 0)
                    << "page " << page;
        }
        ASSERT_EQ(gotMoved[PrefixPagesArgs::kLoads], loaded);
        ASSERT_EQ(gotMoved[PrefixPagesArgs::kAsked], sent);
        ASSERT_EQ(gotMoved[PrefixPagesArgs::kStores], stored);
    }
}

INSTANTIATE_TEST_SUITE_P(Tiers, CudaPrefixPages,
                         ::testing::Values(Tier{40, 1, true}, Tier{40, 7, true}, Tier{40, 7, false}, Tier{40, 33, true},
                                           Tier{40, 100, false}, Tier{40, 100, true}, Tier{300, 120, true},
                                           Tier{300, 120, false}));

/// The incomplete page of a prefix survives other layers' use of the window.
class CudaPrefixTails : public CudaTest {};

TEST_F(CudaPrefixTails, ComeBack) {
    constexpr int kRows = 3, kHeads = 2, kDim = 128, kPage = 16, kBlock = 8, kPages = 6;
    const std::size_t elements = blockElements(kPage, kDim);
    const std::vector<Half> before = halves(std::size_t(kRows * kHeads * kPages) * elements);
    const OnDevice<Half> window(before), tails(std::size_t(kRows * kHeads) * elements);
    std::vector<std::int64_t> headFirst;
    for (int item = 0; item < kRows * kHeads; ++item) headFirst.push_back(std::int64_t(item) * kPages);
    const OnDevice<std::int64_t> first(headFirst);
    // The first row's block leaves half of page 2, the second row's completes page 3, the third one's is not clean.
    const OnDevice<BlockRow> clean(std::vector<BlockRow>{{0, 32, 32, BlockRow::kTaken | BlockRow::kClean},
                                                         {1, 56, 56, BlockRow::kTaken | BlockRow::kClean},
                                                         {2, 32, 32, BlockRow::kTaken}});
    const OnDevice<BlockRow> next(
        std::vector<BlockRow>{{0, 40, 40, BlockRow::kTaken}, {1, 64, 64, BlockRow::kTaken}, {2, 40, 40, 0u}});
    PrefixTailsArgs args{
        {{kHeads, kHeads, kDim, kPage}, kRows, kBlock, clean.get(), nullptr, first.get()}, window.bf16(), tails.bf16()};
    keepPrefixTails(launch, args);
    check(cudaMemsetAsync(window.get(), 0, before.size() * sizeof(Half), launch.stream), "another layer");
    args.rows.table = next.get();
    restorePrefixTails(launch, args);
    check(cudaStreamSynchronize(launch.stream), "moving");
    const auto after = window.read();
    for (std::size_t block = 0; block < before.size() / elements; ++block) {
        const bool kept = block % kPages == 2 && block / kPages < kHeads; // page 2 of the first row's heads
        for (std::size_t i = 0; i < elements; ++i)
            ASSERT_EQ(after[block * elements + i], kept ? before[block * elements + i] : Half(0)) << "block " << block;
    }
}

/// Tokens that were written since the forward before ask, or all; and the queries that they had.
TEST_F(CudaPrefixTails, TokensThatWereWrittenAsk) {
    constexpr int kRows = 4, kHeads = 3, kGroup = 2, kDim = 64, kBlock = 40;
    std::vector<std::int32_t> ids, last;
    for (int i = 0; i < kRows * kBlock; ++i) {
        last.push_back(uniform(0, 9));
        ids.push_back(uniform(0, 1) > 0 ? last.back() : 10);
    }
    constexpr std::uint32_t kSparse = BlockRow::kTaken | BlockRow::kSparse;
    const OnDevice<BlockRow> table(std::vector<BlockRow>{{0, 64, 64, kSparse | BlockRow::kAsks},
                                                         {1, 64, 64, kSparse | BlockRow::kAsks | BlockRow::kAsksAll},
                                                         {2, 64, 64, BlockRow::kTaken},
                                                         {3, 64, 64, 0u}});
    const OnDevice<std::int32_t> dids(ids), dlast(last);
    const OnDevice<std::uint64_t> asking(std::size_t(kRows * kHeads));
    const BlockRows rows{{kHeads * kGroup, kHeads, kDim, 16}, kRows, kBlock, table.get(), nullptr, nullptr};
    nameAsking(launch, {rows, dids.get(), dlast.get(), asking.get()});
    const std::size_t numbers = std::size_t(kRows * kBlock * kHeads * kGroup * kDim);
    const std::vector<float> queries = floats(numbers);
    const OnDevice<float> before(queries);
    const OnDevice<Half> rounded(std::vector<Half>(numbers, Half(7)));
    roundQueries(launch, rows, before.get(), rounded.bf16());
    check(cudaStreamSynchronize(launch.stream), "asking");
    std::uint64_t written = 0;
    for (std::size_t i = 0; i < kBlock; ++i) written |= std::uint64_t(ids[i] != last[i]) << i;
    const auto got = asking.read();
    for (std::size_t g = 0; g < kHeads; ++g) {
        EXPECT_EQ(got[g], written);
        EXPECT_EQ(got[kHeads + g], (std::uint64_t(1) << kBlock) - 1);
        EXPECT_EQ(got[2 * kHeads + g] | got[3 * kHeads + g], 0u);
    }
    const auto kept = dlast.read();
    for (std::size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(kept[i], i < 3 * kBlock ? ids[i] : last[i]);
    const auto gotQueries = rounded.read();
    for (std::size_t i = 0; i < numbers; ++i)
        ASSERT_EQ(gotQueries[i], i < numbers / 2 ? toBf16(queries[i]) : Half(7)) << i;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
