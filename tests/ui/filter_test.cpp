#include "ui/frame/filter.h"
#include "ui/frame/workspace.h"

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(IndexSet, ReadsRangesAndWritesThemInOrder) {
    const auto set = IndexSet::fromText(QStringLiteral(" 7, 0-3 ,2-4,12-"));
    ASSERT_TRUE(set);
    EXPECT_EQ(set->text(), QStringLiteral("0-4, 7, 12-"));
    EXPECT_EQ(set->of(15), (std::vector<int>{0, 1, 2, 3, 4, 7, 12, 13, 14}));
    EXPECT_TRUE(set->contains(1'000'000));
    EXPECT_FALSE(set->contains(11));
    EXPECT_EQ(IndexSet::fromText(QStringLiteral("3,4")), IndexSet::fromText(QStringLiteral("3-4")));
    EXPECT_EQ(IndexSet::fromText(QStringLiteral("5-, 9"))->text(), QStringLiteral("5-"));
}

TEST(IndexSet, WithoutAnyRangeHoldsEverything) {
    const auto set = IndexSet::fromText(QStringLiteral("  "));
    ASSERT_TRUE(set);
    EXPECT_TRUE(set->all());
    EXPECT_TRUE(set->contains(17));
    EXPECT_EQ(set->of(3), (std::vector<int>{0, 1, 2}));
}

TEST(IndexSet, RefusesWhatIsNoRange) {
    for (const char* text : {"a", "3-1", "-2", "1-2-3", "1.5", "99999999999", "1-x"})
        EXPECT_FALSE(IndexSet::fromText(QString::fromLatin1(text))) << text;
}

TEST(SharedFilter, TellsEveryViewOnceWhenItChanges) {
    Workspace workspace;
    int changes = 0;
    QObject::connect(&workspace, &Workspace::filterChanged, [&] { ++changes; });
    Filter filter;
    EXPECT_TRUE(workspace.filter().empty());
    filter.layers = *IndexSet::fromText(QStringLiteral("1-2"));
    filter.text = QStringLiteral("Needle");
    workspace.setFilter(filter);
    workspace.setFilter(filter);
    EXPECT_EQ(changes, 1);
    EXPECT_TRUE(workspace.filter().hasLayer(2));
    EXPECT_FALSE(workspace.filter().hasLayer(0));
    EXPECT_TRUE(workspace.filter().hasText(QStringLiteral("a needle here")));
    EXPECT_FALSE(workspace.filter().hasText(QStringLiteral("hay")));
    workspace.setFilter({});
    EXPECT_EQ(changes, 2);
}

TEST(SharedFilter, AViewSaysWhatItAppliesAndWhatNot) {
    Filter filter;
    EXPECT_EQ(filterNote(filter, FilterLayers), QString());
    filter.layers = *IndexSet::fromText(QStringLiteral("0-3"));
    filter.component = QStringLiteral("stage1");
    EXPECT_EQ(filterNote(filter, FilterLayers | FilterSteps),
              QStringLiteral("Filtered: layers 0-3. Not filtered here: component stage1."));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
