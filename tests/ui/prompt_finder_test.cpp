// Finding text in the prompt in the Selection view: blocks that no head selected are found too, by keyboard and mouse.
#include "tests/ui/view_fixture.h"

#include "profiler/read/prompt_search.h"
#include "tests/profiler/planted_prompt.h"
#include "tests/ui/window_fixture.h"
#include "ui/plots/found_plottable.h"

#include <QComboBox>
#include <QLineEdit>
#include <QMenu>
#include <QToolButton>
#include <QToolTip>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using Head = BlockChoice::Head;

const std::vector<int> kPlanted{0, 4, 9, 12, 16, 21};
constexpr int kStep = 6, kLayer = 2;

class PromptFinderTest : public ViewTest {
protected:
    PromptFinderTest() {
        std::map<int, std::string> words;
        for (const int block : kPlanted) words[16 * block + 5] = " Lantern";
        words[16 * 4 + 6] = " & <b>\n";
        synthetic::recordPlanted(folder / "a.kvtrace", shape, words);
        open(file("a.kvtrace"));
        workspace.setCursor({.step = kStep, .layer = kLayer, .kvHead = 1});
        show("selection");
    }
    QLineEdit& field() { return child<QLineEdit>("search"); }
    QString count() { return child<QToolButton>("foundBlocks").text(); }
    void type(const QString& text) {
        field().setFocus();
        QTest::keyClicks(&field(), text);
        ASSERT_TRUE(idle());
    }
    const FoundPlottable& marks() {
        for (int i = 0; i < canvas().plottableCount(); ++i)
            if (const auto* found = qobject_cast<const FoundPlottable*>(canvas().plottable(i))) return *found;
        throw std::runtime_error("the plot has no marks");
    }
    /// Whether the tooltip of a cell says this. The pointer moves until it does: a tooltip that is about to hide stays.
    bool hoverSays(int step, int block, const QString& text) {
        return waitFor([&] {
            move(pixel(step, block));
            return idle() && QToolTip::text().contains(text);
        });
    }
    /// KV heads that selected the block at the cursor's step in the layer.
    int headsWith(int block) {
        const TraceReader reader(file("a.kvtrace").toStdString());
        int heads = 0;
        for (int head = 0; head < shape.kvHeads; ++head)
            heads += findBlock(reader.selection(1, kStep, kLayer, 0, head)->blocks, block) != nullptr;
        return heads;
    }
    bool selected(int block) {
        const TraceReader reader(file("a.kvtrace").toStdString());
        return findBlock(reader.selection(1, kStep, kLayer, 0, 1)->blocks, block) != nullptr;
    }
    int selectedOfPlanted() {
        return int(std::count_if(kPlanted.begin(), kPlanted.end(), [this](int block) { return selected(block); }));
    }

    const synthetic::RunShape shape{.denseLayers = 1, .promptTokens = 400, .decodeSteps = 24};
};

TEST_F(PromptFinderTest, OutlinesTheBlocksThatWereNotSelected) {
    child<QComboBox>("colouring").setCurrentIndex(1); // origin only
    EXPECT_FALSE(child<QToolButton>("foundBlocks").isVisible());
    type("lantern");
    EXPECT_EQ(workspace.soughtText(), "lantern") << "the token strip frames it";
    ASSERT_EQ(marks().marks().size(), kPlanted.size());
    EXPECT_EQ(marks().step(), kStep);
    canvas().overlay().setVisible(false);
    canvas().replot();
    const QImage image = canvas().grab().toImage();
    int outlined = 0;
    for (const int block : kPlanted) {
        const int left = pixel(kStep - 0.5, block).x(), right = pixel(kStep + 0.5, block).x();
        const int middle = pixel(kStep, block).y();
        int marked = 0; // pixels of the cell's own row of pixels in the colour of the marks
        for (int x = left; x <= right; ++x) marked += image.pixelColor(x, middle) == Theme::light().found;
        EXPECT_EQ(marked > 0, !selected(block)) << block;
        const QColor centre = image.pixelColor((left + right) / 2, middle);
        EXPECT_EQ(centre == Theme::light().plotBackground, !selected(block))
            << block << " " << centre.name().toStdString();
        const int edge = canvas().panels()[0]->rect().left();
        EXPECT_EQ(image.pixelColor(edge + 5, middle) == Theme::light().found, selected(block))
            << "the square of " << block;
        outlined += marked > 0;
    }
    EXPECT_GT(outlined, 0);
    EXPECT_LT(outlined, int(kPlanted.size())) << "the case is there";
    EXPECT_EQ(count(), QStringLiteral("6 blocks, %1 selected").arg(selectedOfPlanted()));
    type("s"); // lanterns
    EXPECT_EQ(count(), QStringLiteral("not in the prompt"));
    EXPECT_TRUE(marks().marks().empty());
    EXPECT_FALSE(child<QToolButton>("nextFound").isEnabled());
}

