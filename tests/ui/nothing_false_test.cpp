// Sentences that were false once, looked for in the window as a person has it in front of them.
#include "profiler/store/trace_store.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/synthetic_serving.h" // before any Qt header: its member `slots` is a macro there
#include "tests/support/places.h"
#include "tests/ui/window_fixture.h"

#include "profiler/read/serving.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/summary.h"
#include "ui/models/format.h"
#include "ui/plots/plot_canvas.h"
#include "ui/session/session_controller.h"
#include "ui/timeline/timeline_canvas.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/run_statistics.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/token_strip.h"

#include <QComboBox>
#include <QFile>
#include <QLabel>
#include <QProcess>
#include <QPushButton>
#include <QRegularExpression>
#include <QSpinBox>
#include <QTabBar>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class NothingFalse : public WindowTest {
protected:
    ~NothingFalse() override { setColdSteps(ColdSteps::LeftOut); }

    static QStringList textsOf(const QWidget* part) {
        QStringList texts;
        for (const QLabel* label : part->findChildren<QLabel*>())
            if (label->isVisible() && !label->text().isEmpty()) texts << label->text();
        return texts;
    }
    /// Everything that the view in front, the tool bar and the inspector say.
    static QString said(MainWindow& window) {
        QStringList texts = textsOf(window.currentView());
        texts << textsOf(&window.inspector()) << textsOf(window.findChild<RunStatistics*>());
        for (const auto* button : window.currentView()->findChildren<QPushButton*>())
            if (button->isVisible()) texts << button->text();
        return texts.join(QLatin1Char('\n'));
    }
    static QString fact(MainWindow& window, const char* name) {
        const auto* label = window.findChild<QLabel*>(QLatin1String(name));
        return label && label->isVisible() ? label->text() : QStringLiteral("(hidden)");
    }
    static void open(MainWindow& window, const QString& path) {
        window.openFiles({path});
        ASSERT_TRUE(until([&] {
            const OpenRun* run = window.workspace().current();
            return run && run->key.path == path && window.workspace().idle();
        }));
    }
    static void show(MainWindow& window, const char* view) {
        window.showView(QLatin1String(view));
        for (int round = 0; round < 3; ++round) settle(window);
    }
    QString small(const char* name, const SmallTrace& shape = {}) {
        const QString path = folder.filePath(QLatin1String(name));
        recordSmallTrace(path, shape);
        return path;
    }
    /// A run of another engine, which knows only this; everything else holds 0.
    QString foreign(const char* name, Knowledge knows) {
        const QString path = folder.filePath(QLatin1String(name));
        synthetic::RunShape shape;
        shape.method = "csa";
        RunInfo info = synthetic::infoOf(shape);
        info.name = "another engine's";
        info.backend = "cuda";
        info.device = "another machine";
        info.model = "another model";
        info.deviceSlots = info.budgetBlocks = 0;
        info.linkTiming = Timing::Measured;
        info.linkGbps = info.linkLatencyUs = 0;
        info.knows = knows;
        TraceStore store(path.toStdString(), true);
        store.beginRun(info, RecordLevel::Selections);
        store.addPrompts(info.prompts);
        for (StepRecord& step : synthetic::stepsOf(shape, RecordLevel::Selections)) {
            for (LayerRecord& layer : step.layers) {
                layer.hits = layer.misses = 0;
                if (!knows.has(Known::Bytes))
                    layer.h2dBlocks = layer.d2hBlocks = 0, layer.h2dBytes = layer.d2hBytes = 0;
                layer.transferNs = layer.exposedNs = 0;
                if (!knows.has(Known::StageTimes)) layer.stageNs = {};
                if (!knows.has(Known::Selections)) layer.selected = 0, layer.kept = -1;
            }
            if (!knows.has(Known::StageTimes)) step.stepStageNs = {};
            for (SelectionRecord& selection : step.selections) selection.hits = selection.misses = 0;
            if (!knows.has(Known::Selections)) {
                step.selections.clear();
                step.blocks.clear();
            }
            for (PackedBlock& block : step.blocks) block = block.withHit(true);
            store.addStep(step);
        }
        store.endRun(RunStatus::Finished, "");
        store.commit();
        store.finish();
        return path;
    }
};

