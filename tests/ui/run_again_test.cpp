// A recorded run is run again from the desktop: the form holds what its trace says, the same tokens come out, and what
// cannot be repeated is refused with a sentence.
#include "tests/ui/window_fixture.h"

#include "core/model/model.h"
#include "core/session/decode_session.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "ui/session/run_again.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/session_form.h"

#include <QComboBox>
#include <QLabel>
#include <QListView>
#include <QMenu>
#include <QPushButton>
#include <QSpinBox>
#include <QTreeView>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class RunAgain : public WindowTest {
protected:
    static std::shared_ptr<const Model> model() {
        static const std::shared_ptr<const Model> loaded = Model::load(kDefaultModel);
        return loaded;
    }
    /// A short session as the command line would record it.
    QString recorded(const QString& name, SessionOptions options = {}, int sequences = 2,
                     RecordLevel level = RecordLevel::Selections) {
        const QString path = folder.filePath(name);
        std::vector<std::vector<std::int32_t>> prompts;
        for (int sequence = 0; sequence < sequences; ++sequence) {
            auto& ids = prompts.emplace_back();
            for (int i = 0; i < 150 + sequence; ++i) ids.push_back(5 + (i * 7 + sequence) % 900);
        }
        RecorderOptions recording;
        recording.level = level;
        Recorder recorder(path.toStdString(), recording);
        DecodeSession session(model(), prompts, options, recorder);
        session.prefill();
        while (session.step()) {
        }
        session.end(RunStatus::Finished);
        recorder.flush();
        EXPECT_EQ(recorder.health().error, "");
        return path;
    }
    static SessionOptions unusual() {
        SessionOptions options;
        options.method = "quest";
        options.settings = {{"total_blocks", "6"}};
        options.maxNewTokens = 9;
        options.stopAtEos = false;
        options.sampling.temperature = 0.7;
        options.sampling.topP = 0.9;
        options.sampling.topK = 40;
        options.sampling.seed = 11;
        options.deviceKvBlocks = 8;
        options.cachePolicy = "lru";
        options.link = Link::parse("12.5");
        options.oracle = true;
        return options;
    }
    static void change(const QString& path, const std::string& sql) {
        test::sql(path.toStdString(), sql, SQLITE_OPEN_READWRITE);
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
    static QString status(MainWindow& window) { return window.findChild<QLabel*>("statusMessage")->text(); }
    /// Why the action is grey; "it is not" where it is not.
    static QString whyNot(MainWindow& window) {
        return window.action("again")->isEnabled() ? QStringLiteral("it is not") : window.action("again")->toolTip();
    }
};

/// As `kvscope --again TRACE` does it, with a trace open from the last time.
TEST_F(RunAgain, TheNamedTraceIsShownAndRunAgainAndNotOneOfTheLastTime) {
    SessionOptions shorter = unusual();
    shorter.maxNewTokens = 3;
    const QString before = recorded("before.kvtrace"), named = recorded("named.kvtrace", shorter);
    {
        const auto last = makeWindow(false);
        last->openFiles({before});
        ASSERT_TRUE(until([&] { return last->workspace().current() && last->workspace().idle(); }));
        last->close();
    }
    for (const bool again : {false, true}) {
        SCOPED_TRACE(again);
        MainWindow window(Settings(false, folder.filePath("desktop.ini")));
        QObject::connect(&window, &MainWindow::firstPainted, &window, [&] {
            if (again)
                window.runAgainWhenOpen(named);
            else
                window.openFiles({named});
        });
        window.show();
        if (again) {
            ASSERT_TRUE(until([&] { return window.workspace().runs().size() == 3; })) << "a run was recorded";
            ASSERT_TRUE(until([&] {
                return window.controller().state() == SessionController::State::Idle && window.workspace().idle();
            }));
            EXPECT_EQ(window.form().request().options.maxNewTokens, 3);
            ASSERT_TRUE(window.form().request().source.has_value());
            EXPECT_EQ(window.form().request().source->file, named);
        } else {
            ASSERT_TRUE(until([&] { return window.workspace().runs().size() == 2 && window.workspace().idle(); }));
            EXPECT_EQ(window.workspace().current()->key.path, named);
        }
    }
}