TEST_F(PromptFinderTest, KeysGoThroughAllFoundBlocksAndAroundTheEnd) {
    type("LANTERN");
    std::vector<int> visited;
    for (std::size_t i = 0; i <= kPlanted.size(); ++i) {
        QTest::keyClick(&field(), Qt::Key_Return);
        visited.push_back(workspace.cursor().block);
        EXPECT_TRUE(field().hasFocus());
    }
    std::vector<int> expected = kPlanted;
    expected.push_back(kPlanted.front());
    EXPECT_EQ(visited, expected);
    EXPECT_EQ(count(), QStringLiteral("1 of 6 blocks, %1 selected").arg(selectedOfPlanted()));
    QTest::keyClick(&field(), Qt::Key_Return, Qt::ShiftModifier);
    EXPECT_EQ(workspace.cursor().block, 21);
    QTest::keyClick(&field(), Qt::Key_F3, Qt::ShiftModifier);
    EXPECT_EQ(workspace.cursor().block, 16);
    QTest::keyClick(&field(), Qt::Key_F3);
    EXPECT_EQ(workspace.cursor().block, 21);
    EXPECT_EQ(workspace.cursor().step, kStep) << "the step stays";
    QTest::mouseClick(&child<QToolButton>("previousFound"), Qt::LeftButton);
    EXPECT_EQ(workspace.cursor().block, 16);
    workspace.setCursor({.step = kStep, .layer = kLayer, .kvHead = 1, .block = 10});
    QTest::mouseClick(&child<QToolButton>("nextFound"), Qt::LeftButton);
    EXPECT_EQ(workspace.cursor().block, 12) << "from where the cursor stands";
    QTest::keyClick(&field(), Qt::Key_Escape);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(field().text().isEmpty());
    EXPECT_FALSE(child<QToolButton>("foundBlocks").isVisible());
    EXPECT_TRUE(canvas().hasFocus());
    EXPECT_TRUE(marks().marks().empty());
}

TEST_F(PromptFinderTest, TooltipAndListSayHowManyHeadsSelectedABlock) {
    type("lantern");
    auto& menu = *child<QToolButton>("foundBlocks").menu();
    menu.popup(view->mapToGlobal(QPoint(10, 10)));
    ASSERT_EQ(menu.actions().size(), qsizetype(kPlanted.size()));
    int none = 0, some = 0;
    for (std::size_t i = 0; i < kPlanted.size(); ++i) {
        const int block = kPlanted[i], heads = headsWith(block);
        heads == 0 ? ++none : ++some;
        const QString sentence = heads == 0
                                     ? QStringLiteral("Not selected by any KV head of layer 2 at step 6")
                                     : QStringLiteral("Selected by %1 of 2 KV heads of layer 2 at step 6").arg(heads);
        const QString entry = menu.actions()[qsizetype(i)]->text();
        EXPECT_TRUE(entry.startsWith(QStringLiteral("Block %1: “").arg(block))) << entry.toStdString();
        EXPECT_TRUE(entry.endsWith(sentence)) << entry.toStdString();
        EXPECT_TRUE(hoverSays(kStep + 2, block, QStringLiteral("Holds “lantern”. ") + sentence))
            << QToolTip::text().toStdString();
    }
    EXPECT_TRUE(none > 0 && some > 0) << "the case is there";
    EXPECT_TRUE(menu.actions()[1]->text().contains(QStringLiteral("Lantern && <b> word"))) << "as it is written";
    menu.actions()[3]->trigger();
    EXPECT_EQ(workspace.cursor().block, 12);
    menu.close();
    menu.popup(view->mapToGlobal(QPoint(10, 10)));
    EXPECT_TRUE(menu.actions()[3]->isChecked());
    menu.close();
    EXPECT_TRUE(hoverSays(kStep, 5, QStringLiteral("block 5")));
    EXPECT_FALSE(QToolTip::text().contains(QStringLiteral("Holds"))) << QToolTip::text().toStdString();
}