constexpr const char* kGuesses =
    "Full attention keeps|attended to every cached block|[Ee]very block is resident|everything resident|100(\\.0)? "
    "%|slots were cold|dense attention|No decode step was recorded|ended before its first|missed 0|0 misses";

TEST_F(NothingFalse, IsSaidOfARunWhoseHitsAreNotKnown) {
    const Knowledge times = Knowledge::nothing().with(Known::StepTimes);
    const std::pair<const char*, Knowledge> runs[] = {
        {"times.kvtrace", times},
        {"selections.kvtrace", times.with(Known::Selections).with(Known::StageTimes)},
        {"bytes.kvtrace", times.with(Known::Selections).with(Known::Bytes)}};
    const auto window = makeWindow();
    for (const auto& [name, knows] : runs) {
        open(*window, foreign(name, knows));
        window->workspace().setCursor({.step = 1, .layer = 1});
        for (const ViewEntry& entry : views()) {
            show(*window, entry.id);
            const QString text = said(*window);
            const QRegularExpressionMatch guess = QRegularExpression(QLatin1String(kGuesses)).match(text);
            EXPECT_FALSE(guess.hasMatch())
                << entry.id << " of " << name << " says \"" << guess.captured().toStdString() << "\" in\n"
                << text.toStdString();
            EXPECT_TRUE(fact(*window, "hitRate") == QStringLiteral("–")) << fact(*window, "hitRate").toStdString();
        }
        show(*window, "transfers");
        EXPECT_EQ(said(*window).contains(QStringLiteral("Hits and transfers are not known in this run")),
                  !knows.has(Known::Bytes))
            << name << '\n'
            << said(*window).toStdString();
    }
}

TEST_F(NothingFalse, IsSaidOfAnIterationThatReadAPrompt) {
    const QString path = folder.filePath(QStringLiteral("served.kvtrace"));
    synthetic::recordServing(path.toStdString(), 12, true, RunStatus::Finished, true);
    const auto window = makeWindow();
    open(*window, path);
    window->workspace().setCursor({.step = 0}); // the first prompt takes two iterations
    settle(*window);
    const std::vector<MemberRow> members = readMembers(TraceReader(path.toStdString()), 1, 0);
    ASSERT_EQ(members.size(), 1U);
    ASSERT_TRUE(members[0].prefill);
    const QString text = textsOf(&window->inspector()).join(QLatin1Char('\n'));
    EXPECT_TRUE(text.contains(
        QStringLiteral("Iteration 0 read %1 tokens of request 0's prompt and decoded nothing").arg(members[0].tokens)))
        << text.toStdString();
    EXPECT_FALSE(text.contains(QStringLiteral("or was not recorded"))) << text.toStdString();
}

TEST_F(NothingFalse, IsSaidOfARunThatDenoises) {
    const QString canvas = folder.filePath(QStringLiteral("canvas.kvtrace")),
                  blocks = folder.filePath(QStringLiteral("blocks.kvtrace"));
    for (const QString& path : {canvas, blocks}) synthetic::recordDenoising(path.toStdString(), {.decodeSteps = 24});
    test::sql(blocks.toStdString(), "UPDATE run SET budget_blocks = 0, params_json = '{\"budget\":64}'",
              SQLITE_OPEN_READWRITE);
    synthetic::makeCanvas(canvas.toStdString());
    const auto window = makeWindow();
    const auto refuse = [&](const char* view, const char* words) {
        const QString text = said(*window);
        const QRegularExpressionMatch guess = QRegularExpression(QLatin1String(words)).match(text);
        EXPECT_FALSE(guess.hasMatch()) << view << " says \"" << guess.captured().toStdString() << "\" in\n"
                                       << text.toStdString();
    };
    open(*window, canvas);
    for (const int step : {0, 1, 4}) {
        window->workspace().setCursor({.step = step});
        for (const ViewEntry& entry : views()) {
            show(*window, entry.id);
            refuse(entry.id, "prefix|cached block|keeps every block|gives the first token|not in the trace|"
                             "decodes token by token\\.|opened a new block|Every block is resident");
            if (step > 0) refuse(entry.id, "Tokens fed");
            EXPECT_NE(said(*window), QString()) << entry.id;
        }
    }
    show(*window, "insights");
    const QString picture = folder.filePath(QStringLiteral("insights.svg"));
    ASSERT_TRUE(window->currentView()->exportImage(picture, {900, 600}));
    QFile svg(picture);
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    const QByteArray drawn = svg.readAll();
    EXPECT_TRUE(drawn.contains("No transfers"));
    EXPECT_FALSE(drawn.contains("Link time")) << "there is nothing to draw by layer";
    show(*window, "timeline");
    auto* timeline = window->currentView()->findChild<TimelineCanvas*>();
    ASSERT_NE(timeline, nullptr);
    ASSERT_TRUE(until([&] { return timeline->data().counters.has(StepCounters::TokenRate); }));
    EXPECT_FALSE(timeline->data().counters.has(StepCounters::KvTokens)) << "all positions are there from the first on";
    open(*window, blocks);
    for (const int step : {0, 1, 4}) {
        window->workspace().setCursor({.step = step});
        show(*window, "breakdown");
        refuse("breakdown", "gives the first token|all blocks|opened a new block");
        EXPECT_EQ(said(*window).contains(QStringLiteral("Tokens written")), step > 0) << step;
    }
}

