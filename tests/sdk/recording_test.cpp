// What the C interface writes: minimal and maximal traces, and the rules that it applies to what it is given.
#include "tests/sdk/sdk_fixture.h"

#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Lists = std::vector<std::vector<std::int64_t>>;

class SdkRecording : public SdkTest {};

TEST_F(SdkRecording, SelectionsAloneAreAWholeTraceThatSaysWhatItDoesNotKnow) {
    const std::string file = path("minimal.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
    for (int i = 0; i < 40; ++i) {
        const kvtrace_step step = beginStep(run);
        for (int layer = 0; layer < 2; ++layer)
            select(step, selectionOf({0, 1 + i / 4, 6 + i / 16}, {100 + i}, layer, 1, KVTRACE_BLOCKS));
        ASSERT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK) << kvtrace_last_error();
    }
    finish(writer, run);
    expectGood(file);
    auto steps = read(file, "steps");
    EXPECT_EQ(steps["step"].ints.front(), 1); // step 0 is the prefill, which nobody recorded
    EXPECT_EQ(steps["step"].ints.back(), 40);
    for (const char* unknown : {"hits", "misses", "h2d_bytes", "transfer_ns", "exposed_ns", "duration_ns", "embed_ns"})
        EXPECT_EQ(std::count(steps[unknown].present.begin(), steps[unknown].present.end(), 1), 0) << unknown;
    const Finished info = cli({"info", file});
    EXPECT_THAT(info.out, ::testing::Not(HasSubstr("100.0 %")));
    EXPECT_EQ(read(file, "runs")["status"].texts.front(), "finished");
    EXPECT_EQ(read(file, "selections")["blocks"].lists.front(), (std::vector<std::int64_t>{0, 1, 6}));
}

