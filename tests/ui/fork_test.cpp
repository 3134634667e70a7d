// A recorded run is forked from the desktop: the dialog asks, the fork runs live beside the recorded run, and what
// cannot be forked says why.
#include "tests/ui/window_fixture.h"

#include "core/model/model.h"
#include "core/trace/needles.h"
#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/renumbered_step.h"
#include "tests/profiler/sql_rows.h"
#include "ui/frame/small_widgets.h"
#include "ui/session/session_controller.h"
#include "ui/views/needle_lanes.h"
#include "ui/widgets/fork_dialog.h"
#include "ui/widgets/token_strip.h"

#include <QCheckBox>
#include <QComboBox>
#include <QLabel>
#include <QSpinBox>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

constexpr int kTokens = 10, kPrompt = 600;

class ForkFromTheWindow : public WindowTest {
protected:
    QString recorded(const QString& name, double temperature) {
        static const std::shared_ptr<const Model> model = Model::load(kDefaultModel);
        const QString path = folder.filePath(name);
        std::vector<std::int32_t> ids;
        for (int i = 0; i < kPrompt; ++i) ids.push_back(5 + (i * 7) % 900);
        SessionOptions options;
        options.method = "infllmv2";
        options.settings = {{"total_blocks", "6"}, {"window_blocks", "2"}};
        options.maxNewTokens = kTokens;
        options.stopAtEos = false;
        options.sampling.temperature = temperature;
        options.sampling.seed = 3;
        options.meta = {
            {run_meta::kNeedles, needlesJson(std::vector<NeedlePlace>{{0, 200, 12, "silver lantern", "73398", true}})}};
        Recorder recorder(path.toStdString(), {});
        DecodeSession session(model, {ids}, options, recorder);
        session.prefill();
        while (session.step()) {
        }
        session.end(RunStatus::Finished);
        recorder.flush();
        return path;
    }
    std::unique_ptr<MainWindow> windowOn(const QString& path) {
        auto window = makeWindow();
        window->openFiles({path});
        EXPECT_TRUE(until([&] {
            return window->workspace().current() && window->workspace().idle() && window->controller().model() &&
                   window->controller().state() == SessionController::State::Idle;
        }));
        return window;
    }
    static std::vector<std::int32_t> tokensOf(const RunKey& key) {
        std::vector<std::int32_t> ids;
        for (const TokenRow& token : TraceReader(key.path.toStdString()).tokens(key.runId, 0)) ids.push_back(token.id);
        return ids;
    }
    /// Opens the dialog at a step of the shown run.
    static ForkDialog* dialogAt(MainWindow& window, int step) {
        Cursor cursor = window.workspace().cursor();
        cursor.step = step;
        window.workspace().setCursor(cursor);
        trigger(window, "fork");
        return window.findChild<ForkDialog*>();
    }
    static void finish(MainWindow& window) {
        ASSERT_TRUE(until([&] { return window.workspace().runs().size() == 2; })) << "a run was recorded";
        ASSERT_TRUE(until([&] {
            return window.controller().state() == SessionController::State::Idle && window.workspace().idle() &&
                   window.workspace().current()->row.status != RunStatus::Running; // its end was read
        }));
    }
};

TEST_F(ForkFromTheWindow, WithNothingChangedWritesTheSameTokensBesideTheRecordedRun) {
    const QString path = recorded("first.kvtrace", 0.8);
    const auto window = windowOn(path);
    ASSERT_TRUE(window->action("fork")->isEnabled()) << window->action("fork")->toolTip().toStdString();
    ForkDialog* dialog = dialogAt(*window, 4);
    ASSERT_NE(dialog, nullptr);
    EXPECT_EQ(dialog->findChild<QSpinBox*>("forkStep")->value(), 4);
    EXPECT_EQ(dialog->findChild<QComboBox*>("forkMethod")->currentData().toString(), "infllmv2");
    const ForkRequest request = dialog->request();
    EXPECT_TRUE(request.change.settings.empty());
    EXPECT_FALSE(request.change.method || request.change.maxNewTokens || request.change.deviceKvBlocks);
    dialog->accept();
    finish(*window);
    const OpenRun* fork = window->workspace().current();
    ASSERT_NE(window->workspace().compare(), nullptr);
    EXPECT_EQ(window->workspace().compare()->key.path, path);
    EXPECT_NE(fork->key.path, path);
    EXPECT_EQ(tokensOf(fork->key), tokensOf({path, 1}));
    EXPECT_EQ(fork->row.name, "fork at 4: unchanged");
    EXPECT_FALSE(fork->row.metaOr(run_meta::kFork).empty());
}

TEST_F(ForkFromTheWindow, TheDialogSaysWhatCannotBeAndStaysOpen) {
    const QString path = recorded("first.kvtrace", 0);
    const auto window = windowOn(path);
    ForkDialog* dialog = dialogAt(*window, 3);
    ASSERT_NE(dialog, nullptr);
    auto* blocks = dialog->findChild<QSpinBox*>("param_total_blocks");
    const int before = blocks->value();
    const auto* message = dialog->findChild<InlineMessage*>("forkMessage");
    EXPECT_FALSE(message->isVisible());
    blocks->setValue(2);
    dialog->accept();
    EXPECT_TRUE(dialog->isVisible());
    EXPECT_TRUE(message->isVisible());
    EXPECT_TRUE(message->text().startsWith(QStringLiteral("Total blocks 2"))) << message->text().toStdString();
    EXPECT_FALSE(message->text().contains(QLatin1Char('_'))) << message->text().toStdString();
    blocks->setValue(before);
    dialog->findChild<QSpinBox*>("forkTokens")->setValue(3);
    dialog->accept();
    EXPECT_TRUE(dialog->isVisible());
    EXPECT_TRUE(message->text().contains(QStringLiteral("at least 4"))) << message->text().toStdString();
    EXPECT_FALSE(window->controller().isActive());
    dialog->reject();
}

