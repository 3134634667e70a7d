// docs/adding-a-view.md prints a view that compiles, reads a run, and shows and exports what it says.
#include "tests/ui/view_fixture.h"

#include "tests/support/places.h"

#include <fstream>
#include <sstream>

namespace kvscope::ui {

View* makeMissesView(Workspace& workspace, QWidget* parent);

namespace KVSCOPE_TEST_FILE {

std::string contents(const std::string& path) {
    std::ifstream file(test::source(path));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

class ExampleView : public ViewTest {
protected:
    void showExample() {
        view.reset(makeMissesView(workspace, nullptr));
        view->resize(1000, 640);
        view->show();
        ASSERT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        ASSERT_TRUE(idle());
    }
};

TEST_F(ExampleView, IsPrintedInTheGuideAsItIsCompiled) {
    const std::string code = contents("tests/ui/example_view.cpp");
    ASSERT_FALSE(code.empty());
    EXPECT_NE(contents("docs/adding-a-view.md").find(code), std::string::npos)
        << "copy tests/ui/example_view.cpp into docs/adding-a-view.md";
}

TEST_F(ExampleView, ShowsTheMissesOfEveryDecodeStep) {
    open(recorded("a.kvtrace", {}));
    showExample();
    QString wanted = QStringLiteral("step,misses\n");
    const auto steps = TraceReader(workspace.current()->key.path.toStdString()).steps(1);
    for (const StepRow& row : steps)
        if (row.phase == Phase::Decode) wanted += QStringLiteral("%1,%2\n").arg(row.step).arg(row.misses);
    EXPECT_EQ(wanted.count(QLatin1Char('\n')), 21);
    EXPECT_EQ(view->exportCsv(), wanted);
    EXPECT_EQ(plot().emptyText(), QString());
    click(7, 0);
    EXPECT_EQ(workspace.cursor().step, 7);
}

TEST_F(ExampleView, SaysSoWhereThereIsNothingToShow) {
    showExample();
    EXPECT_FALSE(plot().emptyText().isEmpty()) << "no run is open";
    EXPECT_EQ(view->exportCsv(), QString());
    open(recorded("b.kvtrace", {.decodeSteps = 0}));
    EXPECT_TRUE(waitFor([&] { return plot().emptyText().contains(QStringLiteral("No decode step")); }))
        << plot().emptyText().toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
