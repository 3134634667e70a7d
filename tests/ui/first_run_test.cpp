// The first run of somebody new: the prompt that the form has by itself is short, its question is answered, and while
// it is read the middle of the window says how far it is.
#include "core/model/model.h"
#include "core/prompt/prompts.h"
#include "tests/ui/window_fixture.h"

#include "ui/session/session_controller.h"
#include "ui/widgets/prompt_progress.h"
#include "ui/widgets/session_form.h"

#include <QLabel>
#include <QPushButton>
#include <QSignalSpy>
#include <QSpinBox>
#include <QToolButton>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class FirstRun : public WindowTest {
protected:
    static bool ready(MainWindow& window) {
        return until([&] {
            return window.form().problem().isEmpty() && window.controller().state() == SessionController::State::Idle;
        });
    }
};

TEST_F(FirstRun, HasAShortPromptAndTheLongOneIsAClickAway) {
    const auto window = makeWindow();
    auto* tokens = window->form().findChild<QSpinBox*>(QStringLiteral("needleTokens"));
    ASSERT_NE(tokens, nullptr);
    EXPECT_LE(tokens->value(), 3000);
    auto* longer = window->form().findChild<QToolButton*>(QStringLiteral("longNeedle"));
    ASSERT_NE(longer, nullptr);
    QTest::mouseClick(longer, Qt::LeftButton);
    EXPECT_EQ(tokens->value(), 9000);
}

TEST_F(FirstRun, AnswersTheQuestionOfItsOwnPrompt) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window)) << window->form().problem().toStdString();
    const SessionRequest request = window->form().request();
    ASSERT_TRUE(request.source);
    const std::shared_ptr<const Model> model = window->controller().model();
    const NeedlePrompt prompt = makeNeedlePrompt(model->tokenizer(), request.source->needle);
    // Neither in the first block nor among the last ones, which every query attends to: it has to be chosen.
    EXPECT_GT(prompt.needleToken, 10 * 64);
    EXPECT_LT(prompt.needleToken, request.source->needle.tokens - 10 * 64);
    window->form().findChild<QSpinBox*>(QStringLiteral("maxNewTokens"))->setValue(8);
    QSignalSpy finished(&window->controller(), &SessionController::finished);
    const auto* card = window->findChild<PromptProgress*>();
    ASSERT_NE(card, nullptr);
    EXPECT_FALSE(card->isVisible());
    window->action("run")->trigger();
    QStringList titles, covered;
    const auto place = [](const QWidget& widget) { return QRect(widget.mapToGlobal(QPoint(0, 0)), widget.size()); };
    ASSERT_TRUE(until([&] {
        if (card->isVisible())
            for (const QPushButton* button : window->currentView()->findChildren<QPushButton*>())
                if (button->isVisible() && place(*button).intersects(place(*card))) covered << button->text();
        if (card->isVisible()) titles << card->findChild<QLabel*>(QStringLiteral("promptProgressTitle"))->text();
        return !finished.isEmpty();
    }));
    EXPECT_TRUE(finished[0][0].toBool());
    EXPECT_FALSE(card->isVisible());
    EXPECT_EQ(covered.join(QStringLiteral(", ")).toStdString(), "") << "the card lies over what can be pressed";
    EXPECT_FALSE(titles.filter(QStringLiteral("Reading the prompt")).isEmpty()) << "it was seen while it was read";
    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.current() && workspace.current()->row.status == RunStatus::Finished; }));
    std::string said;
    for (const TokenRow& token : TraceReader(workspace.current()->key.path.toStdString()).tokens(1, 0))
        said += token.bytes;
    EXPECT_EQ(said.substr(0, prompt.answer.size()), prompt.answer) << said;
}

TEST(PromptProgressTest, SaysTheLayerTheShareAndTheTime) {
    EXPECT_EQ(PromptProgress::textOf(0.41, 8, 1), QStringLiteral("Reading the prompt: layer 4 of 8, 41 %"));
    EXPECT_EQ(PromptProgress::textOf(0.75, 8, 2), QStringLiteral("Reading prompt 2 of 2: layer 5 of 8, 75 %"));
    EXPECT_EQ(PromptProgress::textOf(0, 8, 1), QStringLiteral("Reading the prompt: layer 1 of 8, 0 %"));
    EXPECT_EQ(PromptProgress::textOf(1, 8, 1), QStringLiteral("Reading the prompt: 100 %"));
    EXPECT_EQ(PromptProgress::textOf(0.5, 0, 0), QStringLiteral("Reading the prompt: 50 %"));
    EXPECT_EQ(PromptProgress::leftOf(0.5, 100), QString()) << "too early to tell";
    EXPECT_EQ(PromptProgress::leftOf(0.25, 2000), QStringLiteral("about 6 s left"));
    EXPECT_EQ(PromptProgress::leftOf(0.9, 2000), QStringLiteral("less than a second left"));
    EXPECT_EQ(PromptProgress::leftOf(0.1, 60'000), QStringLiteral("about 9 min left"));
}

TEST_F(FirstRun, TheCardStaysUnderWhatStandsInTheMiddle) {
    QWidget parent;
    parent.resize(900, 600);
    parent.show();
    PromptProgress card(&parent);
    card.showReading(0.3, 8, 1);
    EXPECT_TRUE(card.isVisible());
    EXPECT_NEAR(card.geometry().center().x(), 450, 2);
    EXPECT_GE(card.geometry().top(), 400) << "under words and buttons in the middle";
    EXPECT_TRUE(parent.rect().contains(card.geometry()));
    parent.resize(500, 300);
    QCoreApplication::processEvents();
    EXPECT_NEAR(card.geometry().center().x(), 250, 2);
    EXPECT_TRUE(parent.rect().contains(card.geometry()));
    card.end();
    EXPECT_FALSE(card.isVisible());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