TEST_F(SdkRecording, ATraceWithEverythingKeepsItAll) {
    const std::string file = path("maximal.kvtrace");
    const kvtrace_writer writer = open(file, KVTRACE_FULL);
    kvtrace_run_info info = runOf(127, 3, 2, 2);
    info.query_heads = 4, info.head_dim = 64, info.device_slots = 8, info.budget_blocks = 4, info.block_bytes = 4096;
    info.sink_blocks = 1, info.window_blocks = 1;
    std::vector<std::int32_t> ids(201, 5);
    ids[1] = 6, ids[2] = 7;
    std::vector<std::int64_t> offsets{0, 2, 4, 7};
    while (offsets.size() < 202) offsets.push_back(offsets.back());
    const std::vector<kvtrace_prompt> prompts{{ids.data(), 101, "ab\xC3\xA4xyz", offsets.data()},
                                              {ids.data(), 201, nullptr, nullptr}};
    info.prompts = prompts.data(), info.prompt_count = 2;
    const std::vector<kvtrace_pair> meta{{"engine", "my engine"}, {"engine_version", "3.1"}};
    info.meta = meta.data(), info.meta_count = 2;
    const kvtrace_run run = begin(writer, info);
    for (int i = 0; i < 30; ++i) {
        const std::int64_t start = i * 1'000'000LL;
        const kvtrace_step step = beginStep(run, i == 0 ? KVTRACE_PREFILL : KVTRACE_DECODE, start, i == 0 ? 1 : 2);
        for (int number = 0; number < 3; ++number) {
            auto layer = sized<kvtrace_layer>();
            layer.layer = number, layer.start_ns = start + 200'000 * number + 1000;
            layer.stage_ns[0] = 20'000, layer.stage_ns[5] = 30'000;
            if (i > 0 && number == 1)
                layer.h2d_blocks = 1, layer.h2d_bytes = 4096, layer.transfer_ns = 900, layer.exposed_ns = 800;
            ASSERT_EQ(kvtrace_step_layer(step, &layer), KVTRACE_OK) << kvtrace_last_error();
            if (i == 0 || number == 2) continue; // the last layer is dense
            const std::vector<std::int32_t> blocks{0, 2, 6 + i / 16, -1,          0,  3,  4, 6 + i / 16,
                                                   0, 1, 2,          12 + i / 16, -1, -1, 0, 5};
            const std::vector<std::uint8_t> hit{1, std::uint8_t(number == 0), 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1};
            const std::vector<float> score(16, 0.5f), mass{0.9f, 0.8f, 1.f, std::numeric_limits<float>::quiet_NaN()};
            const std::vector<std::int64_t> positions{100 + i, 200 + i};
            kvtrace_selection selection = selectionOf(blocks, positions, number, 2, KVTRACE_BLOCKS);
            selection.hit = hit.data(), selection.score = score.data(), selection.mass = mass.data();
            select(step, selection);
        }
        ASSERT_EQ(kvtrace_step_stages(step, 1000, 2000, 3000), KVTRACE_OK) << kvtrace_last_error();
        for (int sequence = 0; sequence < 2; ++sequence) {
            const std::int32_t token = 100 + i;
            const std::vector<std::int64_t> ends{0, 3};
            ASSERT_EQ(
                kvtrace_step_tokens(step, sequence, 101 + i + 100 * sequence, &token, 1, "\xE2\x82\xAC", ends.data()),
                KVTRACE_OK);
        }
        ASSERT_EQ(kvtrace_step_commit(step, start + 900'000), KVTRACE_OK) << kvtrace_last_error();
    }
    ASSERT_EQ(kvtrace_span(run, "link", "load", 10, 20, 3, 1, 2, 4096), KVTRACE_OK);
    ASSERT_EQ(kvtrace_counter(run, "bytes", 0, 1000, 7), KVTRACE_OK);
    finish(writer, run);
    expectGood(file);
    auto steps = read(file, "steps");
    EXPECT_EQ(steps["phase"].texts.front(), "prefill");
    EXPECT_EQ(steps["misses"].ints.at(1), 1);
    EXPECT_EQ(steps["duration_ns"].ints.at(4), 900'000);
    EXPECT_EQ(steps["embed_ns"].ints.at(4), 1000);
    EXPECT_EQ(read(file, "transfers")["bytes"].ints.size(), 29U);
    EXPECT_EQ(read(file, "tokens")["text"].texts.at(7), "\xE2\x82\xAC");
    const std::vector<std::string> texts = read(file, "prompts")["text"].texts;
    ASSERT_EQ(texts.size(), 302U);
    EXPECT_THAT(std::vector(texts.begin(), texts.begin() + 4), ElementsAre("ab", "\xC3\xA4", "xyz", "ab"));
    auto selections = read(file, "selections");
    EXPECT_EQ(selections["origins"].lists.front(),
              (std::vector<std::int64_t>{KVTRACE_SINK, KVTRACE_QUERY_AWARE, KVTRACE_WINDOW}));
    EXPECT_EQ(selections["hit"].lists.at(4), (std::vector<std::int64_t>{1, 0, 1}));
    EXPECT_NEAR(selections["mass"].reals.at(1), 0.8, 1e-6);
    EXPECT_EQ(selections["mass"].present.at(3), 0);
    EXPECT_EQ(read(file, "runs")["status_message"].texts.front(), "");
    EXPECT_THAT(cli({"info", file}).out, HasSubstr("my engine"));
}

/// The library against a plain model of its rules, over random tensors with strides, padding, duplicates and ids that
/// lie in the future.
TEST_F(SdkRecording, WhatItDerivesEqualsAPlainModelOfTheRules) {
    const std::string file = path("random.kvtrace");
    const kvtrace_writer writer = open(file);
    std::mt19937 random(7);
    const int rows = 3, heads = 2, k = 24, blockSize = 8;
    kvtrace_run_info info = runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_HITS, 2, heads, rows, blockSize);
    info.device_slots = 32;
    const kvtrace_run run = begin(writer, info);
    std::vector<std::set<std::int64_t>> before(std::size_t(2 * rows * heads));
    Lists blocks, hits;
    std::vector<std::int64_t> kept, keptPresent;
    std::int64_t future = 0, duplicates = 0;
    for (int i = 0; i < 60; ++i) {
        const kvtrace_step step = beginStep(run);
        for (int layer = 0; layer < 2; ++layer) {
            const bool tokens = layer == 1;
            std::vector<std::int64_t> ids(std::size_t(rows * heads * k)); // heads before rows, as MiniMax has them
            std::vector<std::uint8_t> hit(ids.size());
            std::vector<std::int64_t> positions;
            for (int row = 0; row < rows; ++row) positions.push_back(150 + i + 31 * row);
            for (std::size_t at = 0; at < ids.size(); ++at) {
                ids[at] = std::int64_t(random() % (tokens ? 260U : 32U)) - 1;
                hit[at] = random() % 3 != 0;
            }
            auto selection = sized<kvtrace_selection>();
            selection.layer = layer, selection.unit = tokens ? KVTRACE_TOKENS : KVTRACE_BLOCKS,
            selection.id_type = KVTRACE_INT64;
            selection.ids = ids.data(), selection.hit = hit.data(), selection.position = positions.data();
            selection.rows = rows, selection.heads = heads, selection.k = k;
            selection.row_stride = k, selection.head_stride = rows * k, selection.id_stride = 1;
            select(step, selection);
            for (int row = 0; row < rows; ++row)
                for (int head = 0; head < heads; ++head) {
                    std::set<std::int64_t> seen;
                    std::map<std::int64_t, std::int64_t> expected; // block: hit
                    for (int at = 0; at < k; ++at) {
                        const auto place = std::size_t(row * k + head * rows * k + at);
                        const std::int64_t id = ids[place],
                                           last = positions[std::size_t(row)] / (tokens ? 1 : blockSize);
                        if (id == -1) continue;
                        if (id > last) {
                            ++future;
                            continue;
                        }
                        if (!seen.insert(id).second) {
                            ++duplicates;
                            continue;
                        }
                        const auto [found, isNew] = expected.emplace(tokens ? id / blockSize : id, hit[place]);
                        if (!isNew) found->second = found->second != 0 && hit[place] != 0;
                    }
                    std::set<std::int64_t> now;
                    blocks.emplace_back();
                    hits.emplace_back();
                    for (const auto& [block, wasHit] : expected) {
                        blocks.back().push_back(block);
                        hits.back().push_back(wasHit);
                        now.insert(block);
                    }
                    std::set<std::int64_t>& old = before[std::size_t((layer * rows + row) * heads + head)];
                    keptPresent.push_back(i > 0);
                    kept.push_back(i == 0 ? 0 : std::count_if(now.begin(), now.end(), [&](std::int64_t id) {
                        return old.contains(id);
                    }));
                    old = now;
                }
        }
        ASSERT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK) << kvtrace_last_error();
    }
    auto health = sized<kvtrace_health>();
    ASSERT_EQ(kvtrace_get_health(writer, &health), KVTRACE_OK);
    EXPECT_EQ(health.future_ids, future);
    EXPECT_EQ(health.duplicate_ids, duplicates);
    finish(writer, run);
    auto selections = read(file, "selections");
    EXPECT_EQ(selections["blocks"].lists, blocks);
    EXPECT_EQ(selections["hit"].lists, hits);
    EXPECT_EQ(selections["kept"].ints, kept);
    EXPECT_EQ(std::vector<std::int64_t>(selections["kept"].present.begin(), selections["kept"].present.end()),
              keptPresent);
    expectGood(file);
}

TEST_F(SdkRecording, AfterADiscardedStepNothingIsKnownToBeKept) {
    const std::string file = path("gap.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 1));
    for (int i = 0; i < 4; ++i) {
        const kvtrace_step step = beginStep(run);
        select(step, selectionOf({0, 1, 2}, {90}, 0, 1, KVTRACE_BLOCKS));
        EXPECT_EQ(i == 2 ? kvtrace_step_discard(step) : kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK);
    }
    finish(writer, run);
    auto selections = read(file, "selections");
    EXPECT_THAT(selections["step"].ints, ElementsAre(1, 2, 3));
    EXPECT_THAT(selections["kept"].present, ElementsAre(0, 1, 0));
    expectGood(file);
}

TEST_F(SdkRecording, CountsOfHitsNeedNoSelections) {
    const std::string file = path("counts.kvtrace");
    const kvtrace_writer writer = open(file, KVTRACE_COUNTERS);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_HITS | KVTRACE_KNOWS_BYTES, 1));
    const kvtrace_step step = beginStep(run);
    auto layer = sized<kvtrace_layer>();
    layer.hits = 7, layer.misses = 2, layer.h2d_blocks = 2, layer.h2d_bytes = 100;
    ASSERT_EQ(kvtrace_step_layer(step, &layer), KVTRACE_OK) << kvtrace_last_error();
    ASSERT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK);
    finish(writer, run);
    EXPECT_EQ(read(file, "steps")["misses"].ints.front(), 2);
    expectGood(file);
}