TEST_F(NothingFalse, StopInThePrefillLeavesNoViewWaiting) {
    const auto window = makeWindow();
    ASSERT_TRUE(until([&] {
        return window->form().problem().isEmpty() && window->controller().state() == SessionController::State::Idle;
    }));
    window->form().findChild<QComboBox*>("promptKind")->setCurrentIndex(int(PromptSource::Kind::Needle));
    window->form().findChild<QSpinBox*>("needleTokens")->setValue(9000);
    window->form().findChild<QSpinBox*>("needleCount")->setValue(1);
    QSignalSpy finished(&window->controller(), &SessionController::finished);
    window->showView(QStringLiteral("timeline"));
    window->action("run")->trigger();
    ASSERT_TRUE(until([&] {
        const OpenRun* run = window->workspace().current();
        return run && run->row.layers > 0; // its row is there, and the prompt is being read
    }));
    EXPECT_TRUE(until([&] { return said(*window).contains(QStringLiteral("Waiting for the first step")); }));
    window->action("stop")->trigger();
    ASSERT_TRUE(until([&] { return !finished.isEmpty(); }));
    ASSERT_TRUE(until([&] {
        const OpenRun* run = window->workspace().current();
        return run && run->row.status == RunStatus::Stopped && !run->live;
    }));
    ASSERT_EQ(window->workspace().current()->row.steps, 0);
    for (const ViewEntry& entry : views()) {
        show(*window, entry.id);
        ASSERT_TRUE(until([&] { return !said(*window).contains(QStringLiteral("Waiting")); }))
            << entry.id << ": " << said(*window).toStdString();
        EXPECT_FALSE(said(*window).contains(QStringLiteral("being read"))) << entry.id;
        EXPECT_FALSE(said(*window).contains(QStringLiteral("No step was recorded yet"))) << entry.id;
    }
}

TEST_F(NothingFalse, TokensPerSecondSayWhetherTheTimeBetweenStepsCounts) {
    const auto window = makeWindow();
    const QString pauses = small("pauses.kvtrace", {.name = "with pauses"}); // 2 ms every 3 ms
    const QString none = small("none.kvtrace", {.name = "without", .stepNs = 3'000'000});
    open(*window, pauses);
    const RunSummary summary = summarize(TraceReader(pauses.toStdString()), 1);
    ASSERT_TRUE(summary.gapsMatter());
    ASSERT_TRUE(until([&] { return fact(*window, "clockRate") == formatRate(summary.tokensPerSecondWithGaps); }))
        << fact(*window, "clockRate").toStdString();
    EXPECT_EQ(fact(*window, "tokenRate"), formatRate(summary.tokensPerSecond));
    EXPECT_EQ(fact(*window, "tokenRateCaption"), QStringLiteral("tokens/s by steps"));
    EXPECT_EQ(fact(*window, "clockRateCaption"), QStringLiteral("by the clock"));
    EXPECT_EQ(fact(*window, "ratesCount"), QStringLiteral("1 cold step left out"));
    const auto tip = [&](const char* name) {
        return window->findChild<QLabel*>(QLatin1String(name))->parentWidget()->toolTip();
    };
    EXPECT_TRUE(tip("tokenRate").contains(formatRate(summary.tokensPerSecondWithGaps)))
        << tip("tokenRate").toStdString();
    EXPECT_TRUE(tip("hitRate").contains(QStringLiteral("1 cold step left out"))) << tip("hitRate").toStdString();
    trigger(*window, "countCold");
    EXPECT_TRUE(until([&] { return fact(*window, "ratesCount") == QStringLiteral("cold steps counted"); }));
    EXPECT_TRUE(tip("hitRate").contains(QStringLiteral("1 cold one among them"))) << tip("hitRate").toStdString();
    trigger(*window, "countCold");

    open(*window, none);
    ASSERT_TRUE(until([&] { return fact(*window, "tokenRate") != QStringLiteral("–"); }));
    EXPECT_EQ(fact(*window, "clockRate"), QStringLiteral("(hidden)")) << "one number where both are the same";
    EXPECT_EQ(fact(*window, "tokenRateCaption"), QStringLiteral("tokens/s"));
    EXPECT_TRUE(tip("tokenRate").contains(QStringLiteral("time between steps is not counted")));
}

