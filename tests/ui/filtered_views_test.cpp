// One filter, the same numbers everywhere: what the views export under it against the trace's own SQL, both the
// statement that a view gives for what it shows and statements written here.
#include "tests/ui/view_fixture.h"

#include "tests/profiler/sql_rows.h"

#include <QComboBox>
#include <QListView>
#include <QPushButton>

#include <cmath>
#include <map>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using Cells = std::map<std::pair<int, QString>, double>; // (row, column) -> value; cells without one are not there

struct FilterCase {
    const char *name, *layers, *heads, *steps, *component, *text;
};

const std::vector<FilterCase> kCases{
    {"everything", "", "", "", "", ""},
    {"layers", "1-2", "", "", "", ""},
    {"heads", "", "1", "", "", ""},
    {"steps", "", "", "3-8, 15-", "", ""},
    {"text", "", "", "", "", "E"},
    {"component", "", "", "", "ffn", ""},
    {"outside", "", "", "", "lm_head", ""},
    {"other", "", "", "4-", "other", ""},
    {"together", "0, 2-3", "0", "2-18", "qkv_linear", "e"},
};

Filter filterOf(const FilterCase& each) {
    Filter filter;
    filter.layers = *IndexSet::fromText(QLatin1String(each.layers));
    filter.kvHeads = *IndexSet::fromText(QLatin1String(each.heads));
    filter.steps = *IndexSet::fromText(QLatin1String(each.steps));
    filter.component = QLatin1String(each.component);
    filter.text = QLatin1String(each.text);
    return filter;
}

class EveryFilter : public ViewTest, public ::testing::WithParamInterface<FilterCase> {
protected:
    void openFiltered(const char* id) {
        open(recorded("a.kvtrace", {.layers = 4, .kvHeads = 2, .decodeSteps = 24, .oracle = true}));
        show(id);
        workspace.setFilter(filterOf(GetParam()));
        settle();
    }
    void settle() {
        ASSERT_TRUE(idle());
        canvas().replot();
    }
    /// Of the view's CSV: the key column and, under their own names, the others.
    Cells csv(int keyColumn, int firstValue) const {
        Cells cells;
        const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
        if (lines.isEmpty()) return cells;
        const QStringList names = lines[0].split(QLatin1Char(','));
        for (const QString& line : lines.mid(1)) {
            const QStringList parts = line.split(QLatin1Char(','));
            for (int i = firstValue; i < parts.size(); ++i)
                if (!parts[i].isEmpty()) cells[{parts[keyColumn].toInt(), names[i]}] = parts[i].toDouble();
        }
        return cells;
    }
    test::SqlRows ask(const QString& statement) const {
        return test::sql(workspace.current()->key.path.toStdString(), statement.toStdString());
    }
    /// The same of the statement: first column is the key, NULL is no value.
    Cells sql(const QString& statement) const {
        Cells cells;
        const test::SqlRows found = ask(statement);
        for (const auto& row : found.rows)
            for (std::size_t i = 1; i < row.size(); ++i)
                if (row[i] != "NULL")
                    cells[{std::stoi(row[0]), QString::fromStdString(found.columns[i])}] = std::stod(row[i]);
        return cells;
    }
    /// tolerance: relative, of what a float keeps.
    static void expectSame(const Cells& shown, const Cells& expected, double tolerance = 2e-7) {
        for (const auto& [key, value] : expected) {
            const auto found = shown.find(key);
            if (found == shown.end())
                ADD_FAILURE() << key.first << ", " << key.second.toStdString() << " is not shown";
            else
                EXPECT_NEAR(found->second, value, tolerance * std::abs(value))
                    << key.first << ", " << key.second.toStdString();
        }
        for (const auto& [key, value] : shown)
            EXPECT_TRUE(expected.contains(key))
                << key.first << ", " << key.second.toStdString() << " = " << value << " is shown, but not in the trace";
    }
};

TEST_P(EveryFilter, TransfersShowWhatTheirSqlSays) {
    openFiltered("transfers");
    if (!plot().emptyText().isEmpty()) GTEST_FAIL() << plot().emptyText().toStdString();
    const Cells shown = csv(1, 2), expected = sql(view->sql());
    expectSame(shown, expected);
    EXPECT_FALSE(shown.empty());
}

