// The dialog that starts a server, used as a person does: choose, start, ask the server, watch, stop, close.
#include "core/http/testing/http_client.h"
#include "tests/support/places.h"
#include "tests/ui/window_fixture.h"

#include "profiler/read/serving.h"
#include "ui/plots/plot_view.h"
#include "ui/session/server_process.h"
#include "ui/widgets/parameter_panel.h"
#include "ui/widgets/serve_dialog.h"
#include "ui/widgets/session_form.h"

#include <QAbstractItemView>
#include <QClipboard>
#include <QComboBox>
#include <QFile>
#include <QFileInfo>
#include <QLabel>
#include <QLineEdit>
#include <QMessageBox>
#include <QPlainTextEdit>
#include <QProcess>
#include <QPushButton>
#include <QSpinBox>
#include <QToolButton>

#include <csignal>
#include <cstdio>
#include <sys/stat.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using State = ServerProcess::State;

class ServeDialogTest : public WindowTest {
protected:
    std::unique_ptr<MainWindow> windowWithProgram() {
        auto window = makeWindow();
        window->setServerProgram(QString::fromUtf8(test::kCommandLine));
        return window;
    }
    /// The dialog with small budgets and a free port.
    ServeDialog* open(MainWindow& window) {
        EXPECT_TRUE(until([&] { return window.form().hasModel(); })) << "the embedded model loads";
        trigger(window, "serve");
        auto* dialog = window.findChild<ServeDialog*>();
        EXPECT_NE(dialog, nullptr);
        if (dialog == nullptr) return nullptr;
        EXPECT_TRUE(dialog->isVisible());
        EXPECT_FALSE(dialog->isModal());
        number(*dialog, "servePort", 0);
        number(*dialog, "serveThreads", 1);
        number(*dialog, "serveDevice", 64);
        number(*dialog, "serveHost", 256);
        number(*dialog, "serveScratch", 64);
        return dialog;
    }
    template <class Widget> static Widget& part(QWidget& whole, const char* name) {
        auto* found = whole.findChild<Widget*>(QLatin1String(name));
        if (!found) throw std::runtime_error(std::string("there is no ") + name);
        return *found;
    }
    static void number(ServeDialog& dialog, const char* name, int value) {
        part<QSpinBox>(dialog, name).setValue(value);
    }
    static void choose(QWidget& whole, const char* name, const QString& text) {
        auto& combo = part<QComboBox>(whole, name);
        const int index = combo.findText(text, Qt::MatchContains);
        ASSERT_GE(index, 0) << text.toStdString();
        combo.setCurrentIndex(index);
    }
    static QString text(ServeDialog& dialog, const char* name) { return part<QLabel>(dialog, name).text(); }
    static QString setting(const ServerRequest::Settings& settings, const char* key) {
        for (const auto& [name, value] : settings)
            if (name == key) return QString::fromStdString(value);
        return {};
    }
    static void start(ServeDialog& dialog) {
        QTest::mouseClick(&part<QPushButton>(dialog, "serveStart"), Qt::LeftButton);
    }
    /// Waits until the server answers. @return whether it does; not in a build without a server
    bool becomesReady(MainWindow& window) {
        EXPECT_TRUE(until([&] {
            const State state = window.server().state();
            return state == State::Ready || state == State::Failed;
        }));
        if (window.server().sentence().contains("without Asio")) return false;
        EXPECT_EQ(window.server().state(), State::Ready) << window.server().sentence().toStdString();
        return window.server().state() == State::Ready;
    }
    static int portOf(const ServerProcess& server) {
        return server.address().mid(server.address().lastIndexOf(QLatin1Char(':')) + 1).toInt();
    }
    static test::HttpAnswer ask(const ServerProcess& server, const char* prompt, int tokens) {
        return test::askHttp(portOf(server), "POST", "/v1/completions",
                             R"({"ignore_eos": true, "prompt": ")" + std::string(prompt) + R"(", "max_tokens": )" +
                                 std::to_string(tokens) + "}");
    }
    static QString note(MainWindow& window) {
        const auto* plot = dynamic_cast<PlotView*>(window.currentView());
        return plot ? plot->noteText() : QString();
    }
    template <class Act> static void answerQuestion(Act act) {
        QTimer::singleShot(0, [act] {
            auto* question = qobject_cast<QMessageBox*>(QApplication::activeModalWidget());
            ASSERT_TRUE(question);
            act(*question);
        });
    }
};

