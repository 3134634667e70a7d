// What a trace says of the facts in its prompt, against counting selection by selection.
#include "core/trace/run_meta.h"
#include "profiler/compare/parting.h"
#include "profiler/insights/insight.h"
#include "profiler/read/needle_evidence.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<NeedlePlace> kNeedles{{0, 62, 20, "the pass key", "73398", true},
                                        {0, 100, 4, "silver \"lantern\"", "11111", false},
                                        {1, 5, 3, "amber urn", "22222", true}};

/// A synthetic run whose prompts hide the needles, and whose sequence 0 writes `answer`, a byte a token.
std::string recorded(const test::Folder& folder, const std::string& answer,
                     const std::string& needles = needlesJson(kNeedles)) {
    const std::string path = (folder.path() / "run.kvtrace").string();
    synthetic::RunShape shape;
    shape.sequences = 2;
    RecorderOptions options;
    options.overwrite = true;
    Recorder recorder(path, options);
    RunInfo info = synthetic::infoOf(shape);
    info.meta.emplace_back(run_meta::kNeedles, needles);
    recorder.beginRun(info);
    synthetic::RunGenerator generator(shape);
    for (int number = 0; number < generator.steps(); ++number) {
        auto step = recorder.acquire();
        step->clear();
        generator.fillNext(*step, RecordLevel::Full);
        for (TokenRecord& token : step->generated)
            if (token.sequence == 0)
                token.bytes = std::size_t(number) < answer.size() ? answer.substr(std::size_t(number), 1) : "";
        recorder.take(std::move(step));
    }
    recorder.endRun(RunStatus::Finished, {});
    recorder.flush();
    return path;
}

TEST(Needles, ComeBackFromTheirText) {
    EXPECT_EQ(parseNeedles(needlesJson(kNeedles)), kNeedles);
    EXPECT_TRUE(parseNeedles("").empty());
    EXPECT_TRUE(parseNeedles("{\"first\":1}").empty());
    EXPECT_TRUE(parseNeedles("[1, null, {\"sequence\":0}]").empty());
    EXPECT_TRUE(parseNeedles(R"([{"sequence":0,"first":-4,"tokens":3,"value":"1"}])").empty());
    EXPECT_TRUE(parseNeedles(R"([{"sequence":0,"first":9e30,"tokens":3,"value":"1"}])").empty());
}

TEST(Needles, AnswersAreJudgedByTheirBeginning) {
    const test::Folder folder;
    const struct {
        const char *answer, *text;
        NeedleAnswer::Verdict verdict;
    } cases[] = {{"  73398. And", "73398, correct", NeedleAnswer::Verdict::Correct},
                 {"733981", "73398, correct", NeedleAnswer::Verdict::Correct},
                 {"73399", "73399 instead of 73398", NeedleAnswer::Verdict::Other},
                 {"not here\nbut 73398", "not here instead of 73398", NeedleAnswer::Verdict::Other},
                 {"733", "733, written in part (73398 is expected)", NeedleAnswer::Verdict::Open},
                 {"", "not written yet (73398 is expected)", NeedleAnswer::Verdict::Open}};
    for (const auto& row : cases) {
        SCOPED_TRACE(row.answer);
        const TraceReader reader(recorded(folder, row.answer));
        const auto answers = needleAnswers(reader, *reader.run(1));
        ASSERT_EQ(answers.size(), 2U) << "of both sequences";
        EXPECT_EQ(answers[0].text(), row.text);
        EXPECT_EQ(answers[0].verdict, row.verdict);
        EXPECT_EQ(answers[0].needle, kNeedles[0]);
    }
}

TEST(Needles, OfSequencesThatAreNotThereArePassedOver) {
    const test::Folder folder;
    auto far = kNeedles;
    far[2].sequence = 7;
    const TraceReader reader(recorded(folder, "73398", needlesJson(far)));
    EXPECT_EQ(needlesOf(*reader.run(1)).size(), 2U);
    EXPECT_EQ(answersText(needleAnswers(reader, *reader.run(1))), "73398, correct");
}

