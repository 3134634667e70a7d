#include "tests/ui/view_fixture.h"

#include "ui/frame/cursor_history.h"
#include "ui/frame/cursor_link.h"

#include <QSignalSpy>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class CursorHistoryTest : public ViewTest {
protected:
    void begin() {
        open(recorded("a.kvtrace", {}));
        history = std::make_unique<CursorHistory>(workspace);
        history->setPause(0); // every move is a place
    }
    void moveTo(int step, int layer = 0, CursorMove by = CursorMove::Person) {
        workspace.setCursor({.step = step, .layer = layer}, by);
    }
    std::unique_ptr<CursorHistory> history;
};

TEST_F(CursorHistoryTest, GoesBackAndForwardThroughPlaces) {
    begin();
    EXPECT_FALSE(history->canGoBack());
    moveTo(3);
    moveTo(9, 2);
    EXPECT_FALSE(history->canGoForward());
    history->back();
    EXPECT_EQ(workspace.cursor().step, 3);
    EXPECT_EQ(workspace.cursor().layer, 0);
    history->back();
    EXPECT_EQ(workspace.cursor().step, 0);
    EXPECT_FALSE(history->canGoBack());
    history->back(); // nothing before: stays
    EXPECT_EQ(workspace.cursor().step, 0);
    history->go(2);
    EXPECT_EQ(workspace.cursor().step, 9);
    EXPECT_EQ(workspace.cursor().layer, 2);
    EXPECT_FALSE(history->canGoForward());
}

TEST_F(CursorHistoryTest, ANewPlaceForgetsWhatWasAhead) {
    begin();
    moveTo(3);
    moveTo(9);
    history->back();
    moveTo(5);
    EXPECT_FALSE(history->canGoForward());
    history->back();
    EXPECT_EQ(workspace.cursor().step, 3);
}

TEST_F(CursorHistoryTest, ADragIsOnePlaceEvenThroughWhereItBegan) {
    begin();
    moveTo(4);
    history->setPause(60'000);
    history->go(0);
    history->back();
    history->forward(); // ends the burst: the next move is a place of its own
    for (const int step : {5, 6, 7, 8, 4, 3, 2, 1}) moveTo(step);
    history->back();
    EXPECT_EQ(workspace.cursor().step, 4);
    history->back();
    EXPECT_EQ(workspace.cursor().step, 0);
    history->go(2);
    EXPECT_EQ(workspace.cursor().step, 1);
    EXPECT_EQ(history->places().size(), 3U);
}

TEST_F(CursorHistoryTest, FollowingALiveRunIsNoPlaceToComeBackTo) {
    begin();
    for (int step = 1; step < 8; ++step) moveTo(step, 0, CursorMove::Follow);
    EXPECT_FALSE(history->canGoBack()) << "only the newest step of the followed run is known";
    moveTo(2);
    ASSERT_TRUE(history->canGoBack());
    history->back();
    EXPECT_EQ(workspace.cursor().step, 7);
    moveTo(9, 0, CursorMove::Follow); // while the person looks at the past
    history->forward();
    EXPECT_EQ(workspace.cursor().step, 2);
}

TEST_F(CursorHistoryTest, RunsAreRememberedAndForgottenWhenTheyClose) {
    begin();
    moveTo(6);
    open(recorded("b.kvtrace", {.layers = 2, .seed = 2}));
    const RunKey second = workspace.current()->key;
    moveTo(4, 1);
    history->go(-history->at() + 1);
    EXPECT_NE(workspace.current()->key, second);
    EXPECT_EQ(workspace.cursor().step, 6);
    history->go(int(history->places().size()));
    EXPECT_EQ(workspace.current()->key, second);
    EXPECT_EQ(workspace.cursor().layer, 1);
    workspace.close(second);
    for (const CursorHistory::Place& place : history->places()) EXPECT_NE(place.run, second);
    EXPECT_GE(history->at(), 0);
    history->back();
    EXPECT_NE(workspace.current()->key, second);
}

TEST_F(CursorHistoryTest, APlaceIsDescribedByWhatDiffers) {
    begin();
    const CursorHistory::Place from{workspace.current()->key, {}};
    CursorHistory::Place place = from;
    place.cursor = {.step = 12, .firstStep = 10, .lastStep = 14, .layer = 3, .kvHead = 1, .block = 7};
    const QString text = history->describe(place, from);
    for (const char* part : {"step 12", "steps 10 to 14", "layer 3", "KV head 1", "block 7"})
        EXPECT_TRUE(text.contains(QLatin1String(part))) << text.toStdString();
    EXPECT_FALSE(text.contains(QStringLiteral("sequence")));
}

TEST_F(CursorHistoryTest, LinkedWindowsOnTheSameRunMoveTogether) {
    const QString path = recorded("a.kvtrace", {});
    open(path);
    Workspace other;
    other.open(path);
    ASSERT_TRUE(waitFor([&] { return other.idle() && other.current() != nullptr; }));
    const CursorLink here(workspace);
    CursorLink there(other);
    moveTo(5, 2);
    EXPECT_EQ(other.cursor(), workspace.cursor());
    other.setCursor({.step = 8});
    EXPECT_EQ(workspace.cursor().step, 8);
    moveTo(10, 0, CursorMove::Follow);
    EXPECT_EQ(other.cursor().step, 8) << "each window follows a live run by itself";
    there.setEnabled(false);
    moveTo(3);
    EXPECT_EQ(other.cursor().step, 8);
    there.setEnabled(true);
    other.open(recorded("b.kvtrace", {.seed = 3}));
    ASSERT_TRUE(waitFor([&] { return other.idle() && other.current()->key.path.endsWith("b.kvtrace"); }));
    moveTo(4);
    EXPECT_EQ(other.cursor().step, 8) << "another run has its own cursor";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