TEST_F(RunAgain, TheFormHoldsWhatWasRecordedAndTheSameTokensComeOut) {
    const QString path = recorded("first.kvtrace", unusual());
    const auto window = windowOn(path);
    ASSERT_EQ(whyNot(*window), QStringLiteral("it is not"));
    trigger(*window, "again");
    ASSERT_TRUE(until([&] { return window->form().problem().isEmpty(); })) << window->form().problem().toStdString();
    const SessionRequest request = window->form().request();
    EXPECT_EQ(request.model, QString::fromLatin1(kDefaultModel));
    EXPECT_EQ(request.level, RecordLevel::Selections);
    EXPECT_EQ(request.options.method, "quest");
    EXPECT_EQ(request.options.maxNewTokens, 9);
    EXPECT_FALSE(request.options.stopAtEos);
    EXPECT_EQ(request.options.sampling.temperature, 0.7);
    EXPECT_EQ(request.options.sampling.topP, 0.9);
    EXPECT_EQ(request.options.sampling.topK, 40);
    EXPECT_EQ(request.options.sampling.seed, 11u);
    EXPECT_FALSE(request.options.deviceKvBlocks)
        << "the three blocks of the short session are fewer than a step may need";
    EXPECT_EQ(request.options.cachePolicy, "lru");
    EXPECT_EQ(request.options.link.gigabytesPerSecond, 12.5);
    EXPECT_TRUE(request.options.oracle);
    ASSERT_TRUE(request.source.has_value());
    EXPECT_EQ(request.source->kind, PromptSource::Kind::Recorded);
    EXPECT_EQ(request.source->sequences, 2);
    EXPECT_FALSE(window->form().findChild<QSpinBox*>("sequences")->isEnabled()) << "the prompts decide";
    EXPECT_TRUE(window->form().findChild<QLabel*>("promptRecorded")->text().contains(QStringLiteral("first.kvtrace")));
    EXPECT_TRUE(window->form().findChild<QPushButton*>("runButton")->hasFocus()) << "Enter runs it";

    window->form().run();
    ASSERT_TRUE(until([&] {
        return window->workspace().runs().size() == 2 &&
               window->controller().state() == SessionController::State::Idle &&
               window->workspace().current()->row.status == RunStatus::Finished;
    }));
    const TraceReader first(path.toStdString()), second(window->workspace().current()->key.path.toStdString());
    EXPECT_EQ(second.run(1)->paramsJson, first.run(1)->paramsJson);
    EXPECT_EQ(second.run(1)->link, first.run(1)->link);
    const auto ids = [](const std::vector<TokenRow>& tokens) {
        std::vector<std::int32_t> list;
        for (const TokenRow& token : tokens) list.push_back(token.id);
        return list;
    };
    for (const int sequence : {0, 1}) {
        EXPECT_EQ(ids(second.prompt(1, sequence)), ids(first.prompt(1, sequence)));
        EXPECT_EQ(ids(second.tokens(1, sequence)), ids(first.tokens(1, sequence)));
    }
}

/// A short session records as many slots as it has blocks. A longer one needs more of them.
TEST_F(RunAgain, ALongerRunHasTheSlotsThatItNeeds) {
    const auto window = windowOn(recorded("short.kvtrace"));
    trigger(*window, "again");
    ASSERT_TRUE(until([&] { return window->form().problem().isEmpty(); })) << window->form().problem().toStdString();
    auto* tokens = window->form().findChild<QSpinBox*>("maxNewTokens");
    ASSERT_NE(tokens, nullptr);
    tokens->setValue(3000);
    EXPECT_TRUE(until([&] { return window->form().problem().isEmpty(); })) << window->form().problem().toStdString();
    EXPECT_EQ(window->form().request().options.maxNewTokens, 3000);
}

