// Requests that have rows of the batch in turn, through the C interface.
#include "tests/sdk/sdk_fixture.h"

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SdkRequests : public SdkTest {
protected:
    static std::int32_t request(kvtrace_run run, const char* id, std::int32_t promptTokens, std::int64_t arrival,
                                std::int32_t maxTokens = 0) {
        auto given = sized<kvtrace_request>();
        given.external_id = id;
        given.prompt_tokens = promptTokens;
        given.max_tokens = maxTokens;
        given.arrival_ns = arrival;
        given.kind = "chat";
        std::int32_t row = -1;
        EXPECT_EQ(kvtrace_request_begin(run, &given, &row), KVTRACE_OK) << kvtrace_last_error();
        return row;
    }
    static void end(kvtrace_run run, std::int32_t row, std::int32_t outcome, std::int64_t ns,
                    const char* reason = nullptr) {
        EXPECT_EQ(kvtrace_request_end(run, row, outcome, reason, ns), KVTRACE_OK) << kvtrace_last_error();
    }
    /// A step from `start` on that takes 1 ms. rows: row and position of each that decodes.
    static void decode(kvtrace_run run, std::int64_t start,
                       const std::vector<std::pair<std::int32_t, std::int64_t>>& rows) {
        const kvtrace_step step = beginStep(run, KVTRACE_DECODE, start, int(rows.size()));
        for (const auto& [row, position] : rows)
            for (int layer = 0; layer < 2; ++layer) {
                const std::vector<std::int32_t> ids{0, std::int32_t(position / 16)};
                const std::vector<std::int64_t> positions{position};
                const std::vector<std::uint8_t> hit{1, std::uint8_t(layer)};
                kvtrace_selection selection = selectionOf(ids, positions, layer, 1, KVTRACE_BLOCKS);
                selection.sequence = &row, selection.hit = hit.data();
                select(step, selection);
            }
        EXPECT_EQ(kvtrace_step_commit(step, start + 1'000'000), KVTRACE_OK) << kvtrace_last_error();
    }
    static kvtrace_run_info served(int rows) {
        kvtrace_run_info info =
            runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_HITS | KVTRACE_KNOWS_STEP_TIMES, 2, 1, rows);
        info.device_slots = 8;
        return info;
    }
    static void expect(std::int32_t status, std::int32_t wanted, const char* sentence) {
        EXPECT_EQ(status, wanted);
        EXPECT_THAT(kvtrace_last_error(), HasSubstr(sentence));
    }
};

constexpr std::int64_t kMs = 1'000'000;

