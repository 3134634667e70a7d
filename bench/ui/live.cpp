// What watching a run costs: a session that is recorded while the desktop shows it and the same session recorded
// without the desktop decode in turns on the same cores, and their speeds are compared.
#include "bench/machine.h"
#include "bench/ui/ui_bench.h"
#include "bench/workload.h"
#include "profiler/read/open_trace.h"
#include "profiler/record/recorder.h"
#include "ui/frame/background_thread.h"
#include "ui/frame/view.h"
#include "ui/window/main_window.h"

#include <QApplication>
#include <QElapsedTimer>
#include <QEventLoop>

#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

namespace kvscope::bench {

namespace {

constexpr int kQuietMs = 400; // views put a refresh off for less than this

double cpuSeconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

/// CPU time of the threads that read for the views, since these threads began.
double readerSeconds() {
    double total = 0;
    std::error_code ignored;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
        std::string name;
        std::ifstream(task.path() / "comm") >> name;
        std::uint64_t ns = 0;
        // The first number of the file is the time on a core.
        if (name == "kvscope-reader") std::ifstream(task.path() / "schedstat") >> ns;
        total += double(ns) * 1e-9;
    }
    return total;
}

void settle(ui::Workspace& workspace) {
    QElapsedTimer quiet;
    quiet.start();
    while (quiet.elapsed() < kQuietMs) {
        QCoreApplication::processEvents(QEventLoop::AllEvents, 20);
        if (!workspace.idle()) quiet.restart();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

struct Turn {
    double seconds = 0;                       // wall time until the last step is in the file
    double guiSeconds = 0, readerSeconds = 0; // CPU time of the GUI thread and of the readers in that time
};

/// Runs `steps` decode steps on a thread of their own, as the desktop does, while this thread serves the windows.
Turn turn(DecodeSession& session, Recorder& recorder, int steps) {
    QEventLoop loop;
    const double before = cpuSeconds(CLOCK_THREAD_CPUTIME_ID), readersBefore = readerSeconds();
    Turn result;
    std::thread engine([&] {
        result.seconds = seconds([&] {
            for (int i = 0; i < steps; ++i) session.step();
            recorder.flush();
        });
        QMetaObject::invokeMethod(&loop, &QEventLoop::quit, Qt::QueuedConnection);
    });
    loop.exec();
    engine.join();
    result.guiSeconds = cpuSeconds(CLOCK_THREAD_CPUTIME_ID) - before;
    result.readerSeconds = readerSeconds() - readersBefore;
    return result;
}

/// Collects the turns with and without the desktop for one arrangement of views.
class Shares {
public:
    void add(const Turn& alone, const Turn& watched) {
        ratios_.push_back(alone.seconds / watched.seconds);
        gui_.push_back(watched.guiSeconds / watched.seconds);
        readers_.push_back(watched.readerSeconds / watched.seconds);
        taken_.push_back((gui_.back() + readers_.back()) / std::max(1U, std::thread::hardware_concurrency()));
        alone_.push_back(alone.seconds);
        watched_.push_back(watched.seconds);
    }
    nlohmann::ordered_json json(int steps) const {
        // Other programs use the machine too: the fastest turns are the least disturbed ones.
        return {{"tokens_per_s_headless_median", steps / median(alone_)},
                {"tokens_per_s_watched_median", steps / median(watched_)},
                {"share_of_headless_median", median(ratios_)},
                {"share_of_headless_fastest_turns",
                 *std::min_element(alone_.begin(), alone_.end()) / *std::min_element(watched_.begin(), watched_.end())},
                {"gui_thread_share_of_one_core_median", median(gui_)},
                {"reader_threads_share_of_one_core_median", median(readers_)},
                // The share of all cores that the desktop leaves to the engine. It is made of CPU times, which other
                // programs hardly change.
                {"share_of_all_cores_left_median", 1 - median(taken_)}};
    }

private:
    std::vector<double> ratios_, gui_, readers_, taken_, alone_, watched_;
};

int settingOr(const Settings& settings, const char* key, int fallback) {
    const auto found = settings.find(key);
    return found == settings.end() ? fallback : std::max(1, std::stoi(found->second));
}

} // namespace

nlohmann::ordered_json uiLive(const Settings& settings, const Log& log) {
    const int steps = settingOr(settings, "steps", 250), rounds = settingOr(settings, "rounds", 3);
    const int views = int(ui::views().size()), turns = 1 + rounds * (views + 1);
    const auto model = Model::load(kDefaultModel);
    const auto prompt = needlePrompt(*model, settingOr(settings, "prompt", 6000));
    const TemporaryFolder temporary;
    const std::filesystem::path folder(temporary.path());
    const std::string alonePath = (folder / "alone.kvtrace").string(), shownPath = (folder / "shown.kvtrace").string();
    nlohmann::ordered_json out;
    {
        ui::letBackgroundThreadsYield(); // as the desktop does
        ui::MainWindow window{ui::Settings(true)};
        window.resize(1600, 1000);
        window.show();
        RecorderOptions quiet, shown;
        quiet.overwrite = shown.overwrite = true;
        shown.onCommit = [&window](std::int64_t) { window.workspace().traceAdvanced(); };
        Recorder aloneRecorder(alonePath, quiet), shownRecorder(shownPath, shown);
        DecodeSession alone(model, {prompt}, greedy("nosa", 1 + steps * turns), aloneRecorder);
        DecodeSession watched(model, {prompt}, greedy("nosa", 1 + steps * turns), shownRecorder);
        alone.prefill();
        watched.prefill();
        shownRecorder.flush();
        window.workspace().addLive({QString::fromStdString(shownPath), shownRecorder.runId()});
        const auto pair = [&](std::initializer_list<Shares*> into, bool aloneFirst, const std::string& what) {
            Turn a, b;
            const auto timeAlone = [&] {
                settle(window.workspace());
                a = turn(alone, aloneRecorder, steps);
            };
            if (aloneFirst) timeAlone();
            settle(window.workspace());
            b = turn(watched, shownRecorder, steps);
            if (!aloneFirst) timeAlone();
            for (Shares* shares : into) shares->add(a, b);
            log(fmt::format("{}: {:.0f} tokens/s headless, {:.0f} watched; of a core, GUI {:.1f} %, readers {:.1f} %",
                            what, steps / a.seconds, steps / b.seconds, 100 * b.guiSeconds / b.seconds,
                            100 * b.readerSeconds / b.seconds));
        };
        Shares warmUp;
        pair({&warmUp}, true, "warm-up");

        // One window as people use it: every view is open, and each is in front for a while.
        for (const ui::ViewEntry& entry : ui::views()) {
            window.showView(QLatin1String(entry.id));
            settle(window.workspace());
        }
        Shares all;
        nlohmann::ordered_json byView;
        for (const ui::ViewEntry& entry : ui::views()) {
            window.showView(QLatin1String(entry.id));
            Shares one;
            for (int round = 0; round < rounds; ++round) pair({&one, &all}, round % 2 == 0, entry.id);
            byView[entry.id] = one.json(steps)["share_of_headless_median"];
        }
        out["one_window"] = all.json(steps);
        out["one_window"]["share_of_headless_by_view_in_front"] = byView;

        // The worst case: every view is in sight at once, each in a window of its own.
        std::vector<std::unique_ptr<ui::View>> inSight;
        for (const ui::ViewEntry& entry : ui::views()) {
            inSight.emplace_back(entry.make(window.workspace(), nullptr));
            inSight.back()->resize(800, 500);
            inSight.back()->show();
        }
        Shares everything;
        for (int round = 0; round < rounds; ++round) pair({&everything}, round % 2 == 0, "all views in sight");
        out["all_views_in_sight"] = everything.json(steps);
        inSight.clear();
        window.workspace().finishLive({QString::fromStdString(shownPath), shownRecorder.runId()});
        alone.end(RunStatus::Stopped);
        watched.end(RunStatus::Stopped);
        out["dropped_steps"] = shownRecorder.health().droppedSteps;
        out["context_tokens"] = prompt.size();
        out["steps_per_turn"] = steps;
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return out;
}

} // namespace kvscope::bench