TEST_P(EveryFilter, LocalityShowsWhatItsSqlSays) {
    openFiltered("locality");
    auto& metric = child<QComboBox>("metric");
    for (int i = 0; i < metric.count(); ++i) {
        metric.setCurrentIndex(i);
        settle();
        SCOPED_TRACE(metric.currentText().toStdString());
        const bool time =
            metric.currentData() == QStringLiteral("layer_time") || metric.currentData() == QStringLiteral("exposed");
        if (!plot().emptyText().isEmpty()) continue; // the page says why the metric is undefined here
        Cells expected;
        for (const auto& row : ask(view->sql()).rows)
            if (row[2] != "NULL")
                expected[{std::stoi(row[0]), QStringLiteral("layer %1").arg(row[1].c_str())}] =
                    std::stod(row[2]) * (time ? 1000 : 1); // the view speaks of nanoseconds, the statement of us
        expectSame(csv(0, 1), expected);
        EXPECT_FALSE(expected.empty());
    }
    metric.setCurrentIndex(0);
    child<QComboBox>("rows").setCurrentIndex(2); // KV heads of a layer
    workspace.setCursor({.layer = 2});
    settle();
    if (!plot().emptyText().isEmpty()) {
        EXPECT_FALSE(workspace.filter().hasLayer(2));
        return;
    }
    Cells expected;
    for (const auto& row : ask(view->sql()).rows)
        if (row[3] != "NULL")
            expected[{std::stoi(row[0]), QStringLiteral("KV head %1").arg(row[2].c_str())}] = std::stod(row[3]);
    expectSame(csv(0, 1), expected);
}

TEST_P(EveryFilter, BreakdownPerStepShowsWhatItsSqlSays) {
    openFiltered("breakdown");
    Cells shown = csv(1, 2);
    if (plot().emptyText().isEmpty()) {
        const Cells expected = sql(view->sql());
        // The statement gives stages of layers only, so that other components are left out.
        for (auto cell = shown.begin(); cell != shown.end();) {
            const bool there = std::any_of(expected.begin(), expected.end(),
                                           [&](const auto& other) { return other.first.second == cell->first.second; });
            cell = there ? std::next(cell) : shown.erase(cell);
        }
        expectSame(shown, expected);
        EXPECT_FALSE(expected.empty());
    } else {
        EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("passes the filter")));
    }
}

TEST_P(EveryFilter, BreakdownSumsShowWhatTheirSqlSays) {
    openFiltered("breakdown");
    child<QComboBox>("mode").setCurrentIndex(2);
    settle();
    if (!plot().emptyText().isEmpty()) return;
    std::map<std::string, std::string> shown, expected; // phase,layer,component -> calls,ns
    for (const QString& line : view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts).mid(1)) {
        const QStringList p = line.split(QLatin1Char(','));
        shown[(p[1] + ',' + p[2] + ',' + p[3]).toStdString()] = (p[4] + ',' + p[5]).toStdString();
    }
    for (const auto& row : ask(view->sql()).rows)
        expected[row[0] + ',' + row[1] + ',' + row[2]] = row[3] + ',' + row[4];
    EXPECT_EQ(shown, expected);
    EXPECT_FALSE(expected.empty());
}

INSTANTIATE_TEST_SUITE_P(Filters, EveryFilter, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(ViewTest, TransfersOfSomeHeadsAndWordsAgainstSqlWrittenByHand) {
    open(recorded("a.kvtrace", {}));
    show("transfers");
    Filter filter;
    filter.kvHeads = *IndexSet::fromText(QStringLiteral("1"));
    filter.layers = *IndexSet::fromText(QStringLiteral("1-2"));
    filter.text = QStringLiteral("Needle");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    const auto rows = test::sql(file("a.kvtrace").toStdString(),
                                "SELECT step, sum(hits), sum(misses), sum(misses) * 8192 FROM v_locality"
                                " WHERE run_id = 1 AND layer IN (1, 2) AND kv_head = 1 AND step > 0 AND step IN"
                                " (SELECT step FROM v_token WHERE text LIKE '%needle%') GROUP BY step ORDER BY step")
                          .rows;
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts).mid(1);
    ASSERT_EQ(lines.size(), qsizetype(rows.size()));
    ASSERT_GT(rows.size(), 0u);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const QStringList cells = lines[qsizetype(i)].split(QLatin1Char(','));
        for (int column = 0; column < 4; ++column)
            EXPECT_EQ(cells[1 + column].toStdString(), rows[i][std::size_t(column)]);
        for (int column = 5; column < 8; ++column)
            EXPECT_EQ(cells[column], QString()) << "not recorded for single heads";
    }
    EXPECT_TRUE(plot().noteText().startsWith(QStringLiteral("Filtered: layers 1-2, KV heads 1, text “Needle”.")))
        << plot().noteText().toStdString();
}

