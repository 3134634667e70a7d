// ArkVale and InfLLM against plain references written from their papers (methods 9.7, 9.8), in float64.
#include "tests/core/method_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::expectBest;
using test::MethodRun;
using test::upTo;
constexpr int kDim = MethodRun::kDim, kGroup = MethodRun::kGroup;

std::vector<std::int32_t> tokensOf(const std::vector<std::int32_t>& blocks, int size, int position) {
    std::vector<std::int32_t> tokens;
    for (const std::int32_t b : blocks)
        for (int t = b * size; t <= std::min(position, (b + 1) * size - 1); ++t) tokens.push_back(t);
    return tokens;
}

// --- ArkVale (9.7)

/// Bound of a complete page for one KV head, summed over its query heads.
double pageBound(const MethodRun& run, int position, int g, int page, bool cuboid) {
    const int size = run.spec().blockSize;
    double sum = 0;
    for (int c = 0; c < kDim; ++c) {
        double low = 1e300, high = -1e300, radius = 0;
        for (int t = page * size; t < (page + 1) * size; ++t) {
            low = std::min(low, double(run.k(t, g)[c]));
            high = std::max(high, double(run.k(t, g)[c]));
        }
        const double centre = (low + high) / 2;
        for (int t = page * size; t < (page + 1) * size; ++t)
            radius += std::abs(centre - double(run.k(t, g)[c])) / size;
        if (cuboid) low = centre - radius, high = centre + radius;
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
            const double q = double(run.q(position, h)[c]);
            sum += std::max(q * low, q * high);
        }
    }
    return sum;
}

struct ArkReference {
    int budget, topk, sink, window;
    bool layer, cuboid;
};

void expectArkVale(const ArkReference& want, unsigned seed) {
    const MethodRun run("arkvale",
                        {{"block_size", "16"},
                         {"page_budget", std::to_string(want.budget)},
                         {"page_topks", std::to_string(want.topk)},
                         {"sink_blocks", std::to_string(want.sink)},
                         {"window_blocks", std::to_string(want.window)},
                         {"skip_layers", "0"},
                         {"groups", want.layer ? "layer" : "head"},
                         {"digest", want.cuboid ? "cuboid-mean" : "bounds"}},
                        {330, 60, seed});
    const int size = 16, dynamic = want.topk - want.sink - (want.window - 1);
    for (int g = 0; g < MethodRun::kKvHeads; ++g) {
        std::set<std::int32_t> resident;
        const auto visit = [&](int position) {
            const int pages = position / size + 1, complete = (position + 1) / size;
            const auto score = [&](int page) {
                if (page >= complete) return -1e300;
                if (!want.layer) return pageBound(run, position, g, page, want.cuboid) / kGroup;
                return (pageBound(run, position, 0, page, want.cuboid) +
                        pageBound(run, position, 1, page, want.cuboid)) /
                       MethodRun::kQueryHeads;
            };
            std::set<std::int32_t> pinned;
            for (int page = 0; page < want.sink; ++page) pinned.insert(page);
            for (int page = pages - want.window; page < pages; ++page) pinned.insert(page);
            std::vector<std::pair<double, int>> order;
            for (int page = want.sink; page < pages - want.window + 1; ++page) order.push_back({-score(page), page});
            std::sort(order.begin(), order.end());
            for (int i = 0; i < std::min(dynamic, int(order.size())); ++i) pinned.insert(order[std::size_t(i)].second);
            resident.insert(pinned.begin(), pinned.end());
            while (int(resident.size()) > want.budget) {
                int victim = -1;
                for (const int page : resident)
                    if (!pinned.count(page) && (victim < 0 || score(page) < score(victim))) victim = page;
                resident.erase(victim);
            }
        };
        for (int page = 0; page * size < run.promptTokens(); ++page) resident.insert(page);
        visit(run.promptTokens() - 1); // what the prompt leaves
        for (std::size_t step = 0; step < run.steps().size(); ++step) {
            const int position = run.position(step);
            const auto before = resident;
            visit(position);
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            const std::vector<std::int32_t> expected(resident.begin(), resident.end());
            ASSERT_EQ(head.units, expected) << "step " << step << " head " << g;
            EXPECT_LT(run.outputError(step, g, tokensOf(expected, size, position)), 2e-6)
                << "all resident pages are attended";
            for (std::size_t i = 0; i < head.units.size(); ++i) {
                const bool began = position % size == 0 && head.units[i] == position / size;
                EXPECT_EQ(head.hit[i] == 1, began || before.count(head.units[i]) > 0) << "recalled pages are misses";
            }
        }
    }
}

