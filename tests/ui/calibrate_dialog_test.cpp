// The calibration dialog: it starts, its curves grow, it can be cancelled, and what it learned is what the form runs
// with.
#include "tests/ui/window_fixture.h"

#include "core/select/retaining_heads.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/calibrate_dialog.h"
#include "ui/widgets/session_form.h"

#include <QCheckBox>
#include <QDir>
#include <QFileInfo>
#include <QLabel>
#include <QLineEdit>
#include <QProgressBar>
#include <QPushButton>
#include <QSpinBox>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class CalibrateDialogTest : public WindowTest {
protected:
    CalibrateDialog* open(MainWindow& window) {
        EXPECT_TRUE(until([&] { return window.form().problem().isEmpty(); })) << "the embedded model loads";
        trigger(window, "calibrate");
        auto* dialog = window.findChild<CalibrateDialog*>();
        EXPECT_NE(dialog, nullptr);
        if (dialog == nullptr) return nullptr;
        EXPECT_TRUE(dialog->isVisible());
        EXPECT_FALSE(dialog->isModal());
        dialog->findChild<QSpinBox*>("calibrateTexts")->setValue(3);
        dialog->findChild<QSpinBox*>("calibrateTokens")->setValue(800);
        dialog->findChild<QLineEdit*>("calibrateFolder")->setText(folder.filePath("learned"));
        return dialog;
    }
    static QPushButton* button(CalibrateDialog& dialog, const char* name) {
        return dialog.findChild<QPushButton*>(name);
    }
    /// Points of a curve, by panel: the steps of the training, and the measurements of texts left out.
    static int points(CalibrateDialog& dialog, int panel, bool leftOut) {
        auto* plot = dialog.findChild<PlotCanvas*>("calibratePlot");
        return plot->panels()[panel]->graphs()[leftOut ? 1 : 0]->dataCount();
    }
};

TEST_F(CalibrateDialogTest, LearnsShowsItsLossesAndTheFormRunsWithTheResult) {
    const auto window = makeWindow();
    CalibrateDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    const auto before = window->form().problem();
    dialog->findChild<QSpinBox*>("calibrateSteps")->setValue(40);
    auto* files = dialog->findChild<QLabel*>("calibrateFiles");
    EXPECT_TRUE(files->text().contains("forecast.safetensors")) << qPrintable(files->text());
    EXPECT_TRUE(files->text().contains("locret.safetensors"));
    EXPECT_FALSE(files->text().contains("Replaces"));
    QSignalSpy done(dialog, &CalibrateDialog::calibrated);
    button(*dialog, "calibrateStart")->click();
    EXPECT_FALSE(button(*dialog, "calibrateStart")->isEnabled());
    EXPECT_TRUE(button(*dialog, "calibrateCancel")->isEnabled());
    ASSERT_TRUE(until([&] { return points(*dialog, 0, false) > 0; })) << "the first curve begins to grow";
    ASSERT_TRUE(until([&] { return done.count() == 1; }));
    for (int panel = 0; panel < 2; ++panel) {
        EXPECT_EQ(points(*dialog, panel, false), 40);
        EXPECT_EQ(points(*dialog, panel, true), 20) << "texts left out are measured twenty times";
    }
    EXPECT_EQ(dialog->findChild<QProgressBar*>("calibrateProgress")->value(), 1000);
    EXPECT_TRUE(dialog->findChild<QLabel*>("calibrateResult")->isVisible());
    for (const char* file : {"forecast.safetensors", "locret.safetensors", "double_sparsity.safetensors"})
        EXPECT_TRUE(QFileInfo::exists(folder.filePath(QStringLiteral("learned/") + QLatin1String(file)))) << file;
    EXPECT_TRUE(files->text().contains("Replaces")) << "a second one would replace them";
    // The model of the session is the calibrated one, weights and all.
    const auto model = done.front()[1].value<std::shared_ptr<const Model>>();
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(QString::fromStdString(model->folder()), folder.filePath("learned"));
    ASSERT_TRUE(until([&] { return window->form().problem().isEmpty(); }));
    EXPECT_EQ(
        select::findRetainingHeads(*model)->in,
        select::readRetainingHeads(folder.filePath("learned/locret.safetensors").toStdString(), model->config()).in);
    EXPECT_EQ(before, window->form().problem());
}

TEST_F(CalibrateDialogTest, CancellingWritesNothingAndAnotherOneMayFollow) {
    const auto window = makeWindow();
    CalibrateDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    dialog->findChild<QSpinBox*>("calibrateSteps")->setValue(1'000'000);
    button(*dialog, "calibrateStart")->click();
    ASSERT_TRUE(until([&] { return points(*dialog, 0, false) > 2; }));
    button(*dialog, "calibrateCancel")->click();
    ASSERT_TRUE(until([&] { return button(*dialog, "calibrateStart")->isEnabled(); }));
    EXPECT_TRUE(dialog->findChild<QLabel*>("calibrateWhat")->text().contains("nothing was written"));
    EXPECT_FALSE(QFileInfo::exists(folder.filePath("learned")));
    dialog->findChild<QCheckBox*>("calibrateForecast")->setChecked(false);
    dialog->findChild<QCheckBox*>("calibrateRetaining")->setChecked(false);
    EXPECT_FALSE(dialog->findChild<QSpinBox*>("calibrateSteps")->isEnabled()) << "nothing is trained";
    QSignalSpy done(dialog, &CalibrateDialog::calibrated);
    button(*dialog, "calibrateStart")->click();
    ASSERT_TRUE(until([&] { return done.count() == 1; }));
    EXPECT_EQ(QDir(folder.filePath("learned")).entryList(QDir::Files), QStringList{"double_sparsity.safetensors"});
}

TEST_F(CalibrateDialogTest, SaysWhyItCannotStartOrGoOn) {
    const auto window = makeWindow();
    CalibrateDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    for (const char* name : {"calibrateForecast", "calibrateRetaining", "calibrateChannels"})
        dialog->findChild<QCheckBox*>(name)->setChecked(false);
    EXPECT_FALSE(button(*dialog, "calibrateStart")->isEnabled());
    EXPECT_TRUE(dialog->findChild<QLabel*>("calibrateFiles")->text().contains("Nothing is chosen"));
    dialog->findChild<QCheckBox*>("calibrateChannels")->setChecked(true);
    QFile inTheWay(folder.filePath("file"));
    ASSERT_TRUE(inTheWay.open(QIODevice::WriteOnly));
    inTheWay.close();
    dialog->findChild<QLineEdit*>("calibrateFolder")->setText(folder.filePath("file/below"));
    button(*dialog, "calibrateStart")->click();
    ASSERT_TRUE(until([&] { return button(*dialog, "calibrateStart")->isEnabled(); }));
    bool said = false;
    for (const QLabel* label : dialog->findChildren<QLabel*>()) said |= label->text().contains("cannot be made");
    EXPECT_TRUE(said);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
