// Limits of a recording, selections as bitmasks and layers that share a selection, through the C interface.
#include "tests/sdk/sdk_fixture.h"

#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Lists = std::vector<std::vector<std::int64_t>>;

class SdkOptions : public SdkTest {
protected:
    static kvtrace_writer openWith(const std::string& file, std::uint64_t maxFileBytes, std::int32_t sampleEvery) {
        auto options = sized<kvtrace_options>();
        options.level = KVTRACE_SELECTIONS;
        options.max_file_bytes = maxFileBytes;
        options.sample_every = sampleEvery;
        kvtrace_writer writer = 0;
        EXPECT_EQ(kvtrace_open(file.c_str(), &options, &writer), KVTRACE_OK) << kvtrace_last_error();
        return writer;
    }
    static void expect(std::int32_t status, std::int32_t wanted, const char* sentence) {
        EXPECT_EQ(status, wanted);
        EXPECT_THAT(kvtrace_last_error(), HasSubstr(sentence));
    }
    static void commit(kvtrace_step step) {
        EXPECT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK) << kvtrace_last_error();
    }
};

TEST_F(SdkOptions, AFileThatReachesItsSizeEndsTheRunWithItsReason) {
    const std::string file = path("small.kvtrace");
    constexpr std::uint64_t kMost = 2 << 20;
    const kvtrace_writer writer = openWith(file, kMost, 0);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 2, 1, 1));
    std::vector<std::int32_t> ids(500);
    for (int i = 0; i < 500; ++i) ids[std::size_t(i)] = 7 * i;
    std::int32_t status = KVTRACE_OK;
    int committed = 0;
    for (; committed < 50'000 && status == KVTRACE_OK; ++committed) {
        const kvtrace_step step = beginStep(run);
        for (int layer = 0; layer < 2; ++layer) select(step, selectionOf(ids, {60'000}, layer, 1, KVTRACE_BLOCKS));
        status = kvtrace_step_commit(step, KVTRACE_NOW);
        if (committed % 64 == 0) kvtrace_flush(writer, 30'000);
    }
    expect(status, KVTRACE_STATE, "max_file_bytes");
    auto health = sized<kvtrace_health>();
    ASSERT_EQ(kvtrace_get_health(writer, &health), KVTRACE_OK) << kvtrace_last_error();
    EXPECT_EQ(health.failed, 0) << "the file is in order";
    EXPECT_GE(health.file_bytes, std::int64_t(kMost));
    EXPECT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK) << kvtrace_last_error();
    EXPECT_EQ(kvtrace_close(writer, 30'000), KVTRACE_OK) << kvtrace_last_error();
    expectGood(file);
    auto runs = read(file, "runs");
    EXPECT_EQ(runs["status"].texts.front(), "stopped");
    EXPECT_THAT(runs["status_message"].texts.front(), HasSubstr("max_file_bytes"));
    EXPECT_GT(runs["steps"].ints.front(), 100);
    EXPECT_LE(runs["steps"].ints.front(), committed);
    EXPECT_LT(std::filesystem::file_size(file), 2 * kMost);
    EXPECT_THAT(cli({"info", file}).out, HasSubstr("max_file_bytes"));
}

TEST_F(SdkOptions, PairsOfStepsKeepTheirSelections) {
    const std::string file = path("sampled.kvtrace");
    const kvtrace_writer writer = openWith(file, 0, 5);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_STEP_TIMES, 2, 1, 1));
    for (int i = 0; i < 23; ++i) {
        const kvtrace_step step = beginStep(run);
        for (int layer = 0; layer < 2; ++layer)
            select(step, selectionOf({0, 6, 1 + i % 4}, {100}, layer, 1, KVTRACE_BLOCKS));
        const std::int32_t id = 7;
        ASSERT_EQ(kvtrace_step_tokens(step, 0, 101 + i, &id, 1, nullptr, nullptr), KVTRACE_OK);
        commit(step);
    }
    finish(writer, run);
    expectGood(file);
    EXPECT_EQ(read(file, "steps")["step"].ints.size(), 23u) << "every step is there";
    EXPECT_EQ(read(file, "tokens")["step"].ints.size(), 23u);
    auto selections = read(file, "selections");
    std::vector<std::string> steps;
    for (std::size_t i = 0; i < selections["step"].ints.size(); i += 2)
        steps.push_back(fmt::format("{}{}", selections["step"].ints[i], selections["kept"].present[i] != 0 ? "k" : ""));
    EXPECT_THAT(steps, ElementsAre("1", "2k", "6k", "7k", "11k", "12k", "16k", "17k", "21k", "22k"));
    EXPECT_THAT(read(file, "layers")["selected"].ints, ::testing::Each(3)) << "every step has its counts";
    auto meta = read(file, "meta");
    const auto key = std::find(meta["key"].texts.begin(), meta["key"].texts.end(), "sample_every");
    ASSERT_NE(key, meta["key"].texts.end());
    EXPECT_EQ(meta["value"].texts[std::size_t(key - meta["key"].texts.begin())], "5");
}

TEST_F(SdkOptions, ABitmaskIsTheBlocksOfItsBits) {
    const std::string ofBits = path("bits.kvtrace"), ofIds = path("ids.kvtrace");
    std::mt19937 random(3);
    for (const int wide : {0, 1}) {
        for (const std::string& file : {ofBits, ofIds}) std::filesystem::remove(file);
        const int bits = wide != 0 ? 64 : 32, words = 5, rows = 2, heads = 2;
        const kvtrace_writer writers[] = {open(ofBits), open(ofIds)};
        kvtrace_run_info info = runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_HITS, 1, heads, rows);
        info.device_slots = 512, info.sink_blocks = info.window_blocks = 1;
        const kvtrace_run runs[] = {begin(writers[0], info), begin(writers[1], info)};
        for (int i = 0; i < 20; ++i) {
            // [words][heads][rows]: the strides are not those of the shape
            std::vector<std::uint64_t> chosen(std::size_t(words * rows * heads)), resident = chosen;
            std::vector<std::uint32_t> chosen32, resident32;
            const std::vector<std::int64_t> positions{16 * bits * words - 1, 16 * 70 + i};
            std::vector<std::int32_t> ids;
            std::vector<std::uint8_t> hit;
            const int k = bits * words;
            ids.assign(std::size_t(rows * heads * k), -1), hit.assign(ids.size(), 0);
            std::int64_t future = 0;
            for (int row = 0; row < rows; ++row)
                for (int head = 0; head < heads; ++head)
                    for (int block = 0; block < k; ++block) {
                        const bool taken = random() % 3 == 0, there = random() % 2 == 0;
                        const std::size_t word = std::size_t((block / bits * heads + head) * rows + row);
                        const std::uint64_t bit = std::uint64_t(1) << unsigned(block % bits);
                        if (there) resident[word] |= bit;
                        if (!taken) continue;
                        chosen[word] |= bit;
                        const std::size_t at = std::size_t((row * heads + head) * k + block);
                        ids[at] = block, hit[at] = there ? 1 : 0;
                        future += block > positions[std::size_t(row)] / 16;
                    }
            for (const std::uint64_t word : chosen) chosen32.push_back(std::uint32_t(word));
            for (const std::uint64_t word : resident) resident32.push_back(std::uint32_t(word));
            kvtrace_selection plain = selectionOf(ids, positions, 0, heads, KVTRACE_BLOCKS), mask = plain;
            plain.hit = hit.data();
            mask.unit = KVTRACE_BITMASK, mask.id_type = wide != 0 ? KVTRACE_INT64 : KVTRACE_INT32;
            mask.ids = wide != 0 ? static_cast<const void*>(chosen.data()) : chosen32.data();
            mask.hit_mask = wide != 0 ? static_cast<const void*>(resident.data()) : resident32.data();
            mask.k = words, mask.row_stride = 1, mask.head_stride = rows, mask.id_stride = heads * rows;
            const kvtrace_step steps[] = {beginStep(runs[0]), beginStep(runs[1])};
            select(steps[0], mask);
            select(steps[1], plain);
            commit(steps[0]), commit(steps[1]);
            if (i == 0) {
                auto health = sized<kvtrace_health>();
                ASSERT_EQ(kvtrace_get_health(writers[0], &health), KVTRACE_OK);
                EXPECT_EQ(health.future_ids, future);
            }
        }
        finish(writers[0], runs[0]), finish(writers[1], runs[1]);
        expectGood(ofBits);
        auto masks = read(ofBits, "selections"), lists = read(ofIds, "selections");
        EXPECT_GT(lists["blocks"].lists.front().size(), 20u);
        for (const char* column : {"blocks", "origins", "hit"})
            EXPECT_EQ(masks[column].lists, lists[column].lists) << column;
        for (const char* column : {"selected", "kept", "hits", "misses"})
            EXPECT_EQ(masks[column].ints, lists[column].ints) << column;
    }
}

TEST_F(SdkOptions, ALayerThatSharesASelectionHasItsRows) {
    const std::string file = path("shared.kvtrace");
    const kvtrace_writer writer = open(file);
    kvtrace_run_info info = runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_HITS, 5, 1, 2);
    info.device_slots = 8;
    const kvtrace_run run = begin(writer, info);
    for (int i = 0; i < 6; ++i) {
        const kvtrace_step step = beginStep(run);
        for (const int leader : {1, 3}) {
            const std::vector<std::int32_t> ids{0, 1 + i % 3 + leader, 6, 0, 2, 5};
            const std::vector<std::int64_t> positions{100, 90};
            const std::vector<std::uint8_t> hit{1, 0, 1, 1, 1, 1};
            const std::vector<float> mass{0.5f, 0.25f};
            kvtrace_selection selection = selectionOf(ids, positions, leader, 1, KVTRACE_BLOCKS);
            selection.hit = hit.data(), selection.mass = mass.data();
            select(step, selection);
        }
        ASSERT_EQ(kvtrace_step_share(step, 2, 1), KVTRACE_OK) << kvtrace_last_error();
        ASSERT_EQ(kvtrace_step_share(step, 4, 3), KVTRACE_OK) << kvtrace_last_error();
        commit(step);
    }
    finish(writer, run);
    expectGood(file);
    auto selections = read(file, "selections");
    ASSERT_EQ(selections["step"].ints.size(), 6u * 4 * 2);
    std::map<std::vector<std::int64_t>, std::size_t> at;
    for (std::size_t i = 0; i < selections["step"].ints.size(); ++i)
        at[{selections["step"].ints[i], selections["layer"].ints[i], selections["seq"].ints[i]}] = i;
    for (int step = 1; step <= 6; ++step)
        for (const int leader : {1, 3})
            for (int sequence = 0; sequence < 2; ++sequence) {
                const std::size_t own = at.at({step, leader, sequence}), shared = at.at({step, leader + 1, sequence});
                EXPECT_EQ(selections["blocks"].lists[own], selections["blocks"].lists[shared]);
                EXPECT_EQ(selections["hit"].lists[own], selections["hit"].lists[shared]);
                EXPECT_EQ(selections["kept"].ints[own], selections["kept"].ints[shared]);
                EXPECT_EQ(selections["mass"].present[own], 1);
                EXPECT_EQ(selections["mass"].present[shared], 0) << "a mass is of one layer's attention";
            }
    auto meta = read(file, "meta");
    const auto key = std::find(meta["key"].texts.begin(), meta["key"].texts.end(), "index_leader");
    ASSERT_NE(key, meta["key"].texts.end());
    EXPECT_EQ(meta["value"].texts[std::size_t(key - meta["key"].texts.begin())], "[0,1,1,3,3]");
}