TEST(ArkVale, RecallsTheBestPagesAndEvictsTheWorst) {
    expectArkVale({12, 6, 1, 2, true, true}, 21);
    expectArkVale({10, 8, 2, 3, false, true}, 22);
    expectArkVale({9, 5, 1, 1, true, false}, 23);
}

TEST(ArkVale, WithRoomForEverythingIsDense) {
    const MethodRun run("arkvale", {{"page_budget", "64"}, {"skip_layers", "0"}}, {300, 40, 24});
    for (std::size_t step = 0; step < run.steps().size(); ++step) {
        EXPECT_EQ(run.steps()[step].layer.misses, 0);
        for (int g = 0; g < MethodRun::kKvHeads; ++g)
            EXPECT_LT(run.outputError(step, g, upTo(run.position(step) + 1)), 2e-6);
    }
}

// --- Quest's other bounds (9.4, 7.1): blocks bounded by products

/// The bound of a block that is complete at `position`, for one KV head.
double questBound(const MethodRun& run, int position, int g, int block, bool cuboid, bool largest) {
    if (!largest) return pageBound(run, position, g, block, cuboid);
    const int size = run.spec().blockSize;
    double best = -1e300;
    for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
        double sum = 0;
        for (int c = 0; c < kDim; ++c) {
            double low = 1e300, high = -1e300, radius = 0;
            for (int t = block * size; t < (block + 1) * size; ++t) {
                low = std::min(low, double(run.k(t, g)[c]));
                high = std::max(high, double(run.k(t, g)[c]));
            }
            const double centre = (low + high) / 2;
            for (int t = block * size; t < (block + 1) * size; ++t)
                radius += std::abs(centre - double(run.k(t, g)[c])) / size;
            if (cuboid) low = centre - radius, high = centre + radius;
            const double q = double(run.q(position, h)[c]);
            sum += std::max(q * low, q * high);
        }
        best = std::max(best, sum);
    }
    return best;
}

TEST(QuestProducts, TakeTheBlocksOfTheLargestBounds) {
    for (const bool cuboid : {false, true})
        for (const bool largest : {false, true}) {
            const MethodRun run("quest",
                                {{"block_size", "16"},
                                 {"total_blocks", "8"},
                                 {"sink_blocks", "1"},
                                 {"window_blocks", "1"},
                                 {"skip_layers", "0"},
                                 {"bound", cuboid ? "cuboid-mean" : "product"},
                                 {"group", largest ? "max" : "sum"}},
                                {330, 40, 31});
            for (std::size_t step = 0; step < run.steps().size(); ++step)
                for (int g = 0; g < MethodRun::kKvHeads; ++g) {
                    const int position = run.position(step), current = position / 16;
                    const auto& head = run.steps()[step].heads[std::size_t(g)];
                    std::vector<std::int32_t> chosen, candidates;
                    std::vector<double> scores;
                    for (std::size_t i = 0; i < head.units.size(); ++i)
                        if (head.origins[i] == Origin::QueryAware) chosen.push_back(head.units[i]);
                    for (int b = 1; b < current - 1; ++b) { // window: one block and the current one
                        candidates.push_back(b);
                        scores.push_back(questBound(run, position, g, b, cuboid, largest));
                    }
                    expectBest(chosen, candidates, scores, 5, 1e-4);
                    EXPECT_EQ(head.units.size(), 8u);
                    EXPECT_EQ(head.units.back(), current) << "the newest block is attended, digest or not";
                    EXPECT_LT(run.outputError(step, g, tokensOf(head.units, 16, position)), 2e-6);
                }
        }
}

