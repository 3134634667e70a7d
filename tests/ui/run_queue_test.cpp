// The queue of runs and the sweep, as a person uses them.
#include "tests/ui/window_fixture.h"

#include "core/model/model.h"
#include "tests/core/damage.h"
#include "ui/frame/small_widgets.h"
#include "ui/session/request_json.h"
#include "ui/session/run_queue.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/queue_panel.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/sweep_dialog.h"
#include "ui/window/session_journal.h"

#include <QComboBox>
#include <QDockWidget>
#include <QJsonDocument>
#include <QLabel>
#include <QLineEdit>
#include <QListView>
#include <QMessageBox>
#include <QPushButton>
#include <QTimer>
#include <QToolButton>
#include <QTreeWidget>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using State = QueuedRun::State;

class RunQueueTest : public WindowTest {
protected:
    static bool isIdle(MainWindow& window) {
        return window.queue().running() == nullptr && !window.controller().isActive() &&
               window.controller().state() == SessionController::State::Idle && window.workspace().idle() &&
               std::ranges::none_of(window.workspace().runs(), [](const OpenRun& run) {
                   return run.row.status == RunStatus::Running; // its end was not read
               });
    }
    /// A window whose form holds a session of a moment.
    std::unique_ptr<MainWindow> readyWindow(bool fresh = true) {
        auto window = makeWindow(fresh);
        EXPECT_TRUE(until([&] { return window->form().hasModel(); }));
        fill(*window, 17);
        return window;
    }
    static void fill(MainWindow& window, int totalBlocks, int newTokens = 3, bool ignoresEnd = true) {
        window.form().setValues(
            {{"prompt", QVariantMap{{"kind", int(PromptSource::Kind::Text)}, {"text", QString(40, QLatin1Char('x'))}}},
             {"method", "nosa"},
             {"settings", QVariantMap{{"nosa", QVariantMap{{"total_blocks", totalBlocks}}}}},
             {"stopAtEos", !ignoresEnd},
             {"maxNewTokens", newTokens}});
        EXPECT_TRUE(until([&] { return window.form().requestProblem().isEmpty(); }))
            << window.form().requestProblem().toStdString();
    }
    static QListView* list(MainWindow& window) { return window.findChild<QueuePanel*>()->view(); }
    /// A key in the list of the panel.
    static void press(MainWindow& window, Qt::Key key, Qt::KeyboardModifiers modifiers = {}) {
        trigger(window, "focusQueue");
        QTest::keyClick(list(window), key, modifiers);
    }
    static QAction* queueAction(MainWindow& window, const char* name) {
        return window.findChild<QAction*>(QLatin1String(name));
    }
    static std::vector<State> states(MainWindow& window) {
        std::vector<State> all;
        for (const QueuedRun& run : window.queue().runs()) all.push_back(run.state);
        return all;
    }
    static QStringList names(MainWindow& window) {
        QStringList all;
        for (const QueuedRun& run : window.queue().runs()) all << run.name;
        return all;
    }
    static QString status(MainWindow& window) { return window.findChild<QLabel*>("statusMessage")->text(); }
    static void waitForEnd(MainWindow& window) {
        ASSERT_TRUE(until([&] { return window.queue().waiting() == 0 && isIdle(window); }));
        ASSERT_TRUE(until([&] { // their rows are read
            return std::ranges::none_of(window.workspace().runs(), [](const OpenRun& run) {
                return run.live || run.row.name.empty() || run.row.status == RunStatus::Running;
            });
        }));
    }
    /// Held, with runs of 17, 18, 19 ... blocks that wait.
    std::unique_ptr<MainWindow> windowWithWaiting(int runs, bool fresh = true) {
        auto window = readyWindow(fresh);
        window->queue().setHeld(true);
        for (int i = 0; i < runs; ++i) {
            fill(*window, 17 + i);
            window->form().addToQueue();
        }
        return window;
    }
    static SweepDialog* openSweep(MainWindow& window) {
        QTest::keyClick(&window, Qt::Key_F7, Qt::ControlModifier);
        auto* dialog = window.findChild<SweepDialog*>();
        EXPECT_TRUE(dialog && dialog->isVisible());
        return dialog;
    }
    /// Chooses the setting in the last line of the dialog, and types its values.
    static void vary(SweepDialog& dialog, const char* key, const char* values) {
        auto* field = dialog.findChildren<QComboBox*>("sweepField").back();
        field->setCurrentIndex(field->findData(QLatin1String(key)));
        ASSERT_EQ(field->currentData().toString(), QLatin1String(key));
        auto* line = dialog.findChildren<QLineEdit*>("sweepValues").back();
        line->clear();
        QTest::keyClicks(line, QLatin1String(values));
    }
    static QString count(SweepDialog& dialog) { return dialog.findChild<QLabel*>("sweepCount")->text(); }
    static QString refusal(SweepDialog& dialog) {
        const auto* message = dialog.findChild<InlineMessage*>("sweepMessage");
        return message->isVisible() ? message->text() : QString();
    }
};

