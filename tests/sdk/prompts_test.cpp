// Prompts that are read in pieces, and prompts of requests that come later, through the C interface.
#include "tests/sdk/sdk_fixture.h"

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SdkPrompts : public SdkTest {
protected:
    static kvtrace_prompt_piece pieceOf(std::int32_t sequence, std::int64_t first, std::int32_t tokens, bool begins) {
        auto piece = sized<kvtrace_prompt_piece>();
        piece.sequence = sequence;
        piece.first = first;
        piece.tokens = tokens;
        piece.begins = begins ? 1 : 0;
        return piece;
    }
    static void prompt(kvtrace_step step, const kvtrace_prompt_piece& piece) {
        EXPECT_EQ(kvtrace_step_prompt(step, &piece), KVTRACE_OK) << kvtrace_last_error();
    }
    /// A selection of both layers for a sequence that is fed the position, and the token that it gives.
    static void decode(kvtrace_step step, std::int32_t sequence, std::int64_t position, std::vector<std::int32_t> ids) {
        const std::vector<std::int64_t> positions{position};
        for (int layer = 0; layer < 2; ++layer) {
            kvtrace_selection selection = selectionOf(ids, positions, layer, 1, KVTRACE_BLOCKS);
            selection.sequence = &sequence;
            select(step, selection);
        }
        tokenAt(step, sequence, position + 1);
    }
    static void tokenAt(kvtrace_step step, std::int32_t sequence, std::int64_t position) {
        const std::int32_t id = 7;
        EXPECT_EQ(kvtrace_step_tokens(step, sequence, position, &id, 1, nullptr, nullptr), KVTRACE_OK)
            << kvtrace_last_error();
    }
    static void commit(kvtrace_step step) {
        EXPECT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK) << kvtrace_last_error();
    }
    static void expect(std::int32_t status, std::int32_t wanted, const char* sentence) {
        EXPECT_EQ(status, wanted);
        EXPECT_THAT(kvtrace_last_error(), HasSubstr(sentence));
    }
};

TEST_F(SdkPrompts, APromptInThreeStepsAndAnotherBesideDecodingMakeAGoodTrace) {
    const std::string file = path("pieces.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_STEP_TIMES, 2, 1, 2));
    const std::vector<std::int32_t> ids(24, 5);
    kvtrace_step step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 24);
    kvtrace_prompt_piece piece = pieceOf(0, 0, 24, true);
    piece.ids = ids.data();
    prompt(step, piece);
    commit(step);
    step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 20);
    piece = pieceOf(0, 24, 20, false);
    piece.ids = ids.data();
    prompt(step, piece);
    commit(step);
    step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 6); // ids of these are not known
    prompt(step, pieceOf(0, 44, 6, false));
    tokenAt(step, 0, 50);
    commit(step);
    step = beginStep(run);
    decode(step, 0, 50, {0, 1, 3});
    commit(step);
    step = beginStep(run, KVTRACE_MIXED, KVTRACE_NOW, 1 + 17);
    decode(step, 0, 51, {0, 2, 3});
    piece = pieceOf(1, 0, 17, true);
    piece.ids = ids.data();
    prompt(step, piece);
    tokenAt(step, 1, 17);
    commit(step);
    step = beginStep(run, KVTRACE_DECODE, KVTRACE_NOW, 2);
    decode(step, 0, 52, {0, 2, 3});
    decode(step, 1, 17, {0, 1});
    commit(step);
    step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 8); // another request in the second row, behind a cached prefix
    piece = pieceOf(1, 32, 8, true);
    piece.ids = ids.data();
    prompt(step, piece);
    tokenAt(step, 1, 40);
    commit(step);
    step = beginStep(run, KVTRACE_DECODE, KVTRACE_NOW, 2);
    decode(step, 0, 53, {0, 2, 3});
    decode(step, 1, 40, {0, 1, 2});
    commit(step);
    finish(writer, run);
    expectGood(file);
    auto steps = read(file, "steps"), pieces = read(file, "pieces"), selections = read(file, "selections");
    EXPECT_THAT(steps["step"].ints, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    EXPECT_THAT(steps["phase"].texts,
                ElementsAre("prefill", "prefill", "prefill", "decode", "decode", "decode", "prefill", "decode"));
    EXPECT_THAT(pieces["step"].ints, ElementsAre(0, 1, 2, 4, 6));
    EXPECT_THAT(pieces["seq"].ints, ElementsAre(0, 0, 0, 1, 1));
    EXPECT_THAT(pieces["begins"].ints, ElementsAre(1, 0, 0, 1, 1));
    EXPECT_THAT(pieces["first"].ints, ElementsAre(0, 24, 44, 0, 32));
    EXPECT_THAT(pieces["tokens"].ints, ElementsAre(24, 20, 6, 17, 8));
    EXPECT_EQ(read(file, "prompts")["position"].ints.size(), 44u + 17u) << "of the first prompts, as far as known";
    // Of layer 0: what was kept since the step before that decodes; nothing is behind another prompt.
    std::vector<std::string> kept;
    for (std::size_t i = 0; i < selections["step"].ints.size(); ++i)
        if (selections["layer"].ints[i] == 0)
            kept.push_back(
                fmt::format("{}.{}:{}", selections["step"].ints[i], selections["seq"].ints[i],
                            selections["kept"].present[i] != 0 ? std::to_string(selections["kept"].ints[i]) : "-"));
    EXPECT_THAT(kept, ElementsAre("3.0:-", "4.0:2", "5.0:3", "5.1:-", "7.0:3", "7.1:-"));
    const Finished info = cli({"info", file, "--json"});
    EXPECT_THAT(info.out, HasSubstr("\"mixed_steps\": 1"));
    EXPECT_THAT(info.out, HasSubstr("\"prompt_steps\": 4"));
    EXPECT_THAT(info.out, HasSubstr("\"prompt_tokens\": 75"));
    EXPECT_THAT(info.out, HasSubstr("\"decode_steps\": 4"));
}