TEST_F(ServeDialogTest, StartsSparseServeAnswersAndIsWatchedLive) {
    const auto window = windowWithProgram();
    ServeDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    choose(*dialog, "servePreset", "SparseServe");
    ASSERT_EQ(dialog->problem(), "");
    start(*dialog);
    EXPECT_FALSE(part<QPushButton>(*dialog, "serveStart").isVisible());
    if (!becomesReady(*window)) GTEST_SKIP() << "this build has no server";
    ServerProcess& server = window->server();
    EXPECT_EQ(text(*dialog, "serveState"), "Ready");
    EXPECT_TRUE(text(*dialog, "serveSentence").contains("nosa-tiny"));
    EXPECT_EQ(part<QLineEdit>(*dialog, "serveUrl").text(), server.address() + "/v1");
    QTest::mouseClick(&part<QPushButton>(*dialog, "serveCurlCopy"), Qt::LeftButton);
    EXPECT_TRUE(QApplication::clipboard()->text().startsWith("curl " + server.address() + "/v1/completions -d '"));
    EXPECT_TRUE(part<QPlainTextEdit>(*dialog, "serveLog").toPlainText().contains("listening on " + server.address()));

    // The trace is open before anybody has asked, and its view says so.
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr && window->workspace().idle(); }));
    const RunKey key = window->workspace().current()->key;
    EXPECT_EQ(QFileInfo(key.path).fileName(), QFileInfo(server.trace()).fileName());
    ASSERT_EQ(window->currentView()->accessibleName(), "Serving");
    const auto emptyText = [&] { return dynamic_cast<PlotView*>(window->currentView())->emptyText(); };
    EXPECT_TRUE(until([&] { return emptyText().contains("No request has come yet"); })) << emptyText().toStdString();

    const test::HttpAnswer first = ask(server, "Once upon a time", 8);
    ASSERT_EQ(first.status, 200) << first.body;
    EXPECT_TRUE(until([&] { return note(*window).startsWith("1 request,"); })) << note(*window).toStdString();
    EXPECT_EQ(window->workspace().current()->row.status, RunStatus::Running);
    ASSERT_EQ(ask(server, "The river", 5).status, 200);
    EXPECT_TRUE(until([&] { return note(*window).startsWith("2 requests,"); })) << note(*window).toStdString();
    EXPECT_EQ(window->workspace().current()->row.method, "quest");
    const auto& meta = window->workspace().current()->row.meta;
    EXPECT_NE(meta.at("serving").find("global-lru"), std::string::npos) << meta.at("serving");

    // The status bar says that a server runs, also while the dialog is closed.
    QTest::mouseClick(&part<QPushButton>(*dialog, "serveClose"), Qt::LeftButton);
    EXPECT_FALSE(dialog->isVisible());
    auto& serving = part<QToolButton>(*window, "servingAt");
    EXPECT_TRUE(serving.isVisible());
    EXPECT_EQ(serving.text(), "serving: " + server.address());
    QTest::mouseClick(&serving, Qt::LeftButton);
    EXPECT_TRUE(dialog->isVisible());

    QTest::mouseClick(&part<QPushButton>(*dialog, "serveStop"), Qt::LeftButton);
    EXPECT_EQ(text(*dialog, "serveState"), "Stopping");
    ASSERT_TRUE(until([&] { return !server.isRunning(); }));
    EXPECT_EQ(server.state(), State::Ended) << server.sentence().toStdString();
    EXPECT_TRUE(server.sentence().contains(QFileInfo(key.path).fileName())) << server.sentence().toStdString();
    EXPECT_FALSE(serving.isVisible());
    EXPECT_TRUE(until([&] { return window->workspace().current()->row.status == RunStatus::Finished; }));
    const ServingRows rows = readServing(TraceReader(key.path.toStdString()), key.runId);
    ASSERT_EQ(rows.requests.size(), 2u);
    EXPECT_EQ(rows.requests[0].outputTokens, 8);
    EXPECT_TRUE(part<QPushButton>(*dialog, "serveStart").isEnabled()) << "it can be started again";
}