TEST_F(SdkRecording, AFileTakesSeveralRunsAndIsReadWhileItIsWritten) {
    const std::string file = path("runs.kvtrace");
    for (int i = 0; i < 2; ++i) {
        const kvtrace_writer writer = open(file);
        const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_STEP_TIMES, 1));
        const kvtrace_step step = beginStep(run);
        select(step, selectionOf({0, 1}, {20}, 0, 1, KVTRACE_BLOCKS));
        ASSERT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK);
        ASSERT_EQ(kvtrace_flush(writer, 30000), KVTRACE_OK) << kvtrace_last_error();
        EXPECT_EQ(read(file, "steps")["step"].ints.size(), std::size_t(i + 1));
        EXPECT_EQ(read(file, "runs")["status"].texts.back(), "running");
        if (i == 0) {
            finish(writer, run);
        } else {
            ASSERT_EQ(kvtrace_close(writer, 30000), KVTRACE_OK); // without an end
        }
    }
    EXPECT_THAT(read(file, "runs")["status"].texts, ElementsAre("finished", "stopped"));
    expectGood(file);
}

TEST_F(SdkRecording, WhatWasDeclaredAndNeverWrittenIsSaid) {
    const std::string file = path("declared.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_BYTES, 1));
    finish(writer, run);
    EXPECT_EQ(read(file, "runs")["status_message"].texts.front(),
              "said to be known, but never written: selections, bytes");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
