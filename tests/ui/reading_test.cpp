// What views show while they read: never an empty frame, always a way to stop where a person may want one.
#include "tests/ui/held_readers.h"
#include "tests/ui/view_fixture.h"

#include "base/error.h"
#include "ui/frame/numbers.h"
#include "ui/widgets/loading_strip.h"

#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QTabBar>
#include <QTableWidget>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

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
    void showHeldComparison(int page) {
        showHeld("compare");
        child<QTabBar>("comparePages").setCurrentIndex(page);
        ASSERT_TRUE(waitFor([&] { return strip() != nullptr; })) << page;
    }
    static constexpr int Summary = 0, Breakdown = 2; // pages

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
    for (const int page : {Summary, Breakdown}) {
        showHeldComparison(page);
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

TEST_F(Reading, NumbersOfAFirstLookAreNotExportedAndTheReasonIsSaid) {
    synthetic::RunShape shape{.layers = 2, .kvHeads = 1, .decodeSteps = 2100};
    open(recorded("b.kvtrace", shape, RecordLevel::Counters));
    const RunKey other = workspace.current()->key;
    shape.window = 4; // else the two are repeats of each other
    open(recorded("a.kvtrace", shape, RecordLevel::Counters));
    workspace.setCompare(other);
    for (const int page : {Summary, Breakdown}) {
        showHeldComparison(page);
        LoadingStrip* reading = strip();
        const auto* bar = reading->findChild<QProgressBar*>();
        const auto stop = QObject::connect(bar, &QProgressBar::valueChanged, reading, [reading](int steps) {
            if (steps > 0) emit reading->stopped(); // stops when the whole first run has been read
        });
        held->release();
        const auto refusal = [&]() -> std::string {
            try {
                ui::textOf(view->numbers());
            } catch (const Error& error) {
                return oneLine(error);
            }
            return {};
        };
        ASSERT_TRUE(waitFor([&] { return !refusal().empty(); })) << page;
        ASSERT_TRUE(idle());
        EXPECT_NE(refusal().find("only a first look"), std::string::npos) << page << refusal();
        EXPECT_NE(refusal().find("press Read on"), std::string::npos) << page << refusal();
        EXPECT_TRUE(view->exportCsv().isEmpty());
        QObject::disconnect(stop);
        emit reading->resumed();
        ASSERT_TRUE(waitFor([&] { return !view->exportCsv().isEmpty(); })) << page;
        EXPECT_EQ(ui::textOf(view->numbers()), view->exportCsv()) << page;
        ASSERT_TRUE(idle());
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
