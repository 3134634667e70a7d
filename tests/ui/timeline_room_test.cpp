// In a low view the timeline's rows come first: the panel below them grows when it has something to explain.
#include "tests/ui/timeline_fixture.h"

#include <QLabel>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineRoom : public TimelineTest {};

TEST_F(TimelineRoom, InALowViewThePanelWaitsForASpanAndTheNoteIsOneLine) {
    open(recorded("run.kvtrace", {.layers = 3, .decodeSteps = 12}));
    show({680, 500});
    EXPECT_LE(panel().height(), 80);
    const auto& note = child<QLabel>("timelineNote");
    EXPECT_GT(note.text().size(), 60);
    EXPECT_LE(note.height(), note.fontMetrics().height() + 2);
    EXPECT_GE(timeline().height(), 300) << "rows have the rest";
    EXPECT_TRUE(hasRow(QString::fromLatin1(kHostTrack)));
    timeline().reveal(find("ffn", 3));
    QTest::mouseClick(&timeline(), Qt::LeftButton, {}, middleOf(find("ffn", 3)));
    ASSERT_TRUE(idle());
    EXPECT_GE(panel().height(), 110) << "what it says of the span is seen";
    view->resize(1200, 1000);
    QCoreApplication::processEvents();
    EXPECT_GE(panel().height(), 140);
    EXPECT_GT(note.height(), 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
