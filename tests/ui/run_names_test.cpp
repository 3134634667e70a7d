// How runs of the same name are told apart.
#include "tests/ui/view_fixture.h"

#include "ui/frame/run_names.h"
#include "ui/models/run_list_model.h"

#include <QDateTime>
#include <QSet>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

OpenRun runOf(const QString& path, const std::string& name, const std::string& parameters,
              const std::string& created = "2026-01-02T03:04:05Z") {
    OpenRun run;
    run.key = {path, 1};
    run.row.runId = 1;
    run.row.name = name;
    run.row.method = "nosa";
    run.row.paramsJson = parameters;
    run.row.createdUtc = created;
    return run;
}

TEST(RunNames, StayAsTheyAreWhileTheyDiffer) {
    const std::vector<OpenRun> open{runOf("/a.kvtrace", "needle", R"({"k_q":4})"),
                                    runOf("/b.kvtrace", "story", R"({"k_q":8})"), runOf("/c.kvtrace", "", "{}")};
    EXPECT_EQ(runName(open[0], open), QStringLiteral("needle"));
    EXPECT_EQ(runName(open[1], open), QStringLiteral("story"));
    EXPECT_EQ(runName(open[2], open), QStringLiteral("c.kvtrace")) << "a run without a name has its file's";
}

TEST(RunNames, SayWhatWasSetToSomethingElse) {
    std::vector<OpenRun> open{runOf("/a.kvtrace", "needle", R"({"k_q":4,"window":2})"),
                              runOf("/b.kvtrace", "needle", R"({"k_q":8,"window":2})"),
                              runOf("/c.kvtrace", "needle", R"({"k_q":8,"window":2})")};
    open[2].row.method = "quest";
    EXPECT_EQ(runName(open[0], open), QStringLiteral("needle · k_q 4, nosa"));
    EXPECT_EQ(runName(open[2], open), QStringLiteral("needle · quest, k_q 8"));
    QSet<QString> names;
    for (const OpenRun& run : open) names << runName(run, open);
    EXPECT_EQ(names.size(), 3);
}

TEST(RunNames, HaveSettingsInWords) {
    const std::vector<OpenRun> open{
        runOf("/a.kvtrace", "needle", R"({"total_blocks":12,"sink_blocks":1,"offload":true})"),
        runOf("/b.kvtrace", "needle", R"({"total_blocks":16,"sink_blocks":2,"offload":false})")};
    EXPECT_EQ(runName(open[0], open), QStringLiteral("needle · offload on, 1 sink block, 12 total blocks"));
    EXPECT_EQ(runName(open[1], open), QStringLiteral("needle · offload off, 2 sink blocks, 16 total blocks"));
    EXPECT_EQ(settingsText(open[0].row), QStringLiteral("offload on, 1 sink block, 12 total blocks"));
}

/// Older programs recorded fewer settings. "ahead -" said that something was set to nothing.
TEST(RunNames, LeaveOutSettingsThatARunDoesNotHave) {
    std::vector<OpenRun> open{runOf("/a.kvtrace", "needle", R"({"k_q":4,"ahead":"none"})"),
                              runOf("/b.kvtrace", "needle", R"({"k_q":4})"),
                              runOf("/c.kvtrace", "needle", R"({"k_q":8})")};
    EXPECT_EQ(runName(open[0], open), QStringLiteral("needle · ahead none, k_q 4"));
    EXPECT_EQ(runName(open[1], open), QStringLiteral("needle · k_q 4"));
    open.pop_back();
    EXPECT_EQ(runName(open[0], open), QStringLiteral("needle · ahead none"));
    EXPECT_EQ(runName(open[1], open), QStringLiteral("needle"));
}

TEST(RunNames, OfRepeatsSayWhenAndOfCopiesWhichFile) {
    std::vector<OpenRun> open{runOf("/a.kvtrace", "needle", "{}"),
                              runOf("/b.kvtrace", "needle", "{}", "2026-01-02T03:09:11Z")};
    for (const OpenRun& run : open) {
        const QString at = QDateTime::fromString(QString::fromStdString(run.row.createdUtc), Qt::ISODate)
                               .toLocalTime()
                               .toString(QStringLiteral("hh:mm:ss"));
        EXPECT_EQ(runName(run, open), QStringLiteral("needle · ") + at);
    }
    open[1].row.createdUtc = open[0].row.createdUtc;
    EXPECT_TRUE(runName(open[0], open).endsWith(QStringLiteral("a.kvtrace"))) << runName(open[0], open).toStdString();
    open[1].key = {"/a.kvtrace", 2};
    EXPECT_NE(runName(open[0], open), runName(open[1], open));
}

class RunListNames : public ViewTest {};

TEST_F(RunListNames, ListLettersAndTooltipsAreThoseOfTheComparison) {
    for (const char* name : {"a.kvtrace", "b.kvtrace", "c.kvtrace"})
        open(recorded(name, {.decodeSteps = 4, .window = *name - 'a' + 2}));
    RunListModel model(workspace);
    workspace.setCurrent(workspace.runs()[0].key);
    workspace.setCompared(workspace.runs()[2].key, true);
    workspace.setCompared(workspace.runs()[1].key, true);
    const int places[] = {0, 2, 1};
    QSet<QString> names;
    for (int row = 0; row < 3; ++row) {
        const QModelIndex index = model.index(row);
        EXPECT_EQ(index.data(RunListModel::PlaceRole).toInt(), places[row]);
        names << index.data().toString();
        EXPECT_TRUE(index.data().toString().contains(QStringLiteral("window %1").arg(row + 2)))
            << index.data().toString().toStdString();
        EXPECT_TRUE(
            index.data(Qt::ToolTipRole).toString().startsWith(letteredName(std::size_t(places[row]), workspace)));
        EXPECT_TRUE(index.data(Qt::ToolTipRole).toString().contains(QStringLiteral("nosa: window %1").arg(row + 2)));
    }
    EXPECT_EQ(names.size(), 3);
    EXPECT_NE(runColour(0), runColour(1));
    EXPECT_NE(runColour(1), runColour(2));
    EXPECT_NE(runColour(2), runColour(3));
    workspace.setCompared(workspace.runs()[2].key, false);
    EXPECT_FALSE(model.index(2).data(RunListModel::PlaceRole).isValid());
    EXPECT_EQ(model.index(1).data(RunListModel::PlaceRole).toInt(), 1);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