TEST_F(ForkFromTheWindow, ChangesWhatTheDialogSays) {
    const QString path = recorded("first.kvtrace", 0);
    const auto window = windowOn(path);
    ForkDialog* dialog = dialogAt(*window, 3);
    ASSERT_NE(dialog, nullptr);
    dialog->findChild<QSpinBox*>("param_total_blocks")->setValue(4);
    dialog->findChild<QSpinBox*>("forkTokens")->setValue(7);
    dialog->findChild<QCheckBox*>("forkWithout")->setChecked(true);
    dialog->findChild<QSpinBox*>("forkBlock")->setValue(3);
    dialog->accept();
    finish(*window);
    const OpenRun* fork = window->workspace().current();
    EXPECT_EQ(fork->row.name, "fork at 3: 4 total blocks, 7 new tokens, without block 3");
    const auto before = tokensOf({path, 1}), after = tokensOf(fork->key);
    ASSERT_EQ(after.size(), 7U);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + 3, after.begin()));
    TraceReader reader(fork->key.path.toStdString());
    for (int layer = 0; layer < fork->row.layers; ++layer)
        for (const SelectionRow& row : reader.selections(1, layer, 0, 0, 3))
            EXPECT_EQ(findBlock(row.blocks, 3), nullptr) << "step " << row.step;
}

TEST_F(ForkFromTheWindow, SaysWhyARunCannotBeForked) {
    const QString path = recorded("first.kvtrace", 0);
    test::sql(path.toStdString(), "UPDATE run_meta SET value = 'vllm' WHERE key = 'engine'", SQLITE_OPEN_READWRITE);
    const auto window = windowOn(path);
    EXPECT_FALSE(window->action("fork")->isEnabled());
    EXPECT_TRUE(window->action("fork")->toolTip().contains("was recorded by vllm"));
}

/// In the moment in which a short session ends its row may not have been read: it said that the method '' is not known.
TEST_F(ForkFromTheWindow, ARunWhoseRowWasNotReadIsNotJudged) {
    const auto window = makeWindow();
    const RunKey key{folder.filePath("not-there-yet.kvtrace"), 1};
    window->workspace().addLive(key);
    window->workspace().finishLive(key);
    for (const char* name : {"fork", "again"}) {
        EXPECT_FALSE(window->action(name)->isEnabled()) << name;
        EXPECT_TRUE(window->action(name)->toolTip().contains("This run is still being read."))
            << window->action(name)->toolTip().toStdString();
    }
}

TEST_F(ForkFromTheWindow, TokensThatDoNotComeOutAgainEndTheFork) {
    const QString path = recorded("first.kvtrace", 0);
    test::sql(path.toStdString(), "UPDATE token SET token_id = token_id + 1 WHERE id = (SELECT min(id) FROM token)",
              SQLITE_OPEN_READWRITE);
    const auto window = windowOn(path);
    ForkDialog* dialog = dialogAt(*window, 4);
    ASSERT_NE(dialog, nullptr);
    dialog->accept();
    const auto status = [&] { return window->findChild<QLabel*>("statusMessage")->text(); };
    ASSERT_TRUE(until([&] { return status().contains("cannot be restored"); })) << status().toStdString();
    EXPECT_EQ(window->workspace().runs().size(), 1U);
    EXPECT_EQ(window->workspace().compare(), nullptr);
}

TEST_F(ForkFromTheWindow, FactsOfThePromptAreMarkedOnSelectionAndInTheTokens) {
    const auto window = windowOn(recorded("first.kvtrace", 0));
    window->showView("selection");
    settle(*window);
    auto* lanes = window->findChild<NeedleLanes*>();
    ASSERT_NE(lanes, nullptr);
    ASSERT_TRUE(lanes->shown());
    ASSERT_EQ(lanes->needles().size(), 1U);
    ASSERT_TRUE(until([&] { return lanes->knownSteps() == kTokens; }));
    EXPECT_TRUE(lanes->blockText(200 / 64).contains("73398"));
    EXPECT_TRUE(lanes->blockText(0).isEmpty());
    EXPECT_TRUE(lanes->tooltip(2, 0).contains("silver lantern"));
    EXPECT_TRUE(lanes->note().contains("instead of 73398")) << lanes->note().toStdString();
    // the fact, what is left out behind it, and the last tokens of the prompt
    EXPECT_EQ(window->tokens().strip()->promptCount(), 12 + 1 + 160);
}

/// Facts are read by the rows of a trace, so that a step with a high number costs no more time.
TEST_F(ForkFromTheWindow, FactsAreReadToTheLastStepHoweverFarItIs) {
    const QString path = recorded("first.kvtrace", 0);
    test::renumberStep(path.toStdString(), kTokens - 1, trace::kMaxStep);
    const auto window = windowOn(path);
    window->showView("selection");
    settle(*window);
    auto* lanes = window->findChild<NeedleLanes*>();
    ASSERT_NE(lanes, nullptr);
    EXPECT_TRUE(until([&] { return lanes->knownSteps() == trace::kMaxStep + 1; })) << lanes->knownSteps();
    EXPECT_TRUE(lanes->tooltip(trace::kMaxStep, 0).contains("silver lantern"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