TEST_F(ServeDialogTest, ThePresetIsThePapersAndAdaptsToWhatAGpuRefuses) {
    const auto window = windowWithProgram();
    ServeDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    choose(*dialog, "servePreset", "SparseServe");
    ServerRequest request = dialog->request();
    EXPECT_EQ(request.method, "quest");
    EXPECT_EQ(setting(request.settings, "bound"), "cuboid-mean");
    EXPECT_EQ(setting(request.settings, "block_size"), "32");
    EXPECT_EQ(setting(request.settings, "total_blocks"), "64");
    EXPECT_EQ(setting(request.settings, "skip_layers"), "0");
    EXPECT_EQ(setting(request.knobs, "cache"), "global-lru");
    // The other knobs of the preset are defaults, which are not written.
    for (const char* knob : {"transfers", "prefill", "working_set_control", "offload"})
        EXPECT_EQ(setting(request.knobs, knob), "") << knob;
    EXPECT_EQ(dialog->problem(), "");

    choose(*dialog, "serveBackend", "GPU");
    request = dialog->request();
    EXPECT_EQ(setting(request.knobs, "cache"), "global-lru");
    EXPECT_TRUE(text(*dialog, "servePresetNote").contains("one LRU pool"));
    EXPECT_EQ(dialog->problem(), "");
    EXPECT_FALSE(part<QSpinBox>(*dialog, "serveThreads").isEnabled());
    choose(*dialog, "serveBackend", "CPU");
    EXPECT_EQ(setting(dialog->request().knobs, "cache"), "global-lru");

    // A knob that is changed makes the settings the user's own, and they stay.
    auto& knobs = part<ParameterPanel>(*dialog, "serveKnobs");
    part<QSpinBox>(knobs, "param_rows").setValue(7);
    EXPECT_EQ(part<QComboBox>(*dialog, "servePreset").currentText(), "Own settings");
    EXPECT_EQ(setting(dialog->request().knobs, "rows"), "7");
    EXPECT_EQ(setting(dialog->request().knobs, "cache"), "global-lru");
    const QVariantMap values = dialog->values();
    choose(*dialog, "servePreset", "Defaults");
    EXPECT_EQ(dialog->request().method, "nosa");
    EXPECT_TRUE(dialog->request().settings.empty());
    EXPECT_TRUE(dialog->request().knobs.empty());
    dialog->setValues(values); // as at the next start
    EXPECT_EQ(dialog->request().method, "quest");
    EXPECT_EQ(setting(dialog->request().settings, "total_blocks"), "64");
    EXPECT_EQ(setting(dialog->request().knobs, "rows"), "7");
    EXPECT_EQ(dialog->values(), values);

    const QStringList arguments = serverArguments(dialog->request());
    for (const char* each : {"quest", "bound=cuboid-mean", "rows=7", "64M", "256M"})
        EXPECT_TRUE(arguments.contains(QLatin1String(each))) << each;
}

TEST_F(ServeDialogTest, IsRememberedUntilTheNextStart) {
    {
        const auto window = makeWindow(false);
        ServeDialog* dialog = open(*window);
        ASSERT_NE(dialog, nullptr);
        choose(*dialog, "servePreset", "SparseServe");
        number(*dialog, "servePort", 8123);
        EXPECT_TRUE(window->close()) << "no server runs, and nobody is asked";
    }
    const auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return window->form().hasModel(); }));
    trigger(*window, "serve");
    auto& dialog = part<ServeDialog>(*window, "serveDialog");
    EXPECT_EQ(part<QComboBox>(dialog, "servePreset").currentText(), "SparseServe");
    EXPECT_EQ(dialog.request().method, "quest");
    EXPECT_EQ(dialog.request().port, 8123);
    EXPECT_EQ(dialog.request().deviceMiB, 64);
}