TEST_F(RunQueueTest, WhatIsAddedRunsOneAfterTheOtherIntoOneTrace) {
    const auto window = readyWindow();
    auto* dock = window->findChild<QDockWidget*>("queueDock");
    EXPECT_FALSE(dock->isVisible()) << "nothing was queued yet";
    fill(*window, 17, 200);
    QTest::keyClick(window.get(), Qt::Key_F7);
    EXPECT_TRUE(dock->isVisible());
    ASSERT_TRUE(until([&] { return window->controller().isActive(); })) << "the first begins at once";
    EXPECT_FALSE(window->action("run")->isEnabled());
    window->controller().pause(); // on the fastest machine too the first run has not ended when the second is added
    fill(*window, 18);
    QTest::mouseClick(window->form().findChild<QPushButton*>("queueButton"), Qt::LeftButton);
    EXPECT_EQ(names(*window), (QStringList{"nosa, 17 blocks", "nosa, 18 blocks"}));
    EXPECT_EQ(states(*window), (std::vector<State>{State::Running, State::Waiting}));
    window->controller().resume();
    waitForEnd(*window);
    EXPECT_EQ(states(*window), (std::vector<State>{State::Finished, State::Finished}));
    ASSERT_EQ(window->workspace().runs().size(), 2u);
    const OpenRun second = window->workspace().runs()[1];
    EXPECT_EQ(second.key.path, window->workspace().runs()[0].key.path);
    EXPECT_EQ(second.key.runId, 2);
    EXPECT_EQ(second.row.name, "nosa, 18 blocks");
    EXPECT_EQ(window->workspace().current()->key, second.key) << "the one that was watched led to the next";
    EXPECT_EQ(list(*window)->model()->index(1, 0).data(Qt::AccessibleTextRole).toString(),
              "nosa, 18 blocks, finished, 3 tokens");
    fill(*window, 19);
    QTest::keyClick(window.get(), Qt::Key_F7);
    waitForEnd(*window);
    EXPECT_NE(window->workspace().runs()[2].key.path, second.key.path) << "the queue had run dry";
}

TEST_F(RunQueueTest, ARunInTheBackgroundDoesNotTakeTheViewsFromAnotherRun) {
    const auto window = windowOnTrace();
    ASSERT_TRUE(until([&] { return window->form().hasModel(); }));
    fill(*window, 17);
    const RunKey shown = window->workspace().current()->key;
    QTest::keyClick(window.get(), Qt::Key_F7);
    waitForEnd(*window);
    EXPECT_EQ(window->workspace().runs().size(), 2u);
    EXPECT_EQ(window->workspace().current()->key, shown);
    list(*window)->setCurrentIndex(list(*window)->model()->index(0, 0));
    press(*window, Qt::Key_Return);
    EXPECT_EQ(window->workspace().current()->row.name, "nosa, 17 blocks");
}

TEST_F(RunQueueTest, AFailureIsSaidAndTheNextBeginsUnlessThePersonWantsAPause) {
    const auto window = readyWindow();
    SessionRequest good = window->form().request(), bad = good;
    bad.options.deviceKvBlocks = 1;
    bad.source->text = QString(4000, QLatin1Char('x'));
    for (const bool pauses : {false, true}) {
        SCOPED_TRACE(pauses);
        window->queue().removeEnded();
        window->queue().setHeld(true);
        if (pauses) queueAction(*window, "queueStopsAtFailure")->trigger();
        window->queue().add("bad", bad);
        window->queue().add("good", good);
        press(*window, Qt::Key_H);
        ASSERT_TRUE(until([&] { return states(*window)[0] == State::Failed && isIdle(*window); }));
        EXPECT_TRUE(window->queue().runs()[0].sentence.contains("too small"))
            << window->queue().runs()[0].sentence.toStdString();
        EXPECT_TRUE(list(*window)->model()->index(0, 0).data(Qt::ToolTipRole).toString().contains("too small"));
        if (pauses) {
            EXPECT_TRUE(window->queue().isHeld());
            EXPECT_EQ(states(*window)[1], State::Waiting);
            press(*window, Qt::Key_H);
        }
        ASSERT_TRUE(until([&] { return states(*window)[1] == State::Finished && isIdle(*window); }));
    }
}