TEST_F(NothingFalse, TheNumbersOfTheToolBarFitASmallWindow) {
    const auto window = makeWindow(true, {1024, 700});
    open(*window, small("pauses.kvtrace"));
    ASSERT_TRUE(until([&] { return fact(*window, "clockRate") != QStringLiteral("(hidden)"); }));
    QCoreApplication::processEvents();
    for (const char* name : {"tokenRate", "clockRate", "hitRate"}) {
        const auto* label = window->findChild<QLabel*>(QLatin1String(name));
        EXPECT_TRUE(label->isVisible()) << name;
        EXPECT_GE(label->width(), label->sizeHint().width()) << name;
    }
    const auto* extension = window->findChild<QWidget*>(QStringLiteral("qt_toolbar_ext_button"));
    EXPECT_FALSE(extension && extension->isVisible()) << "no button of the tool bar has been pushed away";
}

TEST_F(NothingFalse, AnIterationThatDecodedNothingIsNoPrefill) {
    const auto window = makeWindow();
    const QString path = folder.filePath("served.kvtrace");
    synthetic::recordServing(path.toStdString(), 12, true, RunStatus::Finished, true);
    open(*window, path);
    window->workspace().setCursor({.step = 0});
    const auto places = [&] {
        settle(*window);
        return textsOf(window.get()).filter(QRegularExpression(QStringLiteral("step 0 of [0-9]+")));
    };
    EXPECT_TRUE(until([&] { return !places().isEmpty(); }));
    EXPECT_TRUE(places().filter(QStringLiteral("prefill")).isEmpty()) << places().join('\n').toStdString();
}

/// The same quantity in every place that shows it, with cold steps and without.
TEST_F(NothingFalse, OneHitRateHasOneNumberEverywhere) {
    const auto window = makeWindow();
    const QString path = small("a.kvtrace"); // step 1 misses all; the others half
    open(*window, path);
    const int last = window->workspace().current()->row.steps - 1;
    for (const ColdSteps counted : {ColdSteps::LeftOut, ColdSteps::Counted}) {
        if (coldSteps() != counted) trigger(*window, "countCold");
        const RunSummary summary = summarize(TraceReader(path.toStdString()), 1);
        const QString rate = QString::number(summary.hitRate * 100, 'f', 1) + QStringLiteral(" %");
        ASSERT_TRUE(until([&] { return fact(*window, "hitRate") == rate; })) << fact(*window, "hitRate").toStdString();
        window->workspace().setCursor({.step = last, .firstStep = 1, .lastStep = last}); // all steps chosen
        const QString words = counted == ColdSteps::LeftOut ? QStringLiteral("1 cold step left out")
                                                            : QStringLiteral("1 cold step among");
        EXPECT_TRUE(until([&] {
            settle(*window);
            const QString text = textsOf(&window->inspector()).join(QLatin1Char('\n'));
            const double percent = summary.hitRate * 100;
            for (const QString& line : text.split(QLatin1Char('\n')))
                if (line.contains(words) && std::abs(line.section(QLatin1Char(' '), 0, 0).toDouble() - percent) < 0.06)
                    return true;
            return false;
        })) << textsOf(&window->inspector()).join(QLatin1Char('\n')).toStdString();
        window->workspace().setCursor({.step = 1});
    }
}

