#include "ui/frame/as_written.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"
#include "ui/models/token_flow.h"
#include "ui/widgets/token_strip.h"

#include <QApplication>
#include <QScrollBar>
#include <QSignalSpy>
#include <QTest>
#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(TokenFlow, BreaksLinesWhenAChipDoesNotFit) {
    TokenFlow flow;
    flow.reset(100);
    for (int i = 0; i < 5; ++i) flow.append(40, 5);
    ASSERT_EQ(flow.lines(), 3);
    EXPECT_EQ(flow.firstOfLine(1), 2);
    EXPECT_EQ(flow.endOfLine(1), 4);
    EXPECT_EQ(flow.endOfLine(2), 5);
    EXPECT_DOUBLE_EQ(flow.left(1), 45);
    EXPECT_DOUBLE_EQ(flow.left(2), 0);
    EXPECT_EQ(flow.lineOf(0), 0);
    EXPECT_EQ(flow.lineOf(3), 1);
    EXPECT_EQ(flow.lineOf(4), 2);
}

TEST(TokenFlow, AChipWiderThanALineStandsAlone) {
    TokenFlow flow;
    flow.reset(50);
    for (const double width : {20.0, 200.0, 20.0}) flow.append(width, 5);
    EXPECT_EQ(flow.lines(), 3);
}

TEST(TokenFlow, FindsTheNearestChipAndMovesBetweenLines) {
    TokenFlow flow;
    flow.reset(100);
    for (int i = 0; i < 5; ++i) flow.append(40, 5);
    EXPECT_EQ(flow.at(0, 10), 0);
    EXPECT_EQ(flow.at(0, 44), 1);
    EXPECT_EQ(flow.at(0, 500), 1);
    EXPECT_EQ(flow.at(2, 99), 4);
    EXPECT_EQ(flow.at(3, 0), -1);
    EXPECT_EQ(flow.at(-1, 0), -1);
    EXPECT_EQ(flow.moved(1, 1), 3);
    EXPECT_EQ(flow.moved(3, 1), 4);
    EXPECT_EQ(flow.moved(4, 1), 4);
    EXPECT_EQ(flow.moved(3, -7), 1);
}

TEST(TokenText, ShowsWhatCannotBeSeen) {
    EXPECT_EQ(tokenText("\n"), QStringLiteral("↵"));
    EXPECT_EQ(tokenText(" "), QStringLiteral("␣"));
    EXPECT_EQ(tokenText(" fox"), QStringLiteral("fox"));
    EXPECT_EQ(tokenText(""), QStringLiteral("∅"));
    EXPECT_EQ(tokenText("\u202e fox\u2066"), QStringLiteral("\\u202e fox\\u2066"));
}

TEST(AsWritten, ShowsControlsThatWouldTurnTheSentenceRound) {
    EXPECT_EQ(withoutDirections(QStringLiteral("a\u202eb\u2069\u200f שלום")),
              QStringLiteral("a\\u202eb\\u2069\\u200f שלום"));
    EXPECT_EQ(asWritten(QStringLiteral("run \u202egnp.exe")), QStringLiteral("run \\u202egnp.exe"));
}

class TokenStripTest : public testing::Test {
protected:
    TokenStripTest() {
        strip.resize(700, 200);
        std::vector<TokenChip> prompt;
        for (int i = 0; i < 10; ++i) prompt.push_back({-1, i, i, " p" + std::to_string(i)});
        strip.setPrompt(std::move(prompt));
        strip.show();
    }
    void generate(int steps) {
        std::vector<TokenChip> chips;
        for (int step = 0; step < steps; ++step)
            chips.push_back({step, 10 + step, 100 + step % 50, " t" + std::to_string(step % 50)});
        strip.append(std::move(chips));
    }
    void click(int step, Qt::KeyboardModifiers keys = {}) {
        QTest::mouseClick(strip.viewport(), Qt::LeftButton, keys, strip.revealStep(step));
    }
    TokenStrip strip;
};