TEST(Needles, SightsAreTheSelectionsThatHaveTheirBlocks) {
    const test::Folder folder;
    const TraceReader reader(recorded(folder, "73398"));
    const RunRow run = *reader.run(1);
    const std::vector<NeedlePlace> asked{kNeedles[0], kNeedles[1]};
    constexpr int kFirst = 3, kLast = 17;
    const auto sights = needleSights(reader, run, asked, kFirst, kLast);
    ASSERT_EQ(sights.size(), 2U);
    int seen = 0;
    for (std::size_t n = 0; n < asked.size(); ++n)
        for (int step = kFirst; step <= kLast; ++step) {
            NeedleSight expected;
            for (int layer = 0; layer < run.layers; ++layer)
                for (int head = 0; head < run.kvHeads; ++head) {
                    const auto row = reader.selection(1, step, layer, 0, head);
                    if (!row) continue;
                    ++expected.choosing;
                    int origin = -1;
                    bool missed = false;
                    // token by token
                    for (int token = asked[n].first; token < asked[n].first + asked[n].tokens; ++token)
                        if (const PackedBlock* block = findBlock(row->blocks, token / run.blockSize)) {
                            origin = std::max(origin, int(block->origin()));
                            missed = missed || !block->hit();
                        }
                    if (origin < 0) continue;
                    ++expected.heads;
                    ++expected.byOrigin[std::size_t(origin)];
                    expected.missed += missed ? 1 : 0;
                }
            const auto found = std::find_if(sights[n].begin(), sights[n].end(),
                                            [step](const NeedleSight& each) { return each.step == step; });
            const NeedleSight sight = found != sights[n].end() ? *found : NeedleSight();
            EXPECT_EQ(sight.choosing, expected.choosing) << step;
            EXPECT_EQ(sight.heads, expected.heads) << step;
            EXPECT_EQ(sight.byOrigin, expected.byOrigin) << step;
            EXPECT_EQ(sight.missed, expected.missed) << step;
            seen += expected.heads;
        }
    EXPECT_GT(seen, 0) << "a needle that is never selected tests nothing";
}

TEST(Needles, AnInsightSaysWhatWasAnswered) {
    const test::Folder folder;
    const auto found = [&](const std::string& answer) {
        const TraceReader reader(recorded(folder, answer));
        const InsightReport report = insightsOf(reader, 1, {.replay = false, .found = {}});
        const auto at = std::find_if(report.insights.begin(), report.insights.end(),
                                     [](const Insight& insight) { return insight.id == "answer"; });
        return at == report.insights.end() ? Insight() : *at;
    };
    // Sequence 1 writes synthetic words.
    const Insight wrong = found("99999");
    EXPECT_EQ(wrong.severity, Severity::Alarm);
    EXPECT_THAT(wrong.title, HasSubstr("0 of 2 correct"));
    EXPECT_THAT(wrong.detail, HasSubstr("99999 instead of 73398"));
    EXPECT_THAT(wrong.detail, HasSubstr("The fact lies in blocks 3 to 5"));
    EXPECT_EQ(wrong.evidence.firstStep, 1) << "the link leads to the steps that the sentence counts";
    EXPECT_THAT(wrong.detail, HasSubstr(fmt::format("in steps 1 to {}", wrong.evidence.lastStep)));
    EXPECT_THAT(found("73398").title, HasSubstr("1 of 2 correct"));
}

TEST(Parting, FindsTheFirstSelectionThatDiffersAndTheMissingBlock) {
    const test::Folder folder;
    const std::string a = (folder.path() / "a.kvtrace").string(), b = (folder.path() / "b.kvtrace").string();
    synthetic::RunShape shape;
    synthetic::recordFile(a, shape);
    constexpr int kAltered = 9, kLayer = 2, kHead = 1;
    int removed = -1;
    {
        Recorder recorder(b, {});
        recorder.beginRun(synthetic::infoOf(shape));
        for (const StepRecord& made : synthetic::stepsOf(shape)) {
            auto step = recorder.acquire();
            *step = made;
            if (made.step == kAltered) step->generated[0].id += 1;
            if (made.step == kAltered)
                for (SelectionRecord& selection : step->selections)
                    if (selection.layer == kLayer && selection.kvHead == kHead) {
                        removed = step->blocks[selection.first + 1].id();
                        // the block's id becomes the next free one below it: ids still ascend, and the recorded id is
                        // gone
                        PackedBlock& word = step->blocks[selection.first + 1];
                        word = PackedBlock(step->blocks[selection.first].id() + 1 < removed ? removed - 1 : removed,
                                           word.origin(), word.hit());
                    }
            recorder.take(std::move(step));
        }
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
    }
    const TraceReader left(a), right(b);
    const Parting parting = partingOf(left, 1, right, 1, 0, 1);
    ASSERT_TRUE(parting.tokens.first);
    EXPECT_EQ(parting.tokens.first->stepA, kAltered);
    EXPECT_EQ(parting.step, kAltered);
    EXPECT_EQ(parting.heads, shape.layers * shape.kvHeads);
    if (parting.first) { // an id below was free
        EXPECT_EQ(parting.first->step, kAltered);
        EXPECT_EQ(parting.first->layer, kLayer);
        EXPECT_EQ(parting.first->kvHead, kHead);
        EXPECT_THAT(parting.first->onlyA, ElementsAre(removed));
        EXPECT_EQ(parting.differing, 1);
        ASSERT_TRUE(parting.missing);
        EXPECT_EQ(parting.missing->headsA - parting.missing->headsB, 1);
    }
    for (const std::string& sentence : sentencesOf(parting, "the recorded run", "the fork"))
        EXPECT_TRUE(sentence.ends_with(".")) << sentence;
    // A run and itself.
    const Parting same = partingOf(left, 1, left, 1, 0, 1);
    EXPECT_FALSE(same.tokens.first);
    EXPECT_FALSE(same.first);
    EXPECT_EQ(sentencesOf(same, "a", "b").front(), "The texts are the same to the end.");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