/// In a server's run every request has a first selection, also one that begins a block with it.
TEST_F(NothingFalse, ColdStepsOfAServerAreTheSameEverywhere) {
    const auto window = makeWindow();
    const QString path = folder.filePath("served.kvtrace");
    synthetic::recordServing(path.toStdString(), 12, false, RunStatus::Finished, true);
    const int cold = std::stoi(
        test::value(path.toStdString(),
                    "SELECT count(DISTINCT step) FROM (SELECT min(step) AS step FROM v_served_selection GROUP BY"
                    " request)"));
    ASSERT_GT(cold, 1);
    open(*window, path);
    const auto* counted = window->findChild<QLabel*>(QStringLiteral("ratesCount")); // hidden in a narrow window
    ASSERT_NE(counted, nullptr);
    EXPECT_TRUE(until([&] { return counted->text() == QStringLiteral("%1 cold steps left out").arg(cold); }))
        << counted->text().toStdString();
    const int last = window->workspace().current()->row.steps - 1;
    window->workspace().setCursor({.step = last, .firstStep = 0, .lastStep = last});
    EXPECT_TRUE(until([&] {
        settle(*window);
        return textsOf(&window->inspector())
            .join(QLatin1Char('\n'))
            .contains(QStringLiteral("%1 cold steps left out").arg(cold));
    })) << textsOf(&window->inspector()).join(QLatin1Char('\n')).toStdString();
}

TEST_F(NothingFalse, AReportCountsWhatTheWindowCounts) {
    const QString program = folder.filePath("program.sh"), arguments = folder.filePath("arguments.txt");
    QFile script(program);
    ASSERT_TRUE(script.open(QIODevice::WriteOnly));
    script.write("#!/bin/sh\nprintf '%s\\n' \"$@\" > '" + arguments.toUtf8() + ".new'\nmv '" + arguments.toUtf8() +
                 ".new' '" + arguments.toUtf8() + "'\n");
    script.setPermissions(script.permissions() | QFile::ExeOwner);
    script.close();
    const auto window = makeWindow();
    window->setReportProgram(program);
    open(*window, small("a.kvtrace"));
    const auto exported = [&] {
        QFile::remove(arguments);
        window->exportReport(folder.filePath("report.html"));
        EXPECT_TRUE(until([&] { return QFile::exists(arguments); }));
        QFile written(arguments);
        EXPECT_TRUE(written.open(QIODevice::ReadOnly));
        return QString::fromUtf8(written.readAll());
    };
    EXPECT_FALSE(exported().contains(QStringLiteral("--count-cold")));
    trigger(*window, "countCold");
    EXPECT_TRUE(exported().contains(QStringLiteral("--count-cold")));
    trigger(*window, "countCold");
}

TEST_F(NothingFalse, AWindowMayCloseWhileItsReportIsWritten) {
    const QString program = folder.filePath("slow.sh");
    QFile script(program);
    ASSERT_TRUE(script.open(QIODevice::WriteOnly));
    script.write("#!/bin/sh\nexec sleep 20\n");
    script.setPermissions(script.permissions() | QFile::ExeOwner);
    script.close();
    auto window = makeWindow();
    window->setReportProgram(program);
    open(*window, small("a.kvtrace"));
    window->exportReport(folder.filePath("report.html"));
    auto* process = window->findChild<QProcess*>();
    ASSERT_NE(process, nullptr);
    ASSERT_TRUE(until([&] { return process->state() == QProcess::Running; }));
    window.reset(); // closing the window ends the report's process, and its end calls no object that is gone
}

