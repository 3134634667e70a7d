// A table of facts takes room for the facts that it shows, and for none else.
#include "ui/frame/fact_table.h"

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(FactTableTest, WithoutAFactTakesNoRoom) {
    QWidget window;
    auto* table = new FactTable(&window);
    {
        const FactTable::Update update(table);
        table->set(QStringLiteral("Step"), QStringLiteral("3"));
        table->set(QStringLiteral("Hits"), QStringLiteral("14 of 16"));
    }
    EXPECT_FALSE(table->isHidden());
    {
        const FactTable::Update update(table);
        table->set(QStringLiteral("Hits"), {});
    }
    EXPECT_TRUE(table->isHidden()) << "a message stands in its place";
    {
        const FactTable::Update update(table);
        table->set(QStringLiteral("Hits"), QStringLiteral("2 of 16"));
    }
    EXPECT_FALSE(table->isHidden());
    EXPECT_EQ(table->value(QStringLiteral("Hits")), QStringLiteral("2 of 16"));
    EXPECT_EQ(table->value(QStringLiteral("Step")), QString());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