/// Largest bound-ordered pages of one query head, and the newest page, which counts (9.4): no sink, no window.
std::set<std::int32_t> questPages(const MethodRun& run, int position, int head, int total) {
    std::vector<std::pair<double, std::int32_t>> order;
    const int g = head / kGroup;
    for (int page = 0; page < position / 16; ++page) {
        double sum = 0;
        for (int c = 0; c < kDim; ++c) {
            double low = 1e300, high = -1e300;
            for (int t = page * 16; t < (page + 1) * 16; ++t) {
                low = std::min(low, double(run.k(t, g)[c]));
                high = std::max(high, double(run.k(t, g)[c]));
            }
            const double q = double(run.q(position, head)[c]);
            sum += std::max(q * low, q * high);
        }
        order.push_back({-sum, page});
    }
    std::sort(order.begin(), order.end());
    std::set<std::int32_t> pages{position / 16};
    for (int i = 0; i < std::min(total - 1, int(order.size())); ++i) pages.insert(order[std::size_t(i)].second);
    return pages;
}

TEST(QuestPerHead, GivesEveryQueryHeadItsOwnPages) {
    for (const char* bound : {"max", "product"}) {
        const MethodRun run(
            "quest", {{"total_blocks", "5"}, {"skip_layers", "0"}, {"group", "per_query_head"}, {"bound", bound}},
            {330, 40, 33});
        int apart = 0;
        for (std::size_t step = 0; step < run.steps().size(); ++step)
            for (int g = 0; g < MethodRun::kKvHeads; ++g) {
                const int position = run.position(step);
                const auto& head = run.steps()[step].heads[std::size_t(g)];
                std::set<std::int32_t> all;
                for (int h = 0; h < kGroup; ++h) {
                    const auto own = questPages(run, position, g * kGroup + h, 5);
                    ASSERT_EQ(own.size(), 5u);
                    all.insert(own.begin(), own.end());
                    const std::vector<std::int32_t> pages(own.begin(), own.end());
                    const auto expected = run.attention(position, g * kGroup + h, tokensOf(pages, 16, position));
                    for (int c = 0; c < kDim; ++c)
                        EXPECT_NEAR(expected[std::size_t(c)], head.out[std::size_t(h * kDim + c)], 2e-6);
                }
                EXPECT_EQ(head.units, std::vector<std::int32_t>(all.begin(), all.end())) << "step " << step;
                apart += all.size() > 5 ? 1 : 0;
            }
        EXPECT_GT(apart, 40) << "heads of a group that agree would test nothing";
    }
}

TEST(Quest, TakesThePapersPagesByDefault) {
    const MethodRun run("quest", {{"total_blocks", "4"}, {"skip_layers", "0"}}, {330, 20, 34});
    EXPECT_EQ(run.spec().blockSize, 16);
    for (const auto& step : run.steps())
        for (const auto& head : step.heads) {
            ASSERT_EQ(head.units.size(), 4u);
            EXPECT_EQ(head.origins.back(), Origin::Window);
            EXPECT_EQ(std::count(head.origins.begin(), head.origins.end(), Origin::QueryAware), 3)
                << "only the newest page is forced";
        }
}

// Where no block is open the products and the maxima bound the same blocks.
TEST(QuestProducts, OfRangesAreTheMaximumsSum) {
    const std::vector<std::pair<std::string, std::string>> settings{{"block_size", "16"},
                                                                    {"total_blocks", "9"},
                                                                    {"skip_layers", "0"},
                                                                    {"sink_blocks", "1"},
                                                                    {"window_blocks", "1"}};
    auto products = settings;
    products.emplace_back("bound", "product");
    const MethodRun maxima("quest", settings, {330, 60, 32}), product("quest", products, {330, 60, 32});
    for (std::size_t step = 0; step < maxima.steps().size(); ++step)
        for (int g = 0; g < MethodRun::kKvHeads; ++g)
            EXPECT_EQ(maxima.steps()[step].heads[std::size_t(g)].units,
                      product.steps()[step].heads[std::size_t(g)].units)
                << "step " << step;
}

// --- InfLLM (9.8)

struct InfReference {
    int init, local, topk, representatives; // init in blocks
    bool layer;
    int together = 0; // prompt tokens with one choice; 0: the prompt is read in full
    double decay = 0; // of a score-weighted cache; 0: least recently used
};