TEST_F(NothingFalse, AnInsightSaysWhatItCountsAndDrawsNoEmptyAxes) {
    const auto window = makeWindow();
    open(*window, small("cold.kvtrace", {.missesPerHead = 0})); // only the first step loads anything
    show(*window, "insights");
    const auto text = [&](const char* name) {
        const auto* label = window->currentView()->findChild<QLabel*>(QLatin1String(name));
        return label ? label->text() : QString();
    };
    EXPECT_TRUE(until([&] {
        return text("headline") == QStringLiteral("Nothing crosses the link but in the cold step");
    })) << text("headline").toStdString();
    trigger(*window, "countCold");
    EXPECT_TRUE(until([&] { return said(*window).contains(QStringLiteral("cold steps are counted")); }))
        << said(*window).toStdString();
    EXPECT_FALSE(said(*window).contains(QStringLiteral("cold steps are left out"))) << said(*window).toStdString();
    trigger(*window, "countCold");
}

TEST_F(NothingFalse, ADiskThatWasFullIsNamed) {
    const QString path = small("full.kvtrace");
    test::sql(path.toStdString(),
              "UPDATE health SET error = 'database or disk is full (13)', dropped_steps = 4; "
              "UPDATE run SET status = 'failed', status_message = 'database or disk is full (13)'",
              SQLITE_OPEN_READWRITE);
    const auto window = makeWindow();
    open(*window, path);
    EXPECT_TRUE(said(*window).contains(QStringLiteral("database or disk is full"))) << "the inspector";
    show(*window, "insights");
    EXPECT_TRUE(until([&] { return window->currentView()->exportCsv().contains(QStringLiteral("disk is full")); }))
        << window->currentView()->exportCsv().toStdString();
    EXPECT_FALSE(window->currentView()->exportCsv().contains(QStringLiteral("could not keep up")));
}

TEST_F(NothingFalse, TheTransfersOfAGpuSayWhoseClockTheyStandOn) {
    for (const QSize size : {QSize(1600, 1000), QSize(1024, 700)}) {
        const auto window = makeWindow(true, size);
        open(*window, QString::fromStdString(test::source("resources/samples/h200-nosa-8b.kvtrace")));
        show(*window, "timeline");
        auto* canvas = window->currentView()->findChild<TimelineCanvas*>();
        ASSERT_TRUE(until([&] { return said(*window).contains(QStringLiteral("ahead of the GPU timer")); }))
            << said(*window).toStdString();
        EXPECT_TRUE(said(*window).contains(QStringLiteral("a transfer lies within"))) << "the offset that remains";
        bool found = false;
        for (const TimelineRow& row : canvas->scene().layout.rows) {
            if (row.curve >= 0 || !row.firstOfTrack) continue;
            const QString title = trackTitle(canvas->data(), row);
            if (!title.startsWith(QStringLiteral("link, host to device"))) continue;
            found = true;
            EXPECT_TRUE(title.endsWith(QStringLiteral("(CUPTI's clock)"))) << title.toStdString();
            const QString brief = shortTrackTitle(canvas->data(), row);
            EXPECT_TRUE(brief.endsWith(QStringLiteral("(CUPTI's clock)"))) << brief.toStdString();
            EXPECT_LE(QFontMetrics(canvas->font()).horizontalAdvance(brief), TimelineAreas::kGutter - 8)
                << "the clock can be read in the narrowest column";
        }
        EXPECT_TRUE(found);
    }
}