TEST_F(ServeDialogTest, SaysWhatIsWrongBeforeAServerIsStarted) {
    const auto window = windowWithProgram();
    ServeDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    const auto says = [&](const char* what) { return dialog->problem().contains(QLatin1String(what)); };
    auto& address = part<QLineEdit>(*dialog, "serveAddress");
    auto& keys = part<QLineEdit>(*dialog, "serveKeyFile");
    address.setText("0.0.0.0");
    EXPECT_TRUE(says("0.0.0.0 can be reached from other machines. Give a key file")) << dialog->problem().toStdString();
    EXPECT_FALSE(part<QPushButton>(*dialog, "serveStart").isEnabled());
    EXPECT_EQ(text(*dialog, "serveReason"), dialog->problem());
    const auto write = [&](const char* lines) {
        QFile file(folder.filePath("keys"));
        ASSERT_TRUE(file.open(QIODevice::WriteOnly));
        file.write(lines);
    };
    keys.setText(folder.filePath("keys"));
    EXPECT_TRUE(says("cannot be read")) << dialog->problem().toStdString();
    write("# for friends\n\n");
    keys.setText(folder.filePath("./keys")); // the text must change for the file to be looked at again
    EXPECT_TRUE(says("holds no key")) << dialog->problem().toStdString();
    ASSERT_EQ(mkfifo(folder.filePath("pipe").toLocal8Bit().constData(), 0600), 0);
    keys.setText(folder.filePath("pipe"));
    EXPECT_NE(dialog->problem(), "") << "a pipe into which nobody writes is not waited for";
    write("# for friends\nsecret\n");
    keys.setText(folder.filePath("keys"));
    EXPECT_EQ(dialog->problem(), "");
    EXPECT_TRUE(serverArguments(dialog->request()).contains("--api-key-file"));
    for (const char* mine : {"127.0.0.1", "127.0.1.1", "::1", "LOCALHOST"})
        EXPECT_TRUE(isLoopbackAddress(mine)) << mine;
    for (const char* others : {"", "0.0.0.0", "127.1", "127.0.0.1.example", "127.0.0.256", "10.0.0.1"})
        EXPECT_FALSE(isLoopbackAddress(others)) << others;
    keys.clear();
    address.setText("127.0.0.1");

    choose(*dialog, "serveBackend", "GPU");
    auto& knobs = part<ParameterPanel>(*dialog, "serveKnobs");
    part<QComboBox>(knobs, "param_parking").setCurrentText("host");
    EXPECT_TRUE(says("use parking=device")) << dialog->problem().toStdString();
    part<QComboBox>(knobs, "param_parking").setCurrentText("device");
    part<QComboBox>(knobs, "param_prefill").setCurrentText("chunks");
    EXPECT_EQ(dialog->problem(), "") << "a GPU reads prompts in chunks too";
    choose(*dialog, "serveMethod", "H2O");
    EXPECT_TRUE(says("use prefill=layers")) << dialog->problem().toStdString();
    choose(*dialog, "serveBackend", "CPU");
    EXPECT_EQ(dialog->problem(), "");

    // A method that cannot serve is grey and says why.
    auto& method = part<QComboBox>(*dialog, "serveMethod");
    int grey = 0;
    for (int i = 0; i < method.count(); ++i) {
        if (method.model()->flags(method.model()->index(i, 0)) & Qt::ItemIsEnabled) continue;
        ++grey;
        EXPECT_FALSE(method.itemData(i, Qt::ToolTipRole).toString().isEmpty());
        method.setCurrentIndex(i);
        EXPECT_TRUE(says("cannot serve")) << dialog->problem().toStdString();
    }
    EXPECT_GT(grey, 0);
    choose(*dialog, "servePreset", "Defaults");
    EXPECT_EQ(dialog->problem(), "");
    window->setServerProgram(folder.filePath("kvscope-cli"));
    number(*dialog, "servePort", 8001);
    EXPECT_TRUE(says("is not there. The server is the program kvscope-cli")) << dialog->problem().toStdString();
}

TEST_F(ServeDialogTest, AFailureIsTheServersOwnSentenceAndLeavesNoTrace) {
    const auto window = windowWithProgram();
    ServeDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    start(*dialog);
    if (!becomesReady(*window)) GTEST_SKIP() << "this build has no server";
    const auto other = windowWithProgram(); // another one wants the same port
    ServeDialog* second = open(*other);
    ASSERT_NE(second, nullptr);
    number(*second, "servePort", portOf(window->server()));
    start(*second);
    ASSERT_TRUE(until([&] { return other->server().state() == State::Failed; }));
    EXPECT_EQ(text(*second, "serveState"), "Failed");
    const QString sentence = text(*second, "serveSentence");
    EXPECT_TRUE(sentence.startsWith("cannot listen on 127.0.0.1 port")) << sentence.toStdString();
    EXPECT_TRUE(sentence.endsWith("Nothing was recorded.")) << sentence.toStdString();
    EXPECT_FALSE(QFileInfo::exists(other->server().trace()));
    EXPECT_TRUE(part<QPushButton>(*second, "serveStart").isEnabled());
    number(*second, "servePort", 0);
    start(*second);
    EXPECT_TRUE(becomesReady(*other)) << "it can be started again";
}