TEST_F(SdkPrompts, AServerThatReadsWholePromptsFirstTakesMoreRequestsLater) {
    const std::string file = path("server.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 2, 1, 1));
    kvtrace_step step = beginStep(run, KVTRACE_PREFILL, KVTRACE_NOW, 40);
    tokenAt(step, 0, 40);
    commit(step);
    for (int request = 0; request < 3; ++request) {
        const std::int64_t length = 40 + 16 * request;
        if (request > 0) {
            step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, std::int32_t(length));
            prompt(step, pieceOf(0, 0, std::int32_t(length), true));
            tokenAt(step, 0, length);
            commit(step);
        }
        for (int i = 0; i < 3; ++i) {
            step = beginStep(run);
            decode(step, 0, length + i, {0, std::int32_t((length + i) / 16)});
            commit(step);
        }
    }
    finish(writer, run);
    expectGood(file);
    EXPECT_THAT(read(file, "pieces")["step"].ints, ElementsAre(4, 8));
    const std::vector<std::uint8_t> kept = read(file, "selections")["kept"].present;
    EXPECT_EQ(std::count(kept.begin(), kept.end(), 0), 6) << "the first selection of each request, in both layers";
}

TEST_F(SdkPrompts, StepsBeginAtOneWhereTheFirstOneDecodes) {
    const std::string file = path("late.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 2, 1, 2));
    kvtrace_step step = beginStep(run, KVTRACE_MIXED, KVTRACE_NOW, 5);
    decode(step, 0, 20, {0, 1});
    prompt(step, pieceOf(1, 8, 4, false)); // its first piece was read before the recording
    commit(step);
    step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 4);
    prompt(step, pieceOf(1, 12, 4, false));
    commit(step);
    finish(writer, run);
    expectGood(file);
    EXPECT_THAT(read(file, "steps")["step"].ints, ElementsAre(1, 2));
}

TEST_F(SdkPrompts, WhatCannotBeIsRefused) {
    const std::string file = path("refused.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 2, 1, 2));
    kvtrace_step other = 0;
    expect(kvtrace_step_begin(run, 4, 1, KVTRACE_NOW, &other), KVTRACE_INVALID, "phase 4 is none");
    kvtrace_step step = beginStep(run);
    const auto refused = [&](const kvtrace_prompt_piece& piece, std::int32_t status, const char* sentence) {
        expect(kvtrace_step_prompt(step, &piece), status, sentence);
    };
    refused(pieceOf(0, 0, 4, true), KVTRACE_STATE, "begin it as KVTRACE_PROMPT or KVTRACE_MIXED");
    ASSERT_EQ(kvtrace_step_discard(step), KVTRACE_OK);
    step = beginStep(run, KVTRACE_MIXED, KVTRACE_NOW, 10);
    refused(pieceOf(2, 0, 4, true), KVTRACE_INVALID, "the run has 2 sequences");
    refused(pieceOf(0, 0, 0, true), KVTRACE_INVALID, "has 0 tokens");
    refused(pieceOf(0, -1, 4, true), KVTRACE_INVALID, "begins at position -1");
    kvtrace_prompt_piece piece = pieceOf(0, 0, 4, true);
    piece.begins = 2;
    refused(piece, KVTRACE_INVALID, "begins of a piece of the prompt of sequence 0 is 2");
    const std::int32_t negative[] = {1, 2, 3, -4};
    piece = pieceOf(0, 0, 4, true);
    piece.ids = negative;
    refused(piece, KVTRACE_INVALID, "a token's id is -4");
    prompt(step, pieceOf(0, 0, 4, true));
    refused(pieceOf(0, 4, 4, false), KVTRACE_STATE, "has a piece in this step already");
    const std::vector<std::int32_t> ids{0};
    const std::vector<std::int64_t> positions{3};
    const kvtrace_selection selection = selectionOf(ids, positions, 0, 1, KVTRACE_BLOCKS);
    expect(kvtrace_step_select(step, &selection), KVTRACE_STATE, "reads its prompt in this step");
    decode(step, 1, 20, {0, 1});
    refused(pieceOf(1, 0, 4, true), KVTRACE_STATE, "in which the sequence has selected");
    commit(step);
    step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 5);
    prompt(step, pieceOf(0, 4, 4, false));
    expect(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_INVALID,
           "has 5 tokens, and the pieces of prompts in it have 4");
    step = beginStep(run, KVTRACE_MIXED, KVTRACE_NOW, 4);
    prompt(step, pieceOf(0, 4, 4, false));
    expect(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_INVALID, "give those of the sequences that decode too");
    step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 4);
    expect(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_STATE, "call kvtrace_step_prompt");
    step = beginStep(run, KVTRACE_PROMPT, KVTRACE_NOW, 4);
    prompt(step, pieceOf(0, 2, 4, false));
    expect(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_INVALID, "the piece before it ends at 4");
    finish(writer, run);
    expectGood(file);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