class InfLlmCheck {
public:
    InfLlmCheck(const InfReference& want, unsigned seed)
        : want_(want),
          run_("infllm",
               {{"block_size", "16"},
                {"init_tokens", std::to_string(want.init * 16)},
                {"local_tokens", std::to_string(want.local)},
                {"topk_blocks", std::to_string(want.topk)},
                {"cached_blocks", std::to_string(kCached)},
                {"score_decay", std::to_string(want.decay > 0 ? want.decay : 0.1)},
                {"repr_topk", std::to_string(want.representatives)},
                {"groups", want.layer ? "layer" : "head"},
                {"prefill", want.together > 0 ? "sparse" : "full"},
                {"exc_block", std::to_string(std::max(want.together, 1))}},
               {.promptTokens = 330, .steps = 60, .seed = seed, .policy = want.decay > 0 ? "lru-s" : "lru"}),
          mass_(MethodRun::kQueryHeads, std::vector<double>(400, 0.0)) {}

    static constexpr int kCached = 5;
    static constexpr double kLeavesFirst = -std::numeric_limits<double>::infinity();

    void check() {
        for (int t = 0; t < run_.promptTokens(); ++t) {
            if (want_.together > 0 && t % want_.together == 0) checkPiece(t);
            accumulate(t);
        }
        for (std::size_t step = 0; step < run_.steps().size(); ++step) {
            SCOPED_TRACE(step);
            for (int g = 0; g < MethodRun::kKvHeads; ++g) checkHead(step, g);
            for (int g = 0; g < MethodRun::kKvHeads && want_.decay > 0; ++g) checkCache(step, g);
            accumulate(run_.position(step));
        }
    }

    int evicted() const { return evicted_; }

private:
    int firstLocal(int position) const { return std::max(0, position + 1 - want_.local) / 16; }

    void accumulate(int t) {
        for (int h = 0; h < MethodRun::kQueryHeads; ++h) {
            std::vector<double> logits;
            const int begin = firstLocal(t) * 16;
            for (int j = begin; j <= t; ++j)
                logits.push_back(run_.scale() *
                                 std::inner_product(run_.q(t, h), run_.q(t, h) + kDim, run_.k(j, h / kGroup), 0.0));
            logits = test::softmax(logits);
            for (std::size_t j = 0; j < logits.size(); ++j) mass_[std::size_t(h)][std::size_t(begin) + j] += logits[j];
        }
    }

    /// The outputs of a piece of the prompt against float64. Where the last block taken and the first one left score
    /// alike, float32 may choose the other: such pieces are not compared.
    void checkPiece(int begin) const {
        const int end = std::min(begin + want_.together, run_.promptTokens());
        for (int g = 0; g < MethodRun::kKvHeads; ++g) {
            std::vector<std::pair<double, int>> context;
            for (int b = want_.init; b < firstLocal(begin); ++b) {
                double sum = 0;
                for (int h = want_.layer ? 0 : g * kGroup;
                     h < (want_.layer ? MethodRun::kQueryHeads : (g + 1) * kGroup); ++h)
                    for (int t = begin; t < end; ++t) sum -= score(t, h, b) / (end - begin);
                context.emplace_back(sum, b);
            }
            std::sort(context.begin(), context.end());
            const auto taken = std::min(context.size(), std::size_t(want_.topk));
            if (taken < context.size() && taken > 0 && context[taken].first - context[taken - 1].first < 1e-4) continue;
            for (int t = begin; t < end; ++t) {
                std::vector<std::int32_t> near, far;
                for (int b = 0; b < firstLocal(t); ++b) {
                    const bool chosen = std::any_of(context.begin(), context.begin() + std::ptrdiff_t(taken),
                                                    [&](const auto& c) { return c.second == b; });
                    if (b < want_.init || chosen || b >= firstLocal(begin)) far.push_back(b);
                }
                for (int b = firstLocal(t); b <= t / 16; ++b) near.push_back(b);
                for (int h = 0; h < kGroup; ++h)
                    expectOutput(t, run_.out(t, g * kGroup + h), g * kGroup + h, tokensOf(near, 16, t),
                                 tokensOf(far, 16, t));
            }
        }
    }