TEST_F(PromptFinderTest, MarksFollowTheStepAndTheHead) {
    type("lantern");
    const TraceReader reader(file("a.kvtrace").toStdString());
    bool differ = false;
    for (const int step : {6, 7, 15, 20})
        for (const int head : {0, 1}) {
            workspace.setCursor({.step = step, .layer = 3, .kvHead = head});
            ASSERT_TRUE(idle());
            EXPECT_EQ(marks().step(), step);
            ASSERT_EQ(marks().marks().size(), kPlanted.size());
            const auto row = reader.selection(1, step, 3, 0, head);
            for (const auto& mark : marks().marks()) {
                const bool chosen = findBlock(row->blocks, mark.block) != nullptr;
                EXPECT_EQ(mark.head, chosen ? Head::Selected : Head::Passed);
                differ |= chosen != selected(mark.block);
            }
        }
    EXPECT_TRUE(differ) << "the case is there";
    workspace.setCursor({.step = 0, .layer = 3});
    ASSERT_TRUE(idle());
    EXPECT_EQ(count(), QStringLiteral("6 blocks, no choice here")) << "the prefill attends everything";
    canvas().overlay().setVisible(false);
    canvas().replot();
    const QImage image = canvas().grab().toImage();
    const int edge = canvas().panels()[0]->rect().left();
    for (const int block : kPlanted) {
        const QPoint dash(edge + 6, pixel(0, block).y());
        EXPECT_NE(image.pixelColor(dash - QPoint(0, 3)), Theme::light().found) << "a dash, no square";
        EXPECT_NE(image.pixelColor(dash + QPoint(0, 3)), Theme::light().found);
        int marked = 0;
        for (int y = -2; y <= 2; ++y) marked += image.pixelColor(dash + QPoint(0, y)) == Theme::light().found;
        EXPECT_GE(marked, 1) << block;
    }
}

TEST_F(PromptFinderTest, FilterTextFindsWhatItLeavesOut) {
    Filter filter;
    filter.text = QStringLiteral("lantern");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_EQ(plot().emptyText(), QString());
    EXPECT_EQ(marks().marks().size(), kPlanted.size());
    EXPECT_EQ(field().placeholderText(), QStringLiteral("Filter: lantern"));
    EXPECT_EQ(count(), QStringLiteral("6 blocks, %1 selected").arg(selectedOfPlanted()));
    type("nowhere");
    EXPECT_EQ(count(), QStringLiteral("not in the prompt")) << "the field is asked first";
    field().clear();
    workspace.setFilter({});
    ASSERT_TRUE(idle());
    EXPECT_TRUE(marks().marks().empty());
    EXPECT_FALSE(child<QToolButton>("foundBlocks").isVisible());
}