TEST_F(RunQueueTest, WaitingRunsAreMovedAndRemovedByKey) {
    const auto window = windowWithWaiting(3);
    EXPECT_FALSE(window->controller().isActive()) << "paused";
    list(*window)->setCurrentIndex(list(*window)->model()->index(2, 0));
    press(*window, Qt::Key_Up, Qt::AltModifier);
    EXPECT_EQ(names(*window), (QStringList{"nosa, 17 blocks", "nosa, 19 blocks", "nosa, 18 blocks"}));
    EXPECT_EQ(list(*window)->currentIndex().row(), 1) << "the moved one stays chosen";
    press(*window, Qt::Key_Up, Qt::AltModifier);
    EXPECT_FALSE(queueAction(*window, "queueUp")->isEnabled()) << "it is the first";
    press(*window, Qt::Key_Down, Qt::AltModifier);
    list(*window)->setCurrentIndex(list(*window)->model()->index(0, 0));
    press(*window, Qt::Key_Delete);
    EXPECT_EQ(names(*window), (QStringList{"nosa, 19 blocks", "nosa, 18 blocks"}));
    EXPECT_EQ(window->findChild<QLabel*>("queueState")->text(), "0 of 2 done, 2 wait; paused");
    EXPECT_EQ(window->findChild<QToolButton*>("queueProgress")->text(), "Queue: 0 of 2 done, 2 wait; paused");
    press(*window, Qt::Key_H);
    waitForEnd(*window);
    EXPECT_EQ(window->workspace().runs()[0].row.name, "nosa, 19 blocks");
    EXPECT_FALSE(window->findChild<QToolButton*>("queueProgress")->isVisible());
}

TEST_F(RunQueueTest, StopPausesTheQueueAndCancelAllEmptiesIt) {
    const auto window = readyWindow();
    fill(*window, 17, 5000);
    for (int i = 0; i < 3; ++i) window->form().addToQueue();
    const auto decodes = [&] { return window->controller().state() == SessionController::State::Decoding; };
    ASSERT_TRUE(until(decodes));
    trigger(*window, "stop");
    ASSERT_TRUE(until([&] { return isIdle(*window); }));
    EXPECT_EQ(states(*window), (std::vector<State>{State::Cancelled, State::Waiting, State::Waiting}));
    EXPECT_TRUE(window->queue().isHeld()) << "who stops a run does not expect the next one";
    press(*window, Qt::Key_H);
    ASSERT_TRUE(until(decodes));
    list(*window)->setCurrentIndex(list(*window)->model()->index(1, 0));
    press(*window, Qt::Key_Delete); // stops the running one
    ASSERT_TRUE(until([&] { return states(*window)[2] == State::Running && decodes(); })) << "the next begins";
    queueAction(*window, "queueCancelAll")->trigger();
    waitForEnd(*window);
    EXPECT_EQ(states(*window), (std::vector<State>{State::Cancelled, State::Cancelled, State::Cancelled}));
}

TEST_F(RunQueueTest, ClosingTheWindowAsksWhileRunsWait) {
    const auto window = windowWithWaiting(2);
    QString asked;
    const auto answer = [&](const char* text) {
        QTimer::singleShot(0, [&asked, text] {
            auto* question = qobject_cast<QMessageBox*>(QApplication::activeModalWidget());
            ASSERT_TRUE(question);
            asked = question->text();
            for (QAbstractButton* button : question->buttons())
                if (button->text() == QLatin1String(text)) return button->click();
            QTest::keyClick(question, Qt::Key_Return);
        });
    };
    answer("the default");
    EXPECT_FALSE(window->close());
    EXPECT_TRUE(asked.contains("2 runs wait in the queue")) << asked.toStdString();
    answer("Close");
    EXPECT_TRUE(window->close());
}

