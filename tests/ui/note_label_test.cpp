// The note below a plot: whole where there is room, else cut to its first lines, with all of it in its tooltip.
#include "ui/frame/note_label.h"

#include <QApplication>
#include <QHelpEvent>
#include <QTest>
#include <QToolTip>
#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class NoteLabelTest : public ::testing::Test {
protected:
    NoteLabelTest() {
        note.setText(QStringLiteral("Where several share a pixel, its colour is the name that takes most of it, and "
                                    "its strength how much of it is busy. ")
                         .repeated(4));
        view.resize(400, 800);
        note.setParent(&view);
        note.resize(400, 20);
    }
    QWidget view;
    NoteLabel note;
};

TEST_F(NoteLabelTest, IsCutInALowViewOnlyAndItsTooltipHasAllOfIt) {
    note.fit(view, 2);
    const int whole = note.heightForWidth(400);
    EXPECT_GT(whole, 4 * note.fontMetrics().height());
    EXPECT_FALSE(note.isCut());
    view.resize(400, 500);
    note.fit(view, 2);
    EXPECT_TRUE(note.isCut());
    EXPECT_LE(note.heightForWidth(400), 2 * note.fontMetrics().lineSpacing());
    EXPECT_EQ(note.text().size(), note.text().trimmed().size() + 1) << "the text itself stays as it is";
    QHelpEvent help(QEvent::ToolTip, {5, 5}, note.mapToGlobal(QPoint(5, 5)));
    QApplication::sendEvent(&note, &help);
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("how much of it is busy")));
    QToolTip::hideText();
    note.setText(QStringLiteral("24 rows."));
    EXPECT_FALSE(note.isCut()) << "a short one is not";
    EXPECT_LE(note.heightForWidth(400), note.fontMetrics().lineSpacing() + 2);
}

TEST_F(NoteLabelTest, AViewThatIsHigherThanWhatIsInSightIsLow) {
    QWidget window;
    window.resize(400, 500);
    view.setParent(&window); // as in a scroll area
    note.fit(view, 1);
    EXPECT_TRUE(note.isCut());
    window.resize(400, 900);
    note.fit(view, 1);
    EXPECT_FALSE(note.isCut());
    view.setParent(nullptr); // the window does not own it
}

TEST_F(NoteLabelTest, DrawsTheBeginningOfWhatIsCut) {
    view.resize(400, 500);
    note.fit(view, 1);
    note.resize(400, note.heightForWidth(400));
    const QImage cut = note.grab().toImage();
    note.setText(QStringLiteral(" "));
    EXPECT_NE(cut, note.grab().toImage()) << "something is drawn";
}

/// Painting a note that is cut asked for the next paint: a low window kept a core busy.
TEST_F(NoteLabelTest, IsPaintedOnceAndNotAgainAndAgain) {
    struct Paints : QObject {
        int count = 0;
        bool eventFilter(QObject*, QEvent* event) override {
            count += event->type() == QEvent::Paint;
            return false;
        }
    } paints;
    view.resize(400, 500);
    note.fit(view, 1);
    note.resize(400, note.heightForWidth(400));
    view.show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(&view));
    QCoreApplication::processEvents();
    ASSERT_TRUE(note.isCut());
    note.installEventFilter(&paints);
    note.update();
    for (int round = 0; round < 100; ++round) QCoreApplication::processEvents();
    EXPECT_GE(paints.count, 1);
    EXPECT_LE(paints.count, 3) << "of 100 rounds of events";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
