// One QApplication for all tests of the desktop, on a platform without a screen, away from the person's settings.
#include "ui/frame/background_thread.h"
#include "ui/look/theme.h"

#include <QApplication>
#include <QStandardPaths>
#include <QTemporaryDir>

#include <gtest/gtest.h>

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    if (qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
    const QTemporaryDir home; // settings, runtime folder and traces of the tests
    for (const char* name : {"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"})
        qputenv(name, home.path().toLocal8Bit());
    QStandardPaths::setTestModeEnabled(true);
    QApplication app(argc, argv);
    QCoreApplication::setApplicationName(QStringLiteral("kvscope-tests"));
    QCoreApplication::setOrganizationName(QStringLiteral("kvscope-tests"));
    QApplication::setCursorFlashTime(0);
    kvscope::ui::letBackgroundThreadsYield(); // as the desktop does
    kvscope::ui::Theme::apply(app, kvscope::ui::Theme::light());
    return RUN_ALL_TESTS();
}