TEST_F(RunQueueTest, WhatWaitsIsOfferedAfterACrash) {
    const QString journals = Settings(false, folder.filePath("desktop.ini")).journalFolder();
    {
        const auto window = windowWithWaiting(2, false);
        window->endNow(); // as at a log-out: nothing is asked
    }
    const auto window = makeWindow(false);
    QWidget* offer = nullptr;
    ASSERT_TRUE(until([&] { return (offer = window->findChild<QWidget*>("recoveryOffer")) != nullptr; }));
    EXPECT_EQ(offer->findChild<QLabel*>()->text(), "2 runs waited in the queue when KVScope ended");
    for (auto* button : offer->findChildren<QPushButton*>())
        if (button->text() == QLatin1String("Queue Again")) QTest::mouseClick(button, Qt::LeftButton);
    EXPECT_EQ(names(*window), (QStringList{"nosa, 17 blocks", "nosa, 18 blocks"}));
    waitForEnd(*window);
    EXPECT_EQ(states(*window), (std::vector<State>{State::Finished, State::Finished}));
    EXPECT_EQ(window->workspace().find(*window->queue().runs()[1].key)->row.name, "nosa, 18 blocks");
}

TEST(RequestJson, HoldsAllThatTheFormCanAskFor) {
    SessionRequest request;
    request.model = "a model";
    request.source = PromptSource{};
    request.source->needle.seed = 0xfedcba9876543210u;
    request.source->sequences = 3;
    request.source->system = QStringLiteral("be <b>brief</b>");
    request.options.method = "quest";
    request.options.settings = {{"total_blocks", "6"}, {"block_size", "32"}};
    request.options.deviceKvBlocks = 24;
    request.options.kvType = kvTypeNamed("fp8");
    request.options.link = Link::parse("12.5");
    request.options.sampling.temperature = 0.1;
    request.level = RecordLevel::Selections;
    request.pcieCounting = PcieCounting::Nvml;
    const QByteArray text = requestsJson({{"one", request}});
    const auto read = requestsOf(text);
    ASSERT_EQ(read.size(), 1u);
    EXPECT_EQ(read[0].first, "one");
    EXPECT_EQ(read[0].second.source->needle.seed, request.source->needle.seed);
    EXPECT_EQ(read[0].second.options.settings, request.options.settings);
    EXPECT_EQ(read[0].second.options.kvType, request.options.kvType);
    EXPECT_EQ(read[0].second.options.link.gigabytesPerSecond, 12.5);
    EXPECT_EQ(requestsJson(read), text) << "nothing is lost on the way";
    for (const char* damaged : {"", "[", "[1]", "{}", R"([{"name":"x","model":"m","level":9}])"})
        EXPECT_TRUE(requestsOf(damaged).empty()) << damaged;
}

TEST(RequestJson, WhatWasDamagedIsLeftOutAndNeverAnotherSession) {
    SessionRequest request;
    request.model = "a model";
    request.source = PromptSource{};
    request.options.method = "quest";
    request.options.settings = {{"total_blocks", "6"}};
    request.options.deviceKvBlocks = 24;
    request.options.offload = true;
    request.options.sampling.temperature = 0.5;
    const auto json = nlohmann::json::parse(requestsJson({{"one", request}}).toStdString());
    const auto places = test::placesOf(json);
    std::mt19937 random(7);
    int read = 0;
    for (int round = 0; round < 2000; ++round) {
        const QByteArray damaged = QByteArray::fromStdString(test::withOneChange(json, places, random));
        const std::vector<NamedRequest> requests = requestsOf(damaged);
        if (requests.empty()) continue;
        ++read;
        EXPECT_EQ(requestsJson(requests), QJsonDocument::fromJson(damaged).toJson(QJsonDocument::Compact));
        EXPECT_LE(requests[0].second.source->sequences, 256);
    }
    EXPECT_GT(read, 50) << "a value that is another value is read";
    EXPECT_LT(read, 1500) << "what is no such value is left out";
}