    /// Query at the fixed distance against the mean unrotated key of the block's most attended tokens.
    double score(int position, int h, int block) const {
        std::vector<int> order(16);
        std::iota(order.begin(), order.end(), block * 16);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
            return mass_[std::size_t(h)][std::size_t(a)] > mass_[std::size_t(h)][std::size_t(b)];
        });
        const auto q = run_.rotated(run_.plainQ(position, h), want_.local);
        double sum = 0;
        for (int i = 0; i < want_.representatives; ++i)
            sum += std::inner_product(q.begin(), q.end(), run_.plainK(order[std::size_t(i)], h / kGroup), 0.0) /
                   want_.representatives;
        return sum;
    }

    void checkHead(std::size_t step, int g) const {
        const int position = run_.position(step), local = firstLocal(position);
        const auto& head = run_.steps()[step].heads[std::size_t(g)];
        std::vector<std::int32_t> context, chosen, near, far;
        std::vector<double> scores;
        for (int b = want_.init; b < local; ++b) {
            double sum = 0;
            for (int h = want_.layer ? 0 : g * kGroup; h < (want_.layer ? MethodRun::kQueryHeads : (g + 1) * kGroup);
                 ++h)
                sum += score(position, h, b);
            context.push_back(b);
            scores.push_back(sum);
        }
        for (const std::int32_t b : head.units) {
            if (b >= want_.init && b < local) chosen.push_back(b);
            (b < local ? far : near).push_back(b);
        }
        expectBest(chosen, context, scores, want_.topk, 1e-4);
        EXPECT_EQ(int(far.size() - chosen.size()), std::min(want_.init, local)) << "first tokens are always there";
        EXPECT_EQ(int(near.size()), position / 16 - local + 1);
        for (int h = 0; h < kGroup; ++h)
            expectOutput(position, head.out.data() + h * kDim, g * kGroup + h, tokensOf(near, 16, position),
                         tokensOf(far, 16, position));
    }

    /// Hits of a pool that holds `kCached` blocks beyond the first tokens and the window: what makes room is the block
    /// that is worth least, the attention it received when it was selected last times the decay of every step since.
    void checkCache(std::size_t step, int g) {
        const int position = run_.position(step), local = firstLocal(position);
        const auto& head = run_.steps()[step].heads[std::size_t(g)];
        auto& cached = cached_[g]; // block: step it counts as last used in
        if (step == 0 && run_.promptTokens() % 16 != 0) cached[run_.promptTokens() / 16] = kLeavesFirst;
        const auto wanted = [&](int block) {
            return std::find(head.units.begin(), head.units.end(), block) != head.units.end();
        };
        for (std::size_t i = 0; i < head.units.size(); ++i) {
            const bool begins = position % 16 == 0 && head.units[i] == position / 16;
            EXPECT_EQ(head.hit[i] == 1, begins || cached.count(head.units[i]) > 0) << "block " << head.units[i];
        }
        for (const std::int32_t block : head.units) cached.emplace(block, kLeavesFirst);
        const auto slots = std::size_t(want_.init + (want_.local + 15) / 16 + 1 + std::max(kCached, want_.topk));
        while (cached.size() > slots) {
            auto worst = cached.end();
            for (auto block = cached.begin(); block != cached.end(); ++block)
                if (!wanted(block->first) && (worst == cached.end() || block->second < worst->second)) worst = block;
            ASSERT_NE(worst, cached.end());
            cached.erase(worst);
            ++evicted_;
        }
        std::vector<std::int32_t> near, far;
        for (const std::int32_t block : head.units) (block < local ? far : near).push_back(block);
        for (const std::int32_t block : head.units) {
            double worth = 0;
            for (int h = want_.layer ? 0 : g * kGroup; h < (want_.layer ? MethodRun::kQueryHeads : (g + 1) * kGroup);
                 ++h)
                worth += share(position, h, block, tokensOf(near, 16, position), tokensOf(far, 16, position));
            cached[block] = block >= want_.init && block < local
                                ? std::round(64 * (position + std::log(worth) / -std::log(want_.decay)))
                                : kLeavesFirst;
        }
    }

    /// Of a query head's attention, what a block beyond the window gets.
    double share(int position, int h, int block, const std::vector<std::int32_t>& near,
                 const std::vector<std::int32_t>& far) const {
        const auto q = run_.rotated(run_.plainQ(position, h), want_.local);
        double all = 0, its = 0;
        for (const std::int32_t t : near)
            all += std::exp(run_.scale() * std::inner_product(run_.q(position, h), run_.q(position, h) + kDim,
                                                              run_.k(t, h / kGroup), 0.0));
        for (const std::int32_t t : far) {
            const double weight =
                std::exp(run_.scale() * std::inner_product(q.begin(), q.end(), run_.plainK(t, h / kGroup), 0.0));
            all += weight;
            its += t / 16 == block ? weight : 0;
        }
        return its / all;
    }

    template <class Number>
    void expectOutput(int position, const Number* out, int h, const std::vector<std::int32_t>& near,
                      const std::vector<std::int32_t>& far) const {
        const int g = h / kGroup;
        const auto q = run_.rotated(run_.plainQ(position, h), want_.local);
        std::vector<double> logits;
        std::vector<std::int32_t> tokens;
        for (const std::int32_t t : near) {
            tokens.push_back(t);
            logits.push_back(run_.scale() *
                             std::inner_product(run_.q(position, h), run_.q(position, h) + kDim, run_.k(t, g), 0.0));
        }
        for (const std::int32_t t : far) { // keys at 0, the query at the fixed distance
            tokens.push_back(t);
            logits.push_back(run_.scale() * std::inner_product(q.begin(), q.end(), run_.plainK(t, g), 0.0));
        }
        logits = test::softmax(logits);
        for (int c = 0; c < kDim; ++c) {
            double expected = 0;
            for (std::size_t i = 0; i < tokens.size(); ++i) expected += logits[i] * double(run_.v(tokens[i], g)[c]);
            EXPECT_NEAR(double(out[c]), expected, 2e-5) << "position " << position;
        }
    }

    const InfReference want_;
    const MethodRun run_;
    std::vector<std::vector<double>> mass_; // [query head][token]
    std::map<int, double> cached_[MethodRun::kKvHeads];
    int evicted_ = 0;
};