TEST_F(TokenStripTest, TokensOfAWordReadAsOneWord) {
    const QString word = QStringLiteral("marbleinkwell");
    std::vector<TokenChip> chips;
    for (const char* part : {" m", "ar", "ble", "in", "k", "w", "ell"})
        chips.push_back({-1, int(chips.size()), int(chips.size()), part});
    strip.setPrompt(std::move(chips));
    const QImage picture = strip.viewport()->grab().toImage();
    const QColor paper = Theme::current().base;
    int first = -1, last = -1;
    for (int x = int(52 * picture.devicePixelRatio()); x < picture.width(); ++x) // behind the gutter
        for (int y = 0; y < picture.height(); ++y)
            if (picture.pixelColor(x, y) != paper) {
                if (first < 0) first = x;
                last = x;
            }
    ASSERT_GE(first, 0);
    EXPECT_NEAR((last - first) / picture.devicePixelRatio(), strip.fontMetrics().boundingRect(word).width(), 4);
}

TEST_F(TokenStripTest, AnotherRunsTokensAreAsWideAsTheyAreInAFreshStrip) {
    const auto words = [] { // ids of the first run, texts of another vocabulary
        std::vector<TokenChip> prompt;
        for (int i = 0; i < 10; ++i) prompt.push_back({-1, i, i, " wider" + std::to_string(i)});
        return prompt;
    };
    TokenStrip fresh;
    fresh.resize(strip.size());
    fresh.setPrompt(words());
    strip.setPrompt(words());
    fresh.show();
    EXPECT_EQ(strip.viewport()->grab().toImage(), fresh.viewport()->grab().toImage());
}

TEST_F(TokenStripTest, AClickChoosesTheStepOfTheToken) {
    generate(40);
    QSignalSpy chosen(&strip, &TokenStrip::stepChosen);
    click(17);
    ASSERT_EQ(chosen.size(), 1);
    EXPECT_EQ(chosen[0][0].toInt(), 17);
}

TEST_F(TokenStripTest, FramesWhatHoldsTheSoughtTextAcrossTokens) {
    generate(12);
    const auto found = [this] {
        std::vector<int> chips;
        for (int chip = 0; chip < strip.chipCount(); ++chip)
            if (strip.isFound(chip)) chips.push_back(chip);
        return chips;
    };
    EXPECT_EQ(found(), std::vector<int>());
    strip.setFound("P9 T0"); // the end of the prompt and the first generated token
    EXPECT_EQ(found(), (std::vector<int>{9, 10}));
    const QColor frame = Theme::current().found;
    const auto isFramed = [&] {
        const QImage image = strip.viewport()->grab().toImage();
        for (int y = 0; y < image.height(); ++y)
            for (int x = 0; x < image.width(); ++x)
                if (image.pixelColor(x, y) == frame) return true;
        return false;
    };
    EXPECT_TRUE(isFramed());
    strip.append({{12, 22, 7, " p9"}, {13, 23, 8, " t0"}});
    EXPECT_EQ(found(), (std::vector<int>{9, 10, 22, 23})) << "of what comes later too";
    strip.setFound({});
    EXPECT_EQ(found(), std::vector<int>());
    EXPECT_FALSE(isFramed());
}

TEST_F(TokenStripTest, ShiftClickChoosesARangeAndEscapeClearsIt) {
    generate(40);
    QSignalSpy ranges(&strip, &TokenStrip::rangeChosen);
    QSignalSpy cleared(&strip, &TokenStrip::rangeCleared);
    click(20);
    click(12, Qt::ShiftModifier);
    ASSERT_EQ(ranges.size(), 1);
    EXPECT_EQ(ranges[0][0].toInt(), 12);
    EXPECT_EQ(ranges[0][1].toInt(), 20);
    QTest::keyClick(&strip, Qt::Key_Escape);
    EXPECT_EQ(cleared.size(), 1);
}

TEST_F(TokenStripTest, DraggingChoosesARange) {
    generate(40);
    QSignalSpy ranges(&strip, &TokenStrip::rangeChosen);
    const QPoint from = strip.revealStep(3), to = strip.revealStep(6);
    QTest::mousePress(strip.viewport(), Qt::LeftButton, {}, from);
    strip.setCursor(3, -1, -1);
    QMouseEvent move(QEvent::MouseMove, to, strip.viewport()->mapToGlobal(to), Qt::NoButton, Qt::LeftButton, {});
    QApplication::sendEvent(strip.viewport(), &move);
    QTest::mouseRelease(strip.viewport(), Qt::LeftButton, {}, to);
    ASSERT_FALSE(ranges.isEmpty());
    EXPECT_EQ(ranges.last()[0].toInt(), 3);
    EXPECT_EQ(ranges.last()[1].toInt(), 6);
}