TEST_F(SdkOptions, LeadersThatChangeAreNotSaidOfTheRun) {
    const std::string file = path("changing.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 3, 1, 1));
    for (int i = 0; i < 4; ++i) {
        const kvtrace_step step = beginStep(run);
        select(step, selectionOf({0, 6}, {100}, 0, 1, KVTRACE_BLOCKS));
        if (i % 2 == 1) select(step, selectionOf({0, 5}, {100}, 1, 1, KVTRACE_BLOCKS));
        ASSERT_EQ(kvtrace_step_share(step, 2, i % 2), KVTRACE_OK) << kvtrace_last_error();
        commit(step);
    }
    finish(writer, run);
    EXPECT_EQ(cli({"check", file}).status, 0);
    EXPECT_THAT(read(file, "meta")["key"].texts, Not(::testing::Contains("index_leader")));
}

TEST_F(SdkOptions, WhatCannotBeIsRefused) {
    auto options = sized<kvtrace_options>();
    kvtrace_writer none = 0;
    options.sample_every = -1;
    expect(kvtrace_open(path("a.kvtrace").c_str(), &options, &none), KVTRACE_INVALID, "sample_every");
    options.sample_every = 0, options.max_file_bytes = std::uint64_t(1) << 60;
    expect(kvtrace_open(path("a.kvtrace").c_str(), &options, &none), KVTRACE_INVALID, "max_file_bytes");
    const kvtrace_writer writer = open(path("refused.kvtrace"));
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 3, 1, 1));
    const kvtrace_step step = beginStep(run);
    expect(kvtrace_step_share(step, 1, 0), KVTRACE_STATE, "has no selection of its own");
    const std::vector<std::int32_t> ids{5};
    const std::vector<std::int64_t> positions{100};
    kvtrace_selection mask = selectionOf(ids, positions, 0, 1, KVTRACE_BITMASK);
    mask.hit_mask = ids.data();
    expect(kvtrace_step_select(step, &mask), KVTRACE_INVALID, "KVTRACE_KNOWS_HITS");
    mask.hit_mask = nullptr;
    const std::vector<float> score{1};
    mask.score = score.data();
    expect(kvtrace_step_select(step, &mask), KVTRACE_INVALID, "bitmask");
    mask.score = nullptr, mask.unit = 3;
    expect(kvtrace_step_select(step, &mask), KVTRACE_INVALID, "unit 3");
    kvtrace_selection blocks = selectionOf(ids, positions, 0, 1, KVTRACE_BLOCKS);
    blocks.hit_mask = ids.data();
    expect(kvtrace_step_select(step, &blocks), KVTRACE_INVALID, "no bitmask");
    mask.unit = KVTRACE_BITMASK;
    select(step, mask);
    expect(kvtrace_step_share(step, 0, 0), KVTRACE_INVALID, "comes before");
    expect(kvtrace_step_share(step, 3, 0), KVTRACE_INVALID, "layer 3");
    ASSERT_EQ(kvtrace_step_share(step, 1, 0), KVTRACE_OK) << kvtrace_last_error();
    expect(kvtrace_step_share(step, 1, 0), KVTRACE_STATE, "of its own");
    expect(kvtrace_step_share(step, 2, 1), KVTRACE_STATE, "layer 1 has no selection of its own");
    const std::int32_t other = 0;
    mask.layer = 0, mask.sequence = &other;
    expect(kvtrace_step_select(step, &mask), KVTRACE_STATE, "is there already");
    commit(step);
    finish(writer, run);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
