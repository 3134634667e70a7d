// Dialogs on a small screen, such as one of 1,080 lines at 200 %: all of each has room there, and its controls have
// names.
#include "tests/ui/nameless_controls.h"
#include "tests/ui/window_fixture.h"

#include "ui/frame/dialog_size.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/session_form.h"

#include <QDialog>
#include <QHeaderView>
#include <QTableWidget>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

constexpr QSize kRoom(960, 540 - 40); // under a title bar

class SmallDialogs : public WindowTest {
protected:
    static QDialog* shownDialog(MainWindow& window) {
        for (QDialog* dialog : window.findChildren<QDialog*>())
            if (dialog->isVisible()) return dialog;
        return nullptr;
    }
};

TEST(DialogSize, IsWantedWhereTheScreenHasRoomForIt) {
    EXPECT_EQ(sizeInRoom({620, 560}, {1920, 1080}), QSize(620, 560));
    EXPECT_EQ(sizeInRoom({980, 660}, {960, 540}), kRoom);
}

TEST_F(SmallDialogs, HaveRoomForAllThatIsInThem) {
    const auto window = windowOnTrace();
    ASSERT_TRUE(until(
        [&] { return window->form().hasModel() && window->controller().state() == SessionController::State::Idle; }));
    int checked = 0;
    for (const char* name : {"serve", "tune", "calibrate", "sweep", "exportView", "exportFigure"}) {
        SCOPED_TRACE(name);
        trigger(*window, name);
        ASSERT_TRUE(until([&] { return shownDialog(*window) != nullptr; }));
        QDialog& dialog = *shownDialog(*window);
        const QSize least = dialog.minimumSizeHint().expandedTo(dialog.minimumSize());
        EXPECT_LE(least.width(), kRoom.width());
        EXPECT_LE(least.height(), kRoom.height());
        EXPECT_EQ(namelessControls(dialog, checked).join(QStringLiteral("; ")).toStdString(), "");
        dialog.close();
        QCoreApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete);
        ASSERT_TRUE(until([&] { return shownDialog(*window) == nullptr; }));
    }
    EXPECT_GT(checked, 60);
}

TEST_F(SmallDialogs, TuneCutsNoTitleOfAColumn) {
    const auto window = windowOnTrace();
    trigger(*window, "tune");
    QDialog* dialog = shownDialog(*window);
    ASSERT_NE(dialog, nullptr);
    dialog->resize(kRoom);
    QCoreApplication::processEvents();
    const auto* table = dialog->findChild<QTableWidget*>(QStringLiteral("tuneTable"));
    ASSERT_NE(table, nullptr);
    for (int column = 0; column < table->columnCount(); ++column)
        EXPECT_GE(table->columnWidth(column), table->horizontalHeader()->sectionSizeHint(column))
            << table->horizontalHeaderItem(column)->text().toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
