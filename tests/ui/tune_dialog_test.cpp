// The dialog that tunes: it predicts and runs, shows both beside each other, can be cancelled, and runs its choice.
#include "tests/ui/window_fixture.h"

#include "core/select/method.h"
#include "ui/frame/empty_page.h"
#include "ui/plots/plot_canvas.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/tune_dialog.h"

#include <QClipboard>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QLabel>
#include <QLineEdit>
#include <QProgressBar>
#include <QPushButton>
#include <QSpinBox>
#include <QTableWidget>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TuneDialogTest : public WindowTest {
protected:
    TuneDialog* open(MainWindow& window) {
        EXPECT_TRUE(until([&] { return window.form().problem().isEmpty(); })) << "the embedded model loads";
        trigger(window, "tune");
        auto* dialog = window.findChild<TuneDialog*>();
        EXPECT_NE(dialog, nullptr);
        if (dialog == nullptr) return nullptr;
        EXPECT_FALSE(dialog->isModal());
        dialog->findChild<QSpinBox*>("tuneContext")->setValue(500);
        dialog->findChild<QSpinBox*>("tuneCount")->setValue(3);
        dialog->findChild<QSpinBox*>("tuneNewTokens")->setValue(10);
        dialog->findChild<QLineEdit*>("tuneMethods")->setText("nosa, streaming");
        dialog->findChild<QLineEdit*>("tuneBudgets")->setText("256, 320");
        dialog->findChild<QDoubleSpinBox*>("tuneMemory")->setValue(3.2);
        dialog->findChild<QDoubleSpinBox*>("tuneFloor")->setValue(60);
        return dialog;
    }
    static QPushButton* button(TuneDialog& dialog, const char* name) { return dialog.findChild<QPushButton*>(name); }
    static bool idle(TuneDialog& dialog) { return button(dialog, "tuneStart")->isEnabled(); }
};

TEST_F(TuneDialogTest, ShowsPredictedBesideMeasuredAndRunsTheChoice) {
    const auto window = makeWindow();
    TuneDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    button(*dialog, "tuneStart")->click();
    EXPECT_FALSE(idle(*dialog));
    ASSERT_TRUE(until([&] { return idle(*dialog); }));
    ASSERT_TRUE(dialog->result());
    const TuneResult& result = *dialog->result();
    ASSERT_TRUE(result.recommended) << qPrintable(dialog->findChild<QLabel*>("tuneVerdict")->text());
    auto* table = dialog->findChild<QTableWidget*>("tuneTable");
    EXPECT_EQ(std::size_t(table->rowCount()), result.rows.size());
    EXPECT_EQ(table->currentRow(), int(*result.recommended)) << "the choice is chosen";
    const TuneRow& row = result.rows[*result.recommended];
    const QString title = table->item(table->currentRow(), 1)->text();
    EXPECT_TRUE(title.startsWith(QString::fromStdString(methodTitle(row.candidate.method)))) << title.toStdString();
    for (int i = 0; i < table->rowCount(); ++i)
        for (const char* raw : {"=", "_"}) EXPECT_FALSE(table->item(i, 1)->text().contains(QLatin1String(raw))) << i;
    EXPECT_TRUE(table->item(table->currentRow(), 1)
                    ->toolTip()
                    .contains(QString::fromStdString(row.candidate.name()).toHtmlEscaped()))
        << "the command line's words";
    EXPECT_TRUE(dialog->findChild<QLabel*>("tuneVerdict")->text().contains(title));
    EXPECT_EQ(table->item(table->currentRow(), 4)->text(), QString::number(row.predicted.stepNs / 1e6, 'f', 3));
    EXPECT_EQ(table->item(table->currentRow(), 5)->text(), QString::number(row.measured->sums.stepNs() / 1e6, 'f', 3));
    auto* plot = dialog->findChild<PlotCanvas*>("tunePlot");
    int measured = 0;
    for (const QCPGraph* graph : plot->panels().front()->graphs()) measured = std::max(measured, graph->dataCount());
    EXPECT_EQ(measured, int(std::max<std::size_t>(result.order.size(), 2)));
    button(*dialog, "tuneCopy")->click();
    EXPECT_TRUE(QApplication::clipboard()->text().startsWith("kvscope-cli run --model nosa-tiny"));
    button(*dialog, "tuneRun")->click();
    ASSERT_TRUE(until([&] {
        const OpenRun* open = window->workspace().current();
        return open != nullptr && !open->row.method.empty();
    })) << "the choice is decoded and recorded";
    const RunRow run = window->workspace().current()->row;
    EXPECT_EQ(run.method, row.candidate.method);
    if (row.candidate.deviceSlots) {
        EXPECT_EQ(run.deviceSlots, *row.candidate.deviceSlots);
    }
    trigger(*window, "stop");
}