TEST_F(SdkRequests, RowsServeOneRequestAfterAnotherAndTheTraceSaysWhose) {
    const std::string file = path("requests.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, served(2));
    EXPECT_EQ(request(run, "first", 100, 0, 3), 0);
    decode(run, 1 * kMs, {{0, 100}});
    EXPECT_EQ(request(run, "second", 40, 1 * kMs), 1);
    decode(run, 3 * kMs, {{0, 101}, {1, 40}});
    decode(run, 5 * kMs, {{0, 102}, {1, 41}});
    end(run, 0, KVTRACE_REQUEST_LENGTH, 6 * kMs);
    EXPECT_EQ(request(run, "third", 50, 2 * kMs), 0) << "the free row";
    decode(run, 7 * kMs, {{0, 50}, {1, 42}});
    decode(run, 9 * kMs, {{0, 51}, {1, 43}});
    end(run, 1, KVTRACE_REQUEST_CANCELLED, 10 * kMs, "client");
    EXPECT_EQ(request(run, nullptr, 0, 9 * kMs), 1);
    end(run, 1, KVTRACE_REQUEST_REFUSED, 11 * kMs, "no room");
    end(run, 0, KVTRACE_REQUEST_STOP, 12 * kMs);
    EXPECT_EQ(request(run, "fourth", 60, 12 * kMs), 0);
    decode(run, 13 * kMs, {{0, 60}});
    finish(writer, run); // the last one is open
    expectGood(file);

    auto requests = read(file, "requests");
    EXPECT_THAT(requests["external_id"].texts, ElementsAre("first", "second", "third", "", "fourth"));
    EXPECT_THAT(requests["seq"].ints, ElementsAre(0, 1, 0, 1, 0));
    EXPECT_THAT(requests["kind"].texts, ElementsAre("chat", "chat", "chat", "chat", "chat"));
    EXPECT_THAT(requests["status"].texts, ElementsAre("length", "cancelled", "stop", "refused", "decode"));
    EXPECT_THAT(requests["reason"].texts, ElementsAre("", "client", "", "no room", ""));
    EXPECT_THAT(requests["output_tokens"].ints, ElementsAre(3, 4, 2, 0, 1));
    EXPECT_THAT(requests["first_step"].ints, ElementsAre(1, 2, 4, 0, 6));
    EXPECT_THAT(requests["first_step"].present, ElementsAre(1, 1, 1, 0, 1));
    EXPECT_THAT(requests["last_step"].ints, ElementsAre(3, 5, 5, 0, 6));
    EXPECT_THAT(requests["arrival_ns"].ints, ElementsAre(0, 1 * kMs, 2 * kMs, 9 * kMs, 12 * kMs));
    EXPECT_THAT(requests["first_sched_ns"].ints, ElementsAre(1 * kMs, 3 * kMs, 7 * kMs, 0, 13 * kMs));
    EXPECT_THAT(requests["first_token_ns"].ints, ElementsAre(2 * kMs, 4 * kMs, 8 * kMs, 0, 14 * kMs));
    EXPECT_THAT(requests["end_ns"].present, ElementsAre(1, 1, 1, 1, 0));
    EXPECT_THAT(requests["max_tokens"].present, ElementsAre(1, 0, 0, 0, 0)) << "0 is not known";
    EXPECT_THAT(requests["hits"].ints, ElementsAre(9, 12, 6, 0, 3)) << "3 of 4 blocks in each step";
    EXPECT_THAT(requests["misses"].ints, ElementsAre(3, 4, 2, 0, 1));

    // What a row's next request keeps is not known in its first step: steps 1, 2 of row 1, 4 of row 0, 6.
    auto selections = read(file, "selections");
    std::vector<std::string> unknown;
    for (std::size_t i = 0; i < selections["step"].ints.size(); ++i)
        if (selections["layer"].ints[i] == 0 && selections["kept"].present[i] == 0)
            unknown.push_back(fmt::format("{}.{}", selections["step"].ints[i], selections["seq"].ints[i]));
    EXPECT_THAT(unknown, ElementsAre("1.0", "2.1", "4.0", "6.0"));

    const Finished exported = cli({"export", file, "--what", "requests", "--format", "csv"});
    EXPECT_EQ(exported.status, 0) << exported.err;
    EXPECT_THAT(exported.out, HasSubstr("external_id"));
    EXPECT_THAT(exported.out, HasSubstr("second"));
    const Finished spans = cli({"export", file, "--what", "request-spans", "--format", "csv"});
    EXPECT_EQ(spans.status, 0) << spans.err;
    EXPECT_THAT(spans.out, HasSubstr("queued"));
    const Finished info = cli({"info", file, "--json"});
    EXPECT_THAT(info.out, HasSubstr("\"requests\": 5"));
    const Finished replay = cli({"replay", file, "--cache-blocks", "4"});
    EXPECT_EQ(replay.status, 0) << replay.err;
}

TEST_F(SdkRequests, PromptsInPiecesAndTokensTellWhenTheFirstTokenWasThere) {
    const std::string file = path("pieces.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, served(1));
    for (int i = 0; i < 2; ++i) {
        const std::int64_t at = 10 * kMs * i;
        ASSERT_EQ(request(run, "r", 20, at, 4), 0);
        kvtrace_step step = beginStep(run, KVTRACE_PROMPT, at + kMs, 20);
        auto piece = sized<kvtrace_prompt_piece>();
        piece.begins = 1, piece.tokens = 20;
        ASSERT_EQ(kvtrace_step_prompt(step, &piece), KVTRACE_OK) << kvtrace_last_error();
        const std::int32_t id = 7;
        ASSERT_EQ(kvtrace_step_tokens(step, 0, 20, &id, 1, nullptr, nullptr), KVTRACE_OK) << kvtrace_last_error();
        ASSERT_EQ(kvtrace_step_commit(step, at + 2 * kMs), KVTRACE_OK) << kvtrace_last_error();
        decode(run, at + 3 * kMs, {{0, 20}});
        end(run, 0, KVTRACE_REQUEST_STOP, at + 5 * kMs);
    }
    finish(writer, run);
    expectGood(file);
    auto requests = read(file, "requests");
    EXPECT_THAT(requests["first_sched_ns"].ints, ElementsAre(1 * kMs, 11 * kMs));
    EXPECT_THAT(requests["first_token_ns"].ints, ElementsAre(2 * kMs, 12 * kMs));
    EXPECT_THAT(requests["output_tokens"].ints, ElementsAre(2, 2));
    EXPECT_THAT(requests["first_step"].ints, ElementsAre(0, 2));
    EXPECT_THAT(requests["last_step"].ints, ElementsAre(1, 3));
}

TEST_F(SdkRequests, MoreRequestsThanRowsNeedNoMoreMemory) {
    const std::string file = path("many.kvtrace");
    const kvtrace_writer writer = open(file, KVTRACE_COUNTERS);
    const kvtrace_run run = begin(writer, served(3));
    for (int i = 0; i < 3000; ++i) {
        const std::int32_t row = request(run, "r", 10, KVTRACE_NOW);
        ASSERT_EQ(row, 0);
        if (i % 100 == 0) decode(run, std::int64_t(2) * kMs * i + kMs * 1'000'000, {{row, 10}});
        end(run, row, i % 100 == 0 ? KVTRACE_REQUEST_STOP : KVTRACE_REQUEST_REFUSED,
            std::int64_t(2) * kMs * i + kMs * 1'000'002);
    }
    finish(writer, run);
    const Finished check = cli({"check", file});
    EXPECT_EQ(check.status, 0) << check.out;
    EXPECT_EQ(read(file, "requests")["request"].ints.size(), 3000u);
}

TEST_F(SdkRequests, WhatCannotBeIsRefused) {
    const kvtrace_writer writer = open(path("refused.kvtrace"));
    const kvtrace_run run = begin(writer, served(1));
    auto given = sized<kvtrace_request>();
    std::int32_t row = 5;
    expect(kvtrace_request_begin(run, nullptr, &row), KVTRACE_INVALID, "kvtrace_request is null");
    EXPECT_EQ(row, -1);
    expect(kvtrace_request_begin(run, &given, nullptr), KVTRACE_INVALID, "sequence is null");
    given.arrival_ns = -1;
    expect(kvtrace_request_begin(run, &given, &row), KVTRACE_INVALID, "before the run began");
    given.arrival_ns = 2 * kMs;
    given.prompt_tokens = -1;
    expect(kvtrace_request_begin(run, &given, &row), KVTRACE_INVALID, "prompt_tokens");
    given.prompt_tokens = 0;
    expect(kvtrace_request_end(run, 0, KVTRACE_REQUEST_STOP, nullptr, KVTRACE_NOW), KVTRACE_STATE, "no request");
    ASSERT_EQ(kvtrace_request_begin(run, &given, &row), KVTRACE_OK) << kvtrace_last_error();
    expect(kvtrace_request_begin(run, &given, &row), KVTRACE_STATE, "all 1 rows");
    expect(kvtrace_request_end(run, 0, 9, nullptr, KVTRACE_NOW), KVTRACE_INVALID, "outcome 9");
    expect(kvtrace_request_end(run, 0, KVTRACE_REQUEST_STOP, nullptr, kMs), KVTRACE_INVALID, "when it arrived");
    decode(run, 3 * kMs, {{0, 10}});
    expect(kvtrace_request_end(run, 0, KVTRACE_REQUEST_REFUSED, nullptr, 5 * kMs), KVTRACE_STATE, "cannot be refused");
    ASSERT_EQ(kvtrace_request_end(run, 0, KVTRACE_REQUEST_FAILED, "out of memory", 5 * kMs), KVTRACE_OK)
        << kvtrace_last_error();
    finish(writer, run);
    expect(kvtrace_request_begin(run, &given, &row), KVTRACE_CLOSED, "closed");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
