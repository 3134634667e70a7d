#include "tests/ui/view_fixture.h"

#include "ui/plots/mask_plottable.h"

#include <QComboBox>
#include <QToolTip>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class SelectionViewTest : public ViewTest {
protected:
    std::vector<SelectionRow> rows(int layer, int sequence, int head) {
        TraceReader reader(workspace.current()->key.path.toStdString());
        return reader.selections(workspace.current()->key.runId, layer, sequence, head);
    }
};

TEST_F(SelectionViewTest, ColoursSelectedBlocksByOriginAndLeavesTheOthersEmpty) {
    // 208 tokens end with a block, so that the line at the prompt's end crosses no cell.
    open(recorded("a.kvtrace", {.promptTokens = 208}));
    show("selection");
    child<QComboBox>("colouring").setCurrentIndex(1); // origin only
    int checked = 0;
    for (const SelectionRow& row : rows(0, 0, 0)) {
        if (row.step % 5 != 2) continue;
        for (const PackedBlock block : row.blocks) {
            EXPECT_EQ(colourAt(row.step, block.id()), Theme::light().origin[std::size_t(block.origin())])
                << "step " << row.step << " block " << block.id();
            ++checked;
        }
        for (int block = 0; block < 12; ++block)
            if (findBlock(row.blocks, block) == nullptr) {
                EXPECT_EQ(colourAt(row.step, block), Theme::light().plotBackground);
            }
    }
    EXPECT_GT(checked, 20);
}

TEST_F(SelectionViewTest, SaysWhereEverythingIsAttended) {
    open(recorded("a.kvtrace", {.denseLayers = 1}));
    show("selection");
    EXPECT_TRUE(plot().emptyText().contains("attended to every cached block")) << plot().emptyText().toStdString();
    workspace.setCursor({.step = 3, .layer = 1});
    ASSERT_TRUE(idle());
    EXPECT_EQ(plot().emptyText(), QString());
}

TEST_F(SelectionViewTest, ShowsHitsAndMisses) {
    open(recorded("a.kvtrace", {.promptTokens = 208}));
    show("selection");
    child<QComboBox>("colouring").setCurrentIndex(2);
    for (const SelectionRow& row : rows(0, 0, 0)) {
        if (row.step == 4 || row.step == 11) {
            for (const PackedBlock block : row.blocks)
                EXPECT_EQ(colourAt(row.step, block.id()), block.hit() ? Theme::light().hit : Theme::light().miss);
        }
    }
}

TEST_F(SelectionViewTest, HatchesMissesAndOnlyMisses) {
    open(recorded("a.kvtrace", {.promptTokens = 208}));
    show("selection");
    canvas().overlay().setVisible(false);
    canvas().replot();
    const QImage image = canvas().grab().toImage();
    int hits = 0, misses = 0;
    for (const SelectionRow& row : rows(0, 0, 0)) {
        if (row.step < 2) continue;
        for (const PackedBlock block : row.blocks) {
            const QPoint centre = pixel(row.step, block.id());
            int struck = 0;
            for (int y = -5; y <= 5; ++y)
                for (int x = -5; x <= 5; ++x)
                    struck += image.pixelColor(centre + QPoint(x, y)) == Theme::light().miss ? 1 : 0;
            block.hit() ? ++hits : ++misses;
            EXPECT_EQ(struck > 0, !block.hit()) << "block " << block.id();
        }
    }
    EXPECT_GT(hits, 0);
    EXPECT_GT(misses, 0);
}

TEST_F(SelectionViewTest, FollowsTheCursorsLayerHeadAndSequenceAndSetsThem) {
    open(recorded("a.kvtrace", {.sequences = 2}));
    show("selection");
    workspace.setCursor({.step = 3, .sequence = 1, .layer = 2, .kvHead = 1});
    ASSERT_TRUE(idle());
    EXPECT_EQ(child<QComboBox>("layer").currentIndex(), 2);
    EXPECT_EQ(child<QComboBox>("kvHead").currentIndex(), 1);
    EXPECT_EQ(child<QComboBox>("sequence").currentIndex(), 1);
    const auto expected = rows(2, 1, 1);
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    std::size_t blocks = 0;
    for (const SelectionRow& row : expected) blocks += row.blocks.size();
    EXPECT_EQ(std::size_t(lines.size()) - 1, blocks);
    EXPECT_TRUE(lines[1].startsWith(QStringLiteral("1,2,1,1,")));
    child<QComboBox>("layer").setCurrentIndex(3);
    EXPECT_EQ(workspace.cursor().layer, 3);
}

TEST_F(SelectionViewTest, ClickingABlockMovesTheCursorToItsStepAndBlock) {
    open(recorded("a.kvtrace", {}));
    show("selection");
    click(8, 5);
    EXPECT_EQ(workspace.cursor().step, 8);
    EXPECT_EQ(workspace.cursor().block, 5);
}