TEST_F(ServeDialogTest, ClosingTheWindowAsksAndTakesTheServerAlong) {
    const auto window = windowWithProgram();
    ServeDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    start(*dialog);
    if (!becomesReady(*window)) GTEST_SKIP() << "this build has no server";
    const auto process = pid_t(window->server().processId());
    const QString trace = window->server().trace();
    test::HttpClient client(portOf(window->server())); // its answer would take longer than the window's patience
    client.send(test::httpRequest("POST", "/v1/completions",
                                  R"({"prompt": "Once", "max_tokens": 3500, "stream": true, "ignore_eos": true})"));
    ASSERT_TRUE(client.readUntil("data: "));
    answerQuestion([](QMessageBox& question) {
        EXPECT_TRUE(question.text().contains("Requests that run are cancelled"));
        QTest::keyClick(&question, Qt::Key_Return);
    });
    EXPECT_FALSE(window->close());
    EXPECT_TRUE(window->server().isRunning());
    EXPECT_EQ(kill(process, 0), 0);
    answerQuestion([](QMessageBox& question) {
        for (QAbstractButton* button : question.buttons())
            if (button->text().contains("Stop")) button->click();
    });
    EXPECT_TRUE(window->close());
    EXPECT_NE(kill(process, 0), 0) << "the process is gone";
    const TraceReader reader(trace.toStdString());
    EXPECT_EQ(reader.run(1)->status, RunStatus::Finished);
    const ServingRows rows = readServing(reader, 1);
    ASSERT_EQ(rows.requests.size(), 1u);
    EXPECT_EQ(rows.requests[0].status, ServedStatus::Cancelled);
}

/// Runs in a process of its own, see the next test: starts a server and is killed without warning.
TEST_F(ServeDialogTest, DISABLED_StartsAServerAndIsKilled) {
    ServerProcess server;
    server.setProgram(QString::fromUtf8(test::kCommandLine));
    ServerRequest request;
    request.model = "nosa-tiny", request.method = "nosa", request.port = 0, request.threads = 1;
    request.deviceMiB = request.scratchMiB = 64, request.hostMiB = 256;
    server.start(request);
    ASSERT_TRUE(until([&] { return !server.address().isEmpty() || server.state() == State::Failed; }));
    std::printf("server %lld\n", static_cast<long long>(server.processId()));
    std::fflush(stdout);
    std::raise(SIGKILL);
}

TEST_F(ServeDialogTest, TheServerEndsWithADesktopThatIsKilled) {
    QProcess desktop;
    desktop.start(
        QCoreApplication::applicationFilePath(),
        {"--gtest_filter=ServeDialogTest.DISABLED_StartsAServerAndIsKilled", "--gtest_also_run_disabled_tests"});
    ASSERT_TRUE(until([&] { return desktop.state() == QProcess::NotRunning; }));
    EXPECT_EQ(desktop.exitStatus(), QProcess::CrashExit);
    const QString said = QString::fromUtf8(desktop.readAllStandardOutput());
    const QRegularExpressionMatch found = QRegularExpression("server (\\d+)").match(said);
    ASSERT_TRUE(found.hasMatch()) << said.toStdString();
    const auto process = pid_t(found.captured(1).toInt());
    if (process == 0) GTEST_SKIP() << "this build has no server";
    // A process that has ended but that nobody has waited for still has a number.
    const auto isGone = [&] {
        QFile state(QStringLiteral("/proc/%1/stat").arg(process));
        return !state.open(QIODevice::ReadOnly) || state.readAll().contains(") Z ");
    };
    EXPECT_TRUE(until(isGone));
}

TEST_F(ServeDialogTest, APresetWithoutANoteLeavesNoGap) {
    const auto window = windowWithProgram();
    ServeDialog* dialog = open(*window);
    ASSERT_NE(dialog, nullptr);
    auto& note = part<QLabel>(*dialog, "servePresetNote");
    EXPECT_TRUE(note.isHidden());
    choose(*dialog, "servePreset", QStringLiteral("SparseServe"));
    EXPECT_FALSE(note.isHidden());
    choose(*dialog, "servePreset", QStringLiteral("Defaults"));
    EXPECT_TRUE(note.isHidden());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