TEST(InfLlm, FindsBlocksByTheirRepresentativesAndAttendsThemAtOneDistance) {
    InfLlmCheck({1, 100, 5, 4, true}, 25).check();
    InfLlmCheck({2, 64, 3, 2, false}, 26).check();
    InfLlmCheck({0, 80, 1, 1, true}, 27).check();
}

TEST(InfLlm, EvictsTheBlockOfTheLowestScore) {
    int evicted = 0;
    for (const InfReference& want : {InfReference{1, 100, 3, 4, true, 0, 0.1}, InfReference{1, 60, 2, 2, false, 0, 0.7},
                                     InfReference{0, 40, 2, 4, true, 0, 0.97},
                                     InfReference{1, 60, 3, 3, true, 0, 0.999}, // as if used before the first step
                                     InfReference{1, 60, 2, 4, false, 0, 0.999}}) {
        InfLlmCheck check(want, 37);
        check.check();
        evicted += check.evicted();
    }
    EXPECT_GT(evicted, 40);
}

TEST(InfLlm, ReadsPromptsInPiecesByTheSameRule) {
    InfLlmCheck({1, 70, 3, 4, true, 50}, 34).check();
    InfLlmCheck({2, 40, 2, 2, false, 25}, 35).check();
    InfLlmCheck({0, 16, 1, 1, true, 100}, 36).check();
}

TEST(InfLlm, WithinTheLocalWindowIsDense) {
    const MethodRun run("infllm", {{"block_size", "16"}, {"local_tokens", "400"}}, {300, 40, 28});
    for (std::size_t step = 0; step < run.steps().size(); ++step)
        for (int g = 0; g < MethodRun::kKvHeads; ++g)
            EXPECT_LT(run.outputError(step, g, upTo(run.position(step) + 1)), 2e-6);
}

TEST(InfLlm, ACachedBlockIsNoMissWhenItIsFoundAgain) {
    const MethodRun run("infllm",
                        {{"block_size", "16"},
                         {"init_tokens", "16"},
                         {"local_tokens", "64"},
                         {"topk_blocks", "3"},
                         {"cached_blocks", "100"}},
                        {330, 60, 29});
    std::set<std::int32_t> seen;
    for (const auto& step : run.steps())
        for (std::size_t i = 0; i < step.heads[0].units.size(); ++i) {
            const std::int32_t block = step.heads[0].units[i];
            if (seen.count(block)) {
                EXPECT_EQ(step.heads[0].hit[i], 1) << "there is room for every block";
            }
            seen.insert(block);
        }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
