// A run whose prompts are read in pieces, in the window: each step is called what it is, and every view opens.
#include "tests/profiler/prompt_pieces.h"
#include "tests/ui/window_fixture.h"

#include "profiler/read/step_kind.h"
#include "ui/views/run_text.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/run_statistics.h"

#include <QComboBox>
#include <QLabel>
#include <QRegularExpression>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class WindowWithPieces : public WindowTest {
protected:
    WindowWithPieces() : path(folder.filePath(QStringLiteral("pieces.kvtrace"))), window(makeWindow()) {
        test::writePromptPieces(path.toStdString());
        window->openFiles({path});
        EXPECT_TRUE(until([&] {
            const OpenRun* run = window->workspace().current();
            return run && run->key.path == path && window->workspace().idle();
        }));
    }
    void show(const char* view) {
        window->showView(QLatin1String(view));
        for (int round = 0; round < 3; ++round) settle(*window);
    }
    static QString textsOf(const QWidget* part) {
        QStringList texts;
        for (const QLabel* label : part->findChildren<QLabel*>())
            if (label->isVisible() && !label->text().isEmpty()) texts << label->text();
        return texts.join(QLatin1Char('\n'));
    }
    const QString path;
    const std::unique_ptr<MainWindow> window;
};

TEST_F(WindowWithPieces, StepsAreCalledWhatTheyAre) {
    const RunRow row = window->workspace().current()->row;
    EXPECT_EQ(stepName(row, 0), QStringLiteral("prefill (step 0)"));
    EXPECT_EQ(stepName(row, 2), QStringLiteral("prefill (step 2)"));
    EXPECT_EQ(stepName(row, 4), QStringLiteral("decode step 4"));
    EXPECT_EQ(stepName(row, 5), QStringLiteral("step 5 (reads prompts, decodes)"));
    EXPECT_EQ(stepName(row, 9), QStringLiteral("prefill (step 9)"));
    EXPECT_EQ(stepName(RunRow(), 1), QStringLiteral("decode step 1"));
    const auto told = [&](int step) {
        Cursor cursor = window->workspace().cursor();
        cursor.step = step;
        window->workspace().setCursor(cursor);
        settle(*window);
        return textsOf(&window->inspector());
    };
    show("timeline");
    EXPECT_TRUE(told(9).contains(QStringLiteral("Prefill: reads pieces of prompts"))) << told(9).toStdString();
    EXPECT_TRUE(told(5).contains(QStringLiteral("Reads 24 tokens of prompts beside the sequences that decode")))
        << told(5).toStdString();
    EXPECT_FALSE(told(4).contains(QStringLiteral("prompts"))) << told(4).toStdString();
}

TEST_F(WindowWithPieces, EveryViewOpensAndCallsNothingDamaged) {
    const QRegularExpression wrong(QStringLiteral("damaged|not in this trace|break rules|Reading stopped"));
    for (const ViewEntry& entry : views()) {
        show(entry.id);
        for (const int step : {1, 5, 9, 11}) {
            Cursor cursor = window->workspace().cursor();
            cursor.step = step;
            window->workspace().setCursor(cursor);
            settle(*window);
        }
        const QString text = textsOf(window->currentView()) + textsOf(&window->inspector());
        EXPECT_FALSE(wrong.match(text).hasMatch()) << entry.id << " says " << text.toStdString();
    }
    const auto* counted = window->findChild<QLabel*>(QStringLiteral("ratesCount"));
    ASSERT_TRUE(counted);
    EXPECT_EQ(counted->text(), QStringLiteral("3 cold and 2 mixed steps left out"));
}

TEST_F(WindowWithPieces, TheBreakdownKeepsThePhasesApart) {
    show("breakdown");
    const auto exported = [&] {
        return window->currentView()->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    };
    const auto stepsOf = [](const QStringList& lines) {
        QStringList steps;
        for (const QString& line : lines.mid(1)) steps << line.section(QLatin1Char(','), 1, 1);
        return steps.join(QLatin1Char(' '));
    };
    EXPECT_EQ(stepsOf(exported()), QStringLiteral("3 4 5 6 7 8 10 11"));
    auto* phase = window->currentView()->findChild<QComboBox*>(QStringLiteral("phase"));
    ASSERT_TRUE(phase);
    phase->setCurrentIndex(1);
    for (int round = 0; round < 3; ++round) settle(*window);
    EXPECT_EQ(stepsOf(exported()), QStringLiteral("0 1 2 9"));
    phase->setCurrentIndex(0);
    auto* mode = window->currentView()->findChild<QComboBox*>(QStringLiteral("mode"));
    ASSERT_TRUE(mode);
    mode->setCurrentIndex(2);
    for (int round = 0; round < 3; ++round) settle(*window);
    const QString text = textsOf(window->currentView());
    EXPECT_TRUE(text.contains(QStringLiteral("Mean of 3 decode steps, 5 cold or mixed steps left out")))
        << text.toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
