#include "ui/widgets/model_page.h"

#include "ui/models/format.h"
#include "ui/widgets/session_form.h"

#include <QLabel>
#include <QPushButton>
#include <QSpinBox>
#include <QTableWidget>
#include <QTest>
#include <QToolButton>
#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

std::shared_ptr<const Model> embeddedModel() {
    static const std::shared_ptr<const Model> model = Model::load(kDefaultModel);
    return model;
}

TEST(ModelPage, ShowsWhatWasUnderstoodAndTheMemoryOfAChosenContext) {
    ModelPage page;
    page.setModel(embeddedModel());
    const ModelConfig& config = embeddedModel()->config();
    EXPECT_TRUE(page.findChild<QLabel*>("modelTitle")->text().contains(QStringLiteral("nosa-tiny")));
    auto* methodTable = page.findChild<QTableWidget*>("modelMethods");
    ASSERT_EQ(methodTable->rowCount(), int(methods().size()));
    for (int row = 0; row < methodTable->rowCount(); ++row) {
        const MethodEntry& method = methods()[std::size_t(row)];
        EXPECT_EQ(methodTable->item(row, 1)->text(),
                  method.decodesTokens && method.hasIndexer == nullptr ? QStringLiteral("yes") : QStringLiteral("no"))
            << "the embedded model has an eviction head, no indexer, and decodes token by token";
    }
    auto* context = page.findChild<QSpinBox*>("modelContext");
    EXPECT_EQ(context->maximum(), config.maxPositions);
    context->setValue(6400);
    page.findChild<QSpinBox*>("modelBatch")->setValue(3);
    auto* memory = page.findChild<QTableWidget*>("modelMemory");
    // Full attention on the CPU: every block of 64 tokens in float32 and a score per token, on the host.
    const std::int64_t block = 64 * (2 * std::int64_t(config.headDim) + 1) * 4;
    EXPECT_EQ(memory->item(0, 3)->text(), formatBytes(3 * 100 * block * config.layers * config.kvHeads));
    EXPECT_EQ(memory->item(0, 4)->text(), formatBytes(0));
}

TEST(ModelPage, OpensFromTheModelFieldOnceAModelIsThere) {
    SessionForm form;
    auto* button = form.findChild<QToolButton*>("modelDetails");
    ASSERT_NE(button, nullptr);
    EXPECT_FALSE(button->isEnabled());
    form.setModel(QString::fromLatin1(kDefaultModel), embeddedModel());
    form.show();
    EXPECT_TRUE(button->isEnabled());
    QTest::mouseClick(button, Qt::LeftButton);
    auto* page = form.findChild<ModelPage*>();
    ASSERT_NE(page, nullptr);
    EXPECT_TRUE(page->isVisible());
    EXPECT_GT(page->findChild<QTableWidget*>("modelMemory")->rowCount(), 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