TEST_F(TuneDialogTest, BeforeARunItSaysWhatItWillDoInPlaceOfEmptyAxes) {
    const auto window = makeWindow();
    trigger(*window, "tune"); // before the model is loaded
    auto* dialog = window->findChild<TuneDialog*>();
    ASSERT_NE(dialog, nullptr);
    EXPECT_FALSE(dialog->findChild<PlotCanvas*>("tunePlot")->isVisible());
    EXPECT_FALSE(dialog->findChild<QTableWidget*>("tuneTable")->isVisible());
    const auto* page = dialog->findChild<EmptyPage*>();
    ASSERT_NE(page, nullptr);
    EXPECT_TRUE(page->isVisible());
    EXPECT_TRUE(page->text().contains("Nothing is recommended that was not run")) << page->text().toStdString();
    EXPECT_TRUE(until([&] { return idle(*dialog); })) << "it gets the model as soon as it is loaded";
}

TEST_F(TuneDialogTest, CancelKeepsWhatWasMeasuredAndMistakesAreSaid) {
    const auto window = makeWindow();
    TuneDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    dialog->findChild<QLineEdit*>("tuneBudgets")->setText("256, many");
    button(*dialog, "tuneStart")->click();
    EXPECT_TRUE(idle(*dialog));
    const auto said = [&](const QString& part) {
        for (const QLabel* label : dialog->findChildren<QLabel*>())
            if (label->isVisible() && label->text().contains(part)) return true;
        return false;
    };
    EXPECT_TRUE(said("'many' is not a number of tokens"));
    dialog->findChild<QLineEdit*>("tuneBudgets")->setText("256,,320");
    button(*dialog, "tuneStart")->click();
    EXPECT_TRUE(said("'' is not a number of tokens")) << "an empty value is not skipped";
    dialog->findChild<QLineEdit*>("tuneBudgets")->setText("256");
    dialog->findChild<QLineEdit*>("tuneMethods")->setText("magic");
    button(*dialog, "tuneStart")->click();
    ASSERT_TRUE(until([&] { return idle(*dialog); }));
    EXPECT_TRUE(said("unknown method 'magic'"));
    dialog->findChild<QLineEdit*>("tuneMethods")->setText("nosa, streaming");
    dialog->findChild<QSpinBox*>("tuneNewTokens")->setValue(400);
    button(*dialog, "tuneStart")->click();
    ASSERT_TRUE(until([&] { return dialog->result() && !dialog->result()->order.empty(); }));
    button(*dialog, "tuneCancel")->click();
    ASSERT_TRUE(until([&] { return idle(*dialog); }));
    EXPECT_GE(dialog->result()->order.size(), 1u) << "what was measured stays";
    EXPECT_TRUE(button(*dialog, "tuneSave")->isEnabled());
}

TEST_F(TuneDialogTest, FitsASmallWindowAndItsNumbersSayWhatTheyCount) {
    const auto window = makeWindow(true, {1024, 700});
    TuneDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    EXPECT_LE(dialog->width(), 1024);
    EXPECT_LE(dialog->minimumSizeHint().width(), 1024);
    EXPECT_EQ(dialog->findChild<QSpinBox*>("tuneContext")->text(), QStringLiteral("500 tokens"));
    EXPECT_EQ(dialog->findChild<QSpinBox*>("tuneBatch")->text(), QStringLiteral("1 sequence"));
    EXPECT_EQ(dialog->findChild<QSpinBox*>("tuneRuns")->text(), QStringLiteral("3 candidates"));
    const QCPRange axis =
        dialog->findChild<PlotCanvas*>("tunePlot")->panels().front()->axis(QCPAxis::atBottom)->range();
    EXPECT_EQ(axis.lower, 0) << "no time is negative, before anything is measured either";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