TEST_F(PromptFinderTest, FilterTextOfBlocksThatAreNeverSelectedLeavesThePlot) {
    const synthetic::RunShape wide{.promptTokens = 1600, .decodeSteps = 4, .queryAware = 1, .queryAgnostic = 1};
    synthetic::recordPlanted(folder / "b.kvtrace", wide, {});
    int never = -1;
    {
        const TraceReader reader(file("b.kvtrace").toStdString());
        const auto rows = reader.selections(1, kLayer, 0, 1);
        for (int block = 1; block < 90 && never < 0; ++block)
            if (std::none_of(rows.begin(), rows.end(),
                             [&](const SelectionRow& row) { return findBlock(row.blocks, block) != nullptr; }))
                never = block;
    }
    ASSERT_GT(never, 0) << "the case is there";
    synthetic::recordPlanted(folder / "c.kvtrace", wide, {{16 * never, " lantern"}}); // its selections are the same
    open(file("c.kvtrace"));
    workspace.setCursor({.step = 2, .layer = kLayer, .kvHead = 1});
    Filter filter;
    filter.text = QStringLiteral("lantern");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_EQ(plot().emptyText(), QString());
    EXPECT_EQ(count(), QStringLiteral("1 block, 0 selected"));
    ASSERT_EQ(marks().marks().size(), 1u);
    EXPECT_TRUE(hoverSays(2, never, QStringLiteral("Holds “lantern”"))) << QToolTip::text().toStdString();
    click(2, never);
    EXPECT_EQ(workspace.cursor().block, never);
    workspace.setCursor({.step = 0, .layer = kLayer, .kvHead = 1}); // before anything was chosen
    ASSERT_TRUE(idle());
    filter.text = QStringLiteral("nowhere");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Nothing passes the filter")));
    filter.text = QStringLiteral("lantern");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_EQ(plot().emptyText(), QString());
}

TEST_F(PromptFinderTest, ExplainsALayerThatChoosesNothingAsBefore) {
    type("lantern");
    workspace.setCursor({.step = kStep, .layer = 0});
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("attended to every cached block")));
    EXPECT_EQ(count(), QStringLiteral("6 blocks, no choice here"));
}

TEST_F(PromptFinderTest, AnotherRunIsSearchedForTheSameText) {
    type("lantern");
    synthetic::recordPlanted(folder / "b.kvtrace", shape, {{40, " lantern"}});
    open(file("b.kvtrace"));
    EXPECT_EQ(workspace.current()->key.path, file("b.kvtrace"));
    ASSERT_EQ(marks().marks().size(), 1u);
    EXPECT_EQ(marks().marks()[0].block, 2);
    EXPECT_TRUE(count().startsWith(QStringLiteral("1 block, "))) << count().toStdString();
}

TEST_F(PromptFinderTest, FollowsALiveRun) {
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
    recorder.beginRun(synthetic::plantedInfo(shape, {{40, " lantern"}, {170, " lantern"}}));
    recorder.flush();
    workspace.addLive({path, recorder.runId()});
    type("lantern");
    EXPECT_TRUE(waitFor([&] { return count() == QStringLiteral("2 blocks, no choice here"); }))
        << count().toStdString();
    synthetic::RunGenerator generator(shape);
    synthetic::recordSteps(recorder, generator, 9);
    recorder.flush();
    EXPECT_TRUE(waitFor([&] { return workspace.current()->row.steps == 9; }));
    workspace.setCursor({.step = 8, .layer = kLayer});
    ASSERT_TRUE(idle());
    const TraceReader reader(path.toStdString());
    const auto row = reader.selection(1, 8, kLayer, 0, 0);
    ASSERT_TRUE(row);
    ASSERT_EQ(marks().marks().size(), 2u);
    for (const auto& mark : marks().marks())
        EXPECT_EQ(mark.head == Head::Selected, findBlock(row->blocks, mark.block) != nullptr) << mark.block;
    recorder.endRun(RunStatus::Finished, {});
    recorder.flush();
    workspace.finishLive({path, recorder.runId()});
    EXPECT_TRUE(idle());
}

using PromptFinderWindow = WindowTest;

TEST_F(PromptFinderWindow, CtrlFLeadsToTheField) {
    const auto window = windowOnTrace();
    window->showView("selection");
    settle(*window);
    trigger(*window, "find");
    auto* field = qobject_cast<QLineEdit*>(window->focusWidget());
    ASSERT_NE(field, nullptr);
    EXPECT_EQ(field->placeholderText(), QStringLiteral("Find text"));
    QTest::keyClicks(field, "P69"); // P69 is the last token and lies in block 1, as blocks hold 64 tokens
    settle(*window);
    QTest::keyClick(field, Qt::Key_Return);
    EXPECT_EQ(window->workspace().cursor().block, 1);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