TEST_F(RunAgain, SlotsThatWereAskedForAreAskedForAgain) {
    SessionOptions options = unusual();
    options.settings = {{"total_blocks", "2"}, {"window_blocks", "1"}, {"sink_blocks", "0"}};
    options.deviceKvBlocks = 3;
    const auto window = windowOn(recorded("asked.kvtrace", options));
    trigger(*window, "again");
    ASSERT_TRUE(until([&] { return window->form().problem().isEmpty(); })) << window->form().problem().toStdString();
    EXPECT_EQ(window->form().request().options.deviceKvBlocks, 3);
}

TEST_F(RunAgain, IsInTheMenuOfTheRunAndHasAKeyThere) {
    const auto window = windowOn(recorded("first.kvtrace"));
    auto* runs = window->findChild<RunList*>();
    runs->view()->setFocus();
    emit runs->view()->customContextMenuRequested(runs->view()->visualRect(runs->view()->currentIndex()).center());
    QAction* again = nullptr;
    for (QMenu* menu : runs->findChildren<QMenu*>(QStringLiteral("runMenu")))
        for (QAction* action : menu->actions())
            if (action->text() == QStringLiteral("Run again…")) again = action;
    ASSERT_NE(again, nullptr);
    EXPECT_TRUE(again->isEnabled());
    static_cast<QMenu*>(again->parent())->close();
    QTest::keyClick(runs->view(), Qt::Key_R);
    EXPECT_TRUE(until([&] { return window->form().request().source->kind == PromptSource::Kind::Recorded; }));
    EXPECT_TRUE(status(*window).contains(QStringLiteral("run 1 of first.kvtrace"))) << status(*window).toStdString();
}

TEST_F(RunAgain, TheTableOfRunsFillsTheFormAndRunsAgain) {
    SessionOptions options = unusual();
    options.maxNewTokens = 4;
    const QString path = recorded("first.kvtrace", options);
    const auto window = windowOn(path);
    trigger(*window, "view_runs");
    settle(*window);
    auto* table = window->currentView()->findChild<QTreeView*>("runsTable");
    ASSERT_NE(table, nullptr);
    EXPECT_TRUE(table->hasFocus()) << "its keys work at once";
    QTest::keyClick(table, Qt::Key_U);
    ASSERT_TRUE(until([&] { return window->form().request().source->kind == PromptSource::Kind::Recorded; }));
    EXPECT_EQ(window->form().request().options.maxNewTokens, 4);
    EXPECT_EQ(window->workspace().runs().size(), 1u) << "nothing runs";
    table->setFocus();
    QTest::keyClick(table, Qt::Key_R);
    ASSERT_TRUE(until([&] {
        return window->workspace().runs().size() == 2 &&
               window->controller().state() == SessionController::State::Idle &&
               window->workspace().current()->row.status == RunStatus::Finished;
    }));
    EXPECT_EQ(table->model()->rowCount(), 2);
    EXPECT_EQ(TraceReader(window->workspace().current()->key.path.toStdString()).run(1)->paramsJson,
              TraceReader(path.toStdString()).run(1)->paramsJson);
}

TEST_F(RunAgain, AModelWithAnotherFingerprintIsRefusedAndTheFormStays) {
    const QString path = recorded("first.kvtrace");
    change(path, "UPDATE run_meta SET value = '1:1:29224224:0123456789abcdef' WHERE key = 'model_fingerprint'");
    const auto window = windowOn(path);
    const QVariantMap before = window->form().values();
    trigger(*window, "again");
    ASSERT_TRUE(until([&] { return status(*window).contains(QStringLiteral("0123456789abcdef")); }))
        << status(*window).toStdString();
    EXPECT_TRUE(status(*window).contains(QStringLiteral("is not the model that run 1 was recorded with")));
    EXPECT_EQ(window->form().values(), before);
}