TEST_F(RunQueueTest, ASweepMakesEveryCombinationAndMarksThemForCompare) {
    const auto window = readyWindow();
    SweepDialog* dialog = openSweep(*window);
    ASSERT_TRUE(dialog);
    EXPECT_FALSE(dialog->findChild<QPushButton*>("sweepAdd")->isEnabled());
    vary(*dialog, "method", "nosa, quest");
    EXPECT_EQ(count(*dialog), "2 runs");
    QTest::mouseClick(dialog->findChild<QPushButton*>("sweepMore"), Qt::LeftButton);
    vary(*dialog, "total_blocks", "16, 18");
    EXPECT_EQ(count(*dialog), "4 runs");
    auto* runs = dialog->findChild<QTreeWidget*>("sweepRuns");
    ASSERT_EQ(runs->topLevelItemCount(), 4);
    EXPECT_EQ(runs->topLevelItem(3)->text(0), "quest, 18 blocks");
    auto* add = dialog->findChild<QPushButton*>("sweepAdd");
    EXPECT_EQ(add->text(), "Add 4 Runs to Queue");
    QTest::mouseClick(add, Qt::LeftButton);
    EXPECT_EQ(window->queue().runs().size(), 4u);
    waitForEnd(*window);
    ASSERT_TRUE(until([&] { return window->workspace().sides().size() == 4; }));
    const auto sides = window->workspace().sides();
    EXPECT_EQ(sides[0]->row.name, "nosa, 16 blocks");
    EXPECT_EQ(sides[3]->row.name, "quest, 18 blocks");
    EXPECT_EQ(sides[3]->row.method, "quest");
    EXPECT_EQ(sides[3]->key, (RunKey{sides[0]->key.path, 4})) << "one trace";
    EXPECT_TRUE(status(*window).contains("4 finished runs are marked")) << status(*window).toStdString();
    EXPECT_EQ(list(*window)->model()->index(3, 0).data(Qt::UserRole + 3).toInt(), 3) << "D";
}

TEST_F(RunQueueTest, ASweepThatMakesNoSenseIsRefusedInOneSentence) {
    const auto window = readyWindow();
    SweepDialog* dialog = openSweep(*window);
    ASSERT_TRUE(dialog);
    const struct {
        const char *key, *values, *sentence;
    } cases[] = {
        {"total_blocks", "16, many", "whole number"},
        {"total_blocks", "16,,24", "empty value"},
        {"total_blocks", "16, 16", "Total blocks names 16 twice"},
        {"method", "nosa, magic", "known methods"},
        {"total_blocks", "2", "Total blocks 2 is smaller than the"},
        {"total_blocks", "2", "raise Total blocks, or lower Sink blocks, Window blocks or Select blocks"},
        {"seed", "1, 2", "Seed has no effect at temperature 0"},
        {"seed", "1, 2", "leave Seed out, or give Temperature a number above 0"},
        {"sequences", "0", "from 1 to 256"},
        {"device-kv", "many", "block slots"},
    };
    for (const auto& [key, values, sentence] : cases) {
        vary(*dialog, key, values);
        EXPECT_TRUE(refusal(*dialog).contains(QLatin1String(sentence)))
            << key << ": " << refusal(*dialog).toStdString();
        EXPECT_FALSE(refusal(*dialog).contains("--")) << "these are words of the command line";
        EXPECT_FALSE(dialog->findChild<QPushButton*>("sweepAdd")->isEnabled()) << key;
    }
    vary(*dialog, "offload", "on, off");
    EXPECT_EQ(count(*dialog), "2 runs");
    EXPECT_EQ(refusal(*dialog), QString());
    QTest::keyClick(dialog, Qt::Key_Escape);
    EXPECT_TRUE(window->queue().runs().empty());
}

TEST_F(RunQueueTest, WhatCannotRunIsLeftOutOfASweepAndSaid) {
    const auto window = readyWindow();
    window->form().setValues({{"prompt", QVariantMap{{"text", QString(4000, QLatin1Char('x'))}}}});
    ASSERT_TRUE(until([&] { return window->form().requestProblem().isEmpty(); }));
    SweepDialog* dialog = openSweep(*window);
    ASSERT_TRUE(dialog);
    vary(*dialog, "device-kv", "1, 24");
    EXPECT_EQ(count(*dialog), "1 run. One more cannot run and is left out.");
    auto* runs = dialog->findChild<QTreeWidget*>("sweepRuns");
    EXPECT_EQ(runs->topLevelItem(0)->text(0), "nosa, 1 slot");
    EXPECT_TRUE(runs->topLevelItem(0)->text(1).contains("too small")) << runs->topLevelItem(0)->text(1).toStdString();
    EXPECT_EQ(dialog->runs().size(), 1u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