TEST_F(TokenStripTest, ArrowKeysHomeAndEndMoveTheStep) {
    generate(40);
    QSignalSpy chosen(&strip, &TokenStrip::stepChosen);
    strip.setCursor(5, -1, -1);
    QTest::keyClick(&strip, Qt::Key_Right);
    QTest::keyClick(&strip, Qt::Key_Left);
    QTest::keyClick(&strip, Qt::Key_Home);
    QTest::keyClick(&strip, Qt::Key_End);
    ASSERT_EQ(chosen.size(), 4);
    EXPECT_EQ(chosen[0][0].toInt(), 6);
    EXPECT_EQ(chosen[1][0].toInt(), 4); // the owner moves the cursor; here it stays at 5
    EXPECT_EQ(chosen[2][0].toInt(), 0);
    EXPECT_EQ(chosen[3][0].toInt(), 39);
    strip.setCursor(0, -1, -1);
    QTest::keyClick(&strip, Qt::Key_Left); // never into the prompt
    EXPECT_EQ(chosen.last()[0].toInt(), 0);
}

TEST_F(TokenStripTest, APromptTokenAsksForItsBlockNotForAStep) {
    generate(5);
    QSignalSpy chosen(&strip, &TokenStrip::stepChosen);
    QSignalSpy prompt(&strip, &TokenStrip::promptTokenChosen);
    strip.verticalScrollBar()->setValue(0);
    QTest::mouseClick(strip.viewport(), Qt::LeftButton, {}, QPoint(58, 14));
    EXPECT_EQ(chosen.size(), 0);
    ASSERT_EQ(prompt.size(), 1);
    EXPECT_EQ(prompt[0][0].toInt(), 0);
}

TEST_F(TokenStripTest, TheCursorsChipIsHighlightedAndMissesDrawBars) {
    generate(30);
    const auto countOf = [&](const QColor& colour) {
        const QImage picture = strip.viewport()->grab().toImage();
        int count = 0;
        for (int y = 0; y < picture.height(); ++y)
            for (int x = 0; x < picture.width(); ++x) count += picture.pixelColor(x, y) == colour;
        return count;
    };
    strip.setCursor(7, -1, -1);
    EXPECT_GT(countOf(Theme::current().accent), 40);
    EXPECT_EQ(countOf(Theme::current().miss), 0);
    strip.setMisses(8, 12);
    strip.setMisses(9, 6);
    const int both = countOf(Theme::current().miss);
    EXPECT_GT(both, 30);
    strip.setMisses(9, 0);
    EXPECT_LT(countOf(Theme::current().miss), both);
}

TEST_F(TokenStripTest, AHundredThousandTokensAppendAndScrollToTheEnd) {
    generate(100'000);
    EXPECT_EQ(strip.chipCount(), 100'010);
    EXPECT_EQ(strip.lastStep(), 99'999);
    strip.setCursor(99'999, -1, -1);
    EXPECT_EQ(strip.verticalScrollBar()->value(), strip.verticalScrollBar()->maximum());
    QSignalSpy chosen(&strip, &TokenStrip::stepChosen);
    click(99'999);
    ASSERT_EQ(chosen.size(), 1);
    EXPECT_EQ(chosen[0][0].toInt(), 99'999);
}

TEST(TokenStripSpacing, TokensOfAWordStandTogetherAndWordsApart) {
    TokenStrip strip;
    strip.resize(600, 100);
    strip.append({{0, 10, 1, "mag"}, {1, 11, 1, "mag"}, {2, 12, 2, " mag"}});
    const int joined = strip.revealStep(1).x() - strip.revealStep(0).x();
    const int apart = strip.revealStep(2).x() - strip.revealStep(1).x();
    EXPECT_LE(joined, strip.fontMetrics().horizontalAdvance(QStringLiteral("mag")) + 4);
    EXPECT_GE(apart - joined, 5);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