TEST_F(RunAgain, WhatCannotBeRepeatedIsGreyWithTheReason) {
    struct Case {
        const char *edit, *reason;
    };
    const Case cases[] = {
        {"UPDATE run SET method = 'pyramidkv'", "method 'pyramidkv'"},
        {"UPDATE run SET params_json = json_set(params_json, '$.planted_locality', 0.9)", "'planted_locality'"},
        {"UPDATE run SET params_json = json_set(params_json, '$.total_blocks', 'many')", "total_blocks"},
        {"UPDATE run SET params_json = json_set(params_json, '$.max_new_tokens', -3)", "max_new_tokens = -3"},
        {"UPDATE run SET params_json = json_set(params_json, '$.cache_policy', 'magic')", "magic"},
        {"UPDATE run SET params_json = json_remove(params_json, '$.cache_policy')", "cache policy"},
        {"UPDATE run SET params_json = '[]'", "params_json"},
        {"UPDATE run SET backend = 'tpu'", "'tpu'"},
        {"UPDATE run SET link_latency_us = 3", "3 us per transfer"},
        {"UPDATE run_meta SET value = 'vllm' WHERE key = 'engine'", "recorded by vllm"},
        {"DELETE FROM run_meta WHERE key = 'model_path'; UPDATE run SET model = 'Llama-3.1-8B'",
         "where its model lies"},
    };
    const QString original = recorded(QStringLiteral("original.kvtrace"));
    for (const auto& [edit, reason] : cases) {
        const QString path = folder.filePath(QStringLiteral("first.kvtrace"));
        ASSERT_TRUE(QFile::copy(original, path));
        change(path, edit);
        const auto window = windowOn(path);
        EXPECT_TRUE(whyNot(*window).contains(QString::fromLatin1(reason)))
            << edit << ": " << whyNot(*window).toStdString();
        QTest::keyClick(window->findChild<RunList*>()->view(), Qt::Key_R);
        EXPECT_NE(window->form().request().source->kind, PromptSource::Kind::Recorded) << edit;
        window->close();
        QFile::remove(path);
    }
    const auto window = makeWindow();
    EXPECT_EQ(whyNot(*window), QStringLiteral("No run is open."));
}

TEST_F(RunAgain, AModelThatIsGoneAndAValueThatTheFormCannotHoldAreSaid) {
    const QString gone = recorded("gone.kvtrace");
    change(gone, "UPDATE run_meta SET value = '/nowhere/model' WHERE key = 'model_path'");
    const auto window = windowOn(gone);
    trigger(*window, "again");
    EXPECT_TRUE(status(*window).contains(QStringLiteral("/nowhere/model"))) << status(*window).toStdString();
    EXPECT_EQ(window->form().modelName(), QString::fromLatin1(kDefaultModel)) << "nothing else was chosen";

    const QString fine = recorded("fine.kvtrace", unusual());
    change(fine, "UPDATE run SET params_json = json_set(params_json, '$.temperature', 0.7654321)");
    window->openFiles({fine});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 2 && window->workspace().idle(); }));
    trigger(*window, "again");
    EXPECT_TRUE(until([&] { return status(*window).contains(QStringLiteral("the temperature was 0.765432")); }))
        << status(*window).toStdString();
}

TEST_F(RunAgain, ARecordedPromptIsRememberedUntilItsTraceIsGone) {
    const QString path = recorded("first.kvtrace");
    SessionForm form;
    form.setModel(QString::fromLatin1(kDefaultModel), model());
    const SessionToRepeat session = sessionToRepeat({path, 1}, *TraceReader(path.toStdString()).run(1));
    EXPECT_EQ(form.fill(session), QString());
    const QVariantMap values = form.values();
    SessionForm next;
    next.setModel(QString::fromLatin1(kDefaultModel), model());
    next.setValues(values);
    EXPECT_EQ(next.request().source->kind, PromptSource::Kind::Recorded);
    EXPECT_EQ(next.request().source->ids(*model()).size(), 2u);
    QFile::remove(path);
    SessionForm last;
    last.setModel(QString::fromLatin1(kDefaultModel), model());
    last.setValues(values);
    EXPECT_NE(last.request().source->kind, PromptSource::Kind::Recorded);
    EXPECT_TRUE(last.findChild<QSpinBox*>("sequences")->isEnabled());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