TEST_F(NothingFalse, ADotAboveItsRoofIsSpokenOf) {
    const QString path = folder.filePath("fast.kvtrace");
    QFile::copy(QString::fromStdString(test::source("resources/samples/h200-nosa-8b.kvtrace")), path);
    QFile::setPermissions(path, QFile::ReadOwner | QFile::WriteOwner);
    test::sql(
        path.toStdString(),
        "UPDATE run SET name = 'too fast'; UPDATE step SET duration_ns = duration_ns / 100, embed_ns = 0, lm_head_ns "
        "= 0, sample_ns = 0, transfer_ns = transfer_ns / 100, exposed_ns = exposed_ns / 100",
        SQLITE_OPEN_READWRITE);
    const auto window = makeWindow();
    open(*window, path);
    show(*window, "roofline");
    EXPECT_TRUE(
        QTest::qWaitFor([&] { return said(*window).contains(QStringLiteral("too fast lies above its roof")); }, 20'000))
        << said(*window).toStdString();
}

TEST_F(NothingFalse, AMissingRoofSaysWhatIsMissing) {
    const QString path = folder.filePath("elsewhere.kvtrace");
    QFile::copy(QString::fromStdString(test::source("resources/samples/h200-nosa-8b.kvtrace")), path);
    QFile::setPermissions(path, QFile::ReadOwner | QFile::WriteOwner);
    test::sql(path.toStdString(), "UPDATE run SET device = 'NVIDIA H9000'", SQLITE_OPEN_READWRITE);
    const auto window = makeWindow();
    open(*window, path);
    show(*window, "roofline");
    EXPECT_TRUE(QTest::qWaitFor(
        [&] { return said(*window).contains(QStringLiteral("No roof: its machine is not in the GPU table")); }, 20'000))
        << said(*window).toStdString();
    EXPECT_FALSE(said(*window).contains(QStringLiteral("does not say what its model looks like")));
}

TEST_F(NothingFalse, AgainstFullAttentionNoPageOfCompareIsSilent) {
    const QString sparse = folder.filePath("sparse.kvtrace"), full = folder.filePath("full.kvtrace");
    synthetic::recordFile(sparse.toStdString(), {});
    synthetic::recordFile(full.toStdString(), {.denseLayers = 4, .method = "full"});
    for (const bool swapped : {false, true}) {
        const auto window = makeWindow();
        open(*window, swapped ? sparse : full);
        const RunKey b = window->workspace().current()->key;
        open(*window, swapped ? full : sparse);
        window->workspace().setCompared(b, true);
        show(*window, "compare");
        auto* pages = window->currentView()->findChild<QTabBar*>(QStringLiteral("comparePages"));
        for (int page = 0; page < pages->count(); ++page) {
            pages->setCurrentIndex(page);
            for (int round = 0; round < 3; ++round) settle(*window);
            const QString text = textsOf(window->currentView()).join(QLatin1Char('\n'));
            EXPECT_FALSE(text.contains(QStringLiteral("selects the same blocks"))) << text.toStdString();
            const QString title = pages->tabText(page);
            if (title == QStringLiteral("Difference") || title == QStringLiteral("Overlap") ||
                title == QStringLiteral("Divergence")) {
                EXPECT_TRUE(text.contains(QStringLiteral("%1 has no").arg(swapped ? 'A' : 'B')))
                    << title.toStdString() << ": " << text.toStdString();
            }
        }
    }
}

/// A run of a server was shown as one that decodes: Locality in front, a prefill at its step 0, and a promise of tokens
/// that nobody recorded.
/// Of the sample with the shape of 8B the prompt was not read: its first recorded token is that of step 1, at position
/// 16,385 of a context of 16,384.
TEST_F(NothingFalse, WhatLiesBeforeTheFirstRecordedTokenIsNoPrompt) {
    const auto window = makeWindow();
    const auto heading = [&] {
        QStringList texts;
        for (const QLabel* label : window->findChild<TokenPanel*>()->heading()->findChildren<QLabel*>())
            texts << label->text();
        return texts.join(QLatin1Char('\n')).toStdString();
    };
    const auto sample = [](const char* name) {
        return QString::fromStdString(test::source("resources/samples/")) + QLatin1String(name);
    };
    open(*window, sample("h200-nosa-8b.kvtrace"));
    settle(*window);
    EXPECT_EQ(heading().find("prompt tokens"), std::string::npos) << heading();
    EXPECT_NE(heading().find("16,385 tokens before"), std::string::npos) << heading();
    open(*window, sample("h200-nosa-tiny.kvtrace"));
    settle(*window);
    EXPECT_NE(heading().find("9,000 prompt tokens"), std::string::npos) << heading();
    EXPECT_NE(heading().find("64 generated"), std::string::npos) << heading();
    open(*window, sample("h200-serving.kvtrace")); // it made thousands of tokens and recorded none
    settle(*window);
    EXPECT_EQ(heading().find("generated"), std::string::npos) << heading();
}

/// Block 1 of 16 tokens and block 1 of 64 tokens are other places.
TEST_F(NothingFalse, BlocksOfOtherSizesAreNotComparedByTheirIds) {
    const QString small = folder.filePath("small-blocks.kvtrace"), large = folder.filePath("large-blocks.kvtrace");
    recordSmallTrace(small, {.blockSize = 16});
    recordSmallTrace(large, {});
    const auto window = makeWindow();
    open(*window, large);
    const RunKey b = window->workspace().current()->key;
    open(*window, small);
    window->workspace().setCompared(b, true);
    show(*window, "compare");
    auto* pages = window->currentView()->findChild<QTabBar*>(QStringLiteral("comparePages"));
    for (int page = 0; page < pages->count(); ++page)
        if (pages->tabText(page) == QStringLiteral("Divergence")) pages->setCurrentIndex(page);
    for (int round = 0; round < 3; ++round) settle(*window);
    const std::string text = textsOf(window->currentView()).join(QLatin1Char('\n')).toStdString();
    EXPECT_EQ(text.find("Only A selects"), std::string::npos) << text;
    EXPECT_NE(text.find("Jaccard 0.25. It counts tokens: A's blocks have 16 and B's 64."), std::string::npos) << text;
    EXPECT_NE(text.find("Blocks of A without a token that B selects: none; blocks of B without one that A selects: 1"),
              std::string::npos)
        << text;
}

TEST_F(NothingFalse, ABreakdownOfTimesThatNobodyTookIsNoEmptyPlot) {
    const auto window = makeWindow();
    const QString known = small("known.kvtrace");
    open(*window, known);
    const RunKey timed = window->workspace().current()->key;
    open(*window, foreign("selections-only.kvtrace", Knowledge::nothing().with(Known::Selections)));
    show(*window, "breakdown");
    EXPECT_TRUE(said(*window).contains(QStringLiteral("The times of the steps are not known")))
        << said(*window).toStdString();
    trigger(*window, "theme");
    EXPECT_TRUE(said(*window).contains(QStringLiteral("The times of the steps are not known")));
    trigger(*window, "theme");
    window->workspace().setCurrent(timed);
    for (int round = 0; round < 3; ++round) settle(*window);
    EXPECT_FALSE(said(*window).contains(QStringLiteral("The times of the steps")));
}

TEST_F(NothingFalse, ARunOfAServerIsShownAsOne) {
    const QString served = folder.filePath(QStringLiteral("served.kvtrace"));
    synthetic::recordServing(served.toStdString(), 12, true, RunStatus::Finished, true);
    {
        const auto window = makeWindow(false);
        open(*window, served);
        settle(*window);
        ASSERT_NE(window->currentView(), nullptr);
        EXPECT_EQ(window->currentView()->id(), "serving");
        EXPECT_EQ(window->findChildren<View*>().size(), 1) << "nobody looks at another one";
        EXPECT_TRUE(until([&] { return window->tokens().strip()->emptyText().contains("were recorded"); }))
            << window->tokens().strip()->emptyText().toStdString();
        EXPECT_TRUE(window->tokens().strip()->emptyText().startsWith("No tokens of "));
        for (const char* view : {"locality", "selection"}) {
            show(*window, view);
            const QCPAxis* steps =
                window->currentView()->findChild<PlotCanvas*>()->panels().front()->axis(QCPAxis::atBottom);
            EXPECT_EQ(steps->label(), "Step (iteration of the server)") << view;
        }
        window->saveSession();
    }
    const auto next = makeWindow(false); // the next window shows the view that was chosen last
    ASSERT_TRUE(until([&] { return next->workspace().current() && next->workspace().idle(); }));
    settle(*next);
    ASSERT_NE(next->currentView(), nullptr);
    EXPECT_EQ(next->currentView()->id(), "selection");
}

TEST_F(NothingFalse, AViewThatNobodyChoseIsNotTakenForAChoice) {
    const QString served = folder.filePath(QStringLiteral("served.kvtrace"));
    synthetic::recordServing(served.toStdString());
    {
        const auto window = makeWindow(false);
        open(*window, small("small.kvtrace"));
        settle(*window);
        EXPECT_EQ(window->currentView()->id(), "locality");
        open(*window, served);
        settle(*window);
        EXPECT_EQ(window->currentView()->id(), "locality") << "a view that is looked at stays";
        window->workspace().close(window->workspace().current()->key);
        window->saveSession();
        EXPECT_EQ(Settings(false, folder.filePath("desktop.ini")).load().view, QString());
    }
    const auto chosen = makeWindow();
    chosen->showView(QStringLiteral("locality"));
    open(*chosen, served);
    settle(*chosen);
    EXPECT_EQ(chosen->currentView()->id(), "locality");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