TEST_F(ViewTest, SelectionKeepsTheBlocksThatHoldTheText) {
    open(recorded("a.kvtrace", {}));
    show("selection");
    workspace.setCursor({.layer = 1});
    ASSERT_TRUE(idle());
    const auto blocksOf = [&] {
        std::map<int, int> counts;
        for (const QString& line : view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts).mid(1))
            ++counts[line.split(QLatin1Char(','))[4].toInt()];
        return counts;
    };
    const auto all = blocksOf();
    const TraceReader reader(file("a.kvtrace").toStdString());
    const std::string word = "needle";
    std::map<int, int> expected; // by the text of each block and its neighbours' joined text
    const auto found = blocksWithText(reader, 1, 0, word);
    for (const auto& [block, count] : all)
        if (found[std::size_t(block)]) expected[block] = count;
    Filter filter;
    filter.text = QStringLiteral("NEEDLE");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_EQ(blocksOf(), expected);
    for (const auto& [block, count] : all)
        if (reader.blockText(1, 0, block).find(word) != std::string::npos) {
            EXPECT_TRUE(expected.contains(block)) << block;
        }
    filter.text = QStringLiteral("nothing says this");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Nothing passes the filter")));
    child<QPushButton>("emptyAction0").click(); // clears it
    ASSERT_TRUE(idle());
    EXPECT_TRUE(workspace.filter().empty());
    EXPECT_EQ(blocksOf(), all);
}

TEST_F(ViewTest, SelectionLeadsToALayerThatTheFilterKeeps) {
    open(recorded("a.kvtrace", {}));
    show("selection");
    Filter filter;
    filter.layers = *IndexSet::fromText(QStringLiteral("2-3"));
    filter.kvHeads = *IndexSet::fromText(QStringLiteral("1"));
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Layer 0, KV head 0 is left out by the filter")))
        << plot().emptyText().toStdString();
    child<QPushButton>("emptyAction0").click();
    ASSERT_TRUE(idle());
    EXPECT_EQ(workspace.cursor().layer, 2);
    EXPECT_EQ(workspace.cursor().kvHead, 1);
    EXPECT_EQ(plot().emptyText(), QString());
    EXPECT_FALSE(view->exportCsv().isEmpty());
}

TEST_F(ViewTest, InsightsAreFoundByTheirWordsAndShowTheLayersOfTheFilter) {
    open(recorded("a.kvtrace", {}));
    show("insights");
    auto& cards = *view->findChild<QListView*>();
    const int all = cards.model()->rowCount();
    ASSERT_GT(all, 0);
    const auto layers = [&] {
        std::set<QString> found;
        for (const QString& line : view->exportCsv().split(QLatin1Char('\n')))
            if (line.startsWith(QStringLiteral("layer,"))) found.insert(line.split(QLatin1Char(','))[5]);
        return found;
    };
    EXPECT_EQ(layers().size(), 4u);
    const QString title = cards.model()->index(0, 0).data().toString();
    Filter filter;
    filter.layers = *IndexSet::fromText(QStringLiteral("1-2"));
    filter.text = QStringLiteral("no finding says this");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_EQ(layers(), (std::set<QString>{"1", "2"}));
    EXPECT_EQ(cards.model()->rowCount(), 0);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("not shown: %1.").arg(all)))
        << plot().noteText().toStdString();
    filter.text = title.left(12).toUpper();
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    ASSERT_GE(cards.model()->rowCount(), 1);
    EXPECT_EQ(cards.model()->index(0, 0).data().toString(), title);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