TEST_F(SelectionViewTest, TooltipShowsTheTextOfTheBlockAndWhyItWasSelected) {
    open(recorded("a.kvtrace", {}));
    show("selection");
    const SelectionRow row = rows(0, 0, 0)[6];
    const int block = row.blocks[2].id();
    move(pixel(row.step, block));
    ASSERT_TRUE(idle());
    const QString text = QToolTip::text();
    EXPECT_TRUE(text.contains(QStringLiteral("block %1").arg(block))) << text.toStdString();
    EXPECT_TRUE(text.contains(QStringLiteral("tokens %1 to %2").arg(16 * block).arg(16 * block + 15)));
    EXPECT_TRUE(text.contains(QString::fromUtf8(nameOf(row.blocks[2].origin()))) ||
                text.contains(QStringLiteral("query")));
    EXPECT_TRUE(text.contains(row.blocks[2].hit() ? QStringLiteral("hit") : QStringLiteral("miss")));
    EXPECT_TRUE(text.contains(QStringLiteral("Score")));
    EXPECT_TRUE(text.contains(QStringLiteral("needle"))) << "the text of the block";
    EXPECT_TRUE(text.contains(QStringLiteral("⏎"))) << "line ends are visible";
}

TEST_F(SelectionViewTest, MarksWhereThePromptEnds) {
    open(recorded("a.kvtrace", {.promptTokens = 72, .decodeSteps = 60}));
    show("selection");
    EXPECT_TRUE(view->exportImage(file("s.svg"), {900, 600}));
    QFile svg(file("s.svg"));
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    EXPECT_TRUE(svg.readAll().contains("end of the prompt (72 tokens)"));
}

TEST_F(SelectionViewTest, ExplainsThatCountersKeepNoBlocks) {
    open(recorded("a.kvtrace", {}, RecordLevel::Counters));
    show("selection");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("level counters")));
}

TEST(MaskPlottable, KeepsALoneBlockVisibleAmongThousandsOfBlocksAndSteps) {
    MaskPyramid data;
    MaskChunk chunk;
    for (int step = 0; step < 20'000; ++step) {
        chunk.cells.push_back({0, MaskBits((1 << int(Origin::Sink)) | kMaskHit)});
        if (step == 12'345) {
            chunk.cells.push_back({4000, MaskBits((1 << int(Origin::QueryAware)) | kMaskMiss)});
        }
        chunk.endStep();
    }
    data.append(chunk);
    QCustomPlot plot;
    auto* mask = new MaskPlottable(plot.xAxis, plot.yAxis, data);
    mask->setColouring(MaskPlottable::Colouring::Origin, false);
    const QImage image = mask->render({-0.5, 19'999.5}, {-0.5, 4095.5}, {800, 500}, 1);
    int aware = 0;
    for (int y = 0; y < 490; ++y)
        for (int x = 0; x < 800; ++x) aware += image.pixel(x, y) == Theme::light().origin[2].rgb() ? 1 : 0;
    EXPECT_EQ(aware, 1);
    EXPECT_EQ(image.pixel(400, 499), Theme::light().origin[0].rgb()) << "block 0 is at the bottom";
    mask->setColouring(MaskPlottable::Colouring::Residency, false);
    const QImage residency = mask->render({-0.5, 19'999.5}, {-0.5, 4095.5}, {800, 500}, 1);
    int missed = 0;
    for (int y = 0; y < 500; ++y)
        for (int x = 0; x < 800; ++x) missed += residency.pixel(x, y) == Theme::light().miss.rgb() ? 1 : 0;
    EXPECT_EQ(missed, 1);
}

TEST(MaskPlottable, ShowsTheMostQueryDependentOriginWhereSeveralMeet) {
    const auto bit = [](Origin origin) { return MaskBits(1 << int(origin)); };
    EXPECT_EQ(MaskPlottable::shownOrigin(0), -1);
    EXPECT_EQ(MaskPlottable::shownOrigin(MaskBits(bit(Origin::Sink) | bit(Origin::Window))), int(Origin::Window));
    EXPECT_EQ(MaskPlottable::shownOrigin(MaskBits(bit(Origin::QueryAware) | bit(Origin::Window) | kMaskMiss)),
              int(Origin::QueryAware));
    EXPECT_EQ(MaskPlottable::shownOrigin(MaskBits(bit(Origin::QueryAgnostic) | bit(Origin::TokenLevel))),
              int(Origin::QueryAgnostic));
}

// How long a frame takes kvscope-bench-desktop measures.
TEST(MaskPlottable, DrawsALongMask) {
    MaskPyramid data;
    for (int part = 0; part < 10; ++part) {
        MaskChunk chunk;
        for (int step = 0; step < 2000; ++step) {
            for (int k = 0; k < 128; ++k) {
                chunk.cells.push_back({(k * 32 + (step / 50) % 7) % 4096, MaskBits(4 | kMaskHit)});
            }
            chunk.endStep();
        }
        data.append(chunk);
    }
    QCustomPlot plot;
    auto* mask = new MaskPlottable(plot.xAxis, plot.yAxis, data);
    const QImage image = mask->render({-0.5, 19'999.5}, {-0.5, 4095.5}, {1600, 900}, 1);
    ASSERT_EQ(image.size(), QSize(1600, 900));
    // Column 800 shows steps 10,000 to 10,012, which select the same 128 blocks, each on a line of its own.
    int shown = 0;
    for (int y = 0; y < 900; ++y) shown += image.pixel(800, y) != 0 ? 1 : 0;
    EXPECT_EQ(shown, 128);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
