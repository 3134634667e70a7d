// What views show while they read: never an empty frame, always a way to stop where a person may want one.
#include "tests/ui/held_readers.h"
#include "tests/ui/view_fixture.h"

#include "ui/widgets/loading_strip.h"

#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QTabBar>
#include <QTableWidget>

namespace kvscope::ui {
namespace {

class Reading : public ViewTest {
protected:
    /// Shows a view whose first read waits.
    void showHeld(const char* id) {
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == id) view.reset(entry.make(workspace, nullptr));
        held = std::make_unique<HeldReaders>(workspace, workspace.current()->key);
        view->resize(1000, 640);
        view->show();
        ASSERT_TRUE(QTest::qWaitForWindowExposed(view.get()));
    }
    LoadingStrip* strip() {
        for (LoadingStrip* each : view->findChildren<LoadingStrip*>())
            if (each->isVisible()) return each;
        return nullptr;
    }
    static QString textOf(const LoadingStrip& strip) {
        QStringList texts;
        for (const QLabel* label : strip.findChildren<QLabel*>()) texts << label->text();
        return texts.join(QLatin1Char(' '));
    }
    std::unique_ptr<HeldReaders> held;
};

TEST_F(Reading, IsSaidInsteadOfAnEmptyFrame) {
    open(recorded("a.kvtrace", {}));
    for (const char* id : {"locality", "selection", "transfers", "breakdown"}) {
        showHeld(id);
        EXPECT_TRUE(waitFor([&] { return plot().emptyText().contains(QStringLiteral("Reading the run")); }))
            << id << ": " << plot().emptyText().toStdString();
        held->release();
        EXPECT_TRUE(waitFor([&] { return plot().emptyText().isEmpty(); })) << id;
        ASSERT_TRUE(idle());
    }
}

TEST_F(Reading, TheFocusComesBackToThePlot) {
    open(recorded("a.kvtrace", {}));
    showHeld("locality");
    view->activateWindow();
    ASSERT_TRUE(QTest::qWaitForWindowActive(view.get()));
    view->setFocus();
    ASSERT_TRUE(canvas().hasFocus());
    ASSERT_TRUE(waitFor([&] { return !plot().emptyText().isEmpty(); }));
    held->release();
    ASSERT_TRUE(waitFor([&] { return plot().emptyText().isEmpty(); }));
    EXPECT_TRUE(canvas().hasFocus()) << "keys go on working";
}

TEST_F(Reading, AComparisonSaysHowFarItIsAndCanBeStoppedAndTakenUp) {
    open(recorded("b.kvtrace", {.decodeSteps = 60, .window = 4, .seed = 4}));
    const RunKey other = workspace.current()->key;
    open(recorded("a.kvtrace", {.decodeSteps = 60}));
    workspace.setCompare(other);
    enum Page { Summary, Breakdown = 2 };
    for (const int page : {int(Summary), int(Breakdown)}) {
        showHeld("compare");
        child<QTabBar>("comparePages").setCurrentIndex(page);
        ASSERT_TRUE(waitFor([&] { return strip() != nullptr; })) << page;
        EXPECT_TRUE(textOf(*strip()).contains(QStringLiteral("Reading 0 of 122 steps")))
            << textOf(*strip()).toStdString();
        auto* button = strip()->findChild<QPushButton*>(QStringLiteral("stopReading"));
        QTest::mouseClick(button, Qt::LeftButton);
        EXPECT_TRUE(textOf(*strip()).contains(QStringLiteral("Stopped at 0 of 122 steps")));
        EXPECT_EQ(button->text(), QStringLiteral("Read on"));
        held->release();
        ASSERT_TRUE(idle());
        EXPECT_TRUE(view->exportCsv().isEmpty()) << "nothing came after the stop";
        QTest::mouseClick(button, Qt::LeftButton);
        EXPECT_TRUE(waitFor([&] { return !view->exportCsv().isEmpty(); })) << page;
        EXPECT_TRUE(waitFor([&] { return strip() == nullptr; })) << "it goes when all is read";
        if (page == Summary) {
            EXPECT_TRUE(child<QLabel>("verdict").isVisible());
            EXPECT_TRUE(child<QTableWidget>("keyNumbers").isVisible());
        }
        ASSERT_TRUE(idle());
    }
}

} // namespace
} // namespace kvscope::ui
