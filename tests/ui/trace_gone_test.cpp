// The file of a run that is shown is deleted, cut or written over: every view goes on or says so, and none crashes.
#include "tests/ui/window_fixture.h"

#include "ui/frame/view.h"

#include <QFile>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TraceGone : public WindowTest {
protected:
    /// Visits all views, with a step and a layer that they have not shown before.
    static void visit(MainWindow& window) {
        int step = 0;
        for (const ViewEntry& entry : views()) {
            SCOPED_TRACE(entry.id);
            window.showView(QLatin1String(entry.id));
            window.workspace().setCursor({.step = ++step % 8, .layer = step % 2});
            settle(window);
            ASSERT_TRUE(window.workspace().current());
        }
    }
    QString path() const { return folder.filePath("small.kvtrace"); }
};

TEST_F(TraceGone, ADeletedTraceIsShownAsItWas) {
    const auto window = windowOnTrace();
    const std::string name = window->workspace().current()->row.name;
    ASSERT_TRUE(QFile::remove(path()));
    visit(*window);
    EXPECT_EQ(window->workspace().current()->row.name, name);
}

TEST_F(TraceGone, ATraceThatIsCutToNothingEndsNoView) {
    const auto window = windowOnTrace();
    ASSERT_TRUE(QFile::resize(path(), 5000));
    visit(*window);
}

TEST_F(TraceGone, ATraceThatIsWrittenOverEndsNoView) {
    const auto window = windowOnTrace();
    QFile file(path());
    ASSERT_TRUE(file.open(QIODevice::ReadWrite));
    file.write(QByteArray(int(file.size()), 'x'));
    file.close();
    visit(*window);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
