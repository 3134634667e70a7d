// Whatever happened to a trace file, reading it ends in an answer or in one sentence, never in a crash.
#include "base/error.h"
#include "profiler/export/export.h"
#include "profiler/read/summary.h"
#include "profiler/read/trace_reader.h"
#include "profiler/record/recorder.h"
#include "profiler/replay/replay.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

std::string contentsOf(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::streamsize(bytes.size()));
}

struct Outcome {
    int answers = 0, refusals = 0;
    std::string improper; // a message that is not one proper sentence
};

/// Calls every function that reads a trace. A call that fails does not keep the others from being made.
void readEverything(const std::string& path, Outcome& outcome) {
    const auto attempt = [&](const std::function<void()>& read) {
        try {
            read();
            ++outcome.answers;
        } catch (const Error& error) {
            ++outcome.refusals;
            const std::string line = oneLine(error);
            if (line.empty() || line.find('\n') != std::string::npos || error.hint.empty()) outcome.improper = line;
        }
    };
    attempt([&] {
        TraceReader reader(path);
        for (const RunRow& run : reader.runs()) {
            const int id = run.runId;
            attempt([&] { reader.steps(id); });
            attempt([&] { reader.tokens(id, 0); });
            attempt([&] { reader.prompt(id, 0); });
            attempt([&] { reader.blockText(id, 0, 3); });
            attempt([&] { reader.blockText(id, 0, 13); });
            attempt([&] { reader.breakdown(id); });
            attempt([&] { reader.breakdownSteps(id); });
            attempt([&] { reader.transfers(id); });
            attempt([&] { reader.layers(id, 5); });
            attempt([&] { reader.selections(id, 1, 0, 1); });
            attempt([&] { reader.layerMatrix(id, Metric::Locality); });
            attempt([&] { reader.layerMatrix(id, Metric::HitRate, {0, -1}); });
            attempt([&] { reader.layerMatrix(id, Metric::Misses, {0, 1}); });
            attempt([&] { reader.headMatrix(id, Metric::Mass, 1); });
            attempt([&] { summarize(reader, id); });
            attempt([&] { replay(loadSelectionTrace(reader, id), {}); });
        }
    });
    std::ostringstream out;
    attempt([&] { exportTable(path, ExportTable::Selections, ExportFormat::Csv, out); });
    attempt([&] { exportTable(path, ExportTable::Tokens, ExportFormat::Jsonl, out); });
    attempt([&] { exportChromeTrace(path, out); });
}

class DamagedFile : public testing::Test {
protected:
    void SetUp() override {
        synthetic::RunShape shape;
        shape.decodeSteps = 30;
        shape.oracle = true;
        synthetic::recordFile(folder / "good.kvtrace", shape);
        good = contentsOf(folder / "good.kvtrace");
        ASSERT_GT(good.size(), 100000u);
    }
    test::Folder folder;
    std::string bad = (folder / "bad.kvtrace").string();
    std::string good;
    std::mt19937 random{11};
    Outcome outcome;
};

TEST_F(DamagedFile, TruncatedAnywhereEndsInASentence) {
    for (int round = 0; round < 150; ++round) {
        const std::size_t length = round < 20 ? std::size_t(round) * 37 : random() % good.size();
        write(bad, good.substr(0, length));
        Outcome one;
        readEverything(bad, one);
        EXPECT_EQ(one.improper, "") << "cut at " << length;
        EXPECT_GT(one.refusals, 0) << "cut at " << length;
    }
}

TEST_F(DamagedFile, FlippedBitsNeverCrashTheReader) {
    for (int round = 0; round < 300; ++round) {
        std::string bytes = good;
        // Headers and the first pages are where damage does most: aim there every other time.
        const std::size_t reach = round % 2 == 0 ? bytes.size() : 2048;
        for (int flips = 1 + int(random() % 8); flips > 0; --flips)
            bytes[random() % reach] ^= char(1u << (random() % 8));
        write(bad, bytes);
        readEverything(bad, outcome);
        ASSERT_EQ(outcome.improper, "") << "round " << round;
    }
    EXPECT_GT(outcome.answers, 0);
    EXPECT_GT(outcome.refusals, 0);
}

TEST_F(DamagedFile, OverwrittenStretchesNeverCrashTheReader) {
    for (int round = 0; round < 150; ++round) {
        std::string bytes = good;
        const std::size_t at = random() % bytes.size(),
                          length = std::min<std::size_t>(bytes.size() - at, 1 + random() % 5000);
        for (std::size_t i = 0; i < length; ++i) bytes[at + i] = round % 3 == 0 ? '\0' : char(random());
        write(bad, bytes);
        readEverything(bad, outcome);
        ASSERT_EQ(outcome.improper, "") << "round " << round;
    }
    EXPECT_GT(outcome.refusals, 0);
}

TEST_F(DamagedFile, ADamagedLogNeverCrashesTheReader) {
    const std::string live = (folder / "live.kvtrace").string();
    std::string body, log;
    {
        Recorder recorder(live, {});
        synthetic::record(recorder, {});
        recorder.flush();
        body = contentsOf(live);
        log = contentsOf(live + "-wal");
    }
    ASSERT_GT(log.size(), 100000u);
    for (int round = 0; round < 150; ++round) {
        std::string bytes = log;
        if (round % 2 == 0)
            bytes.resize(random() % bytes.size());
        else
            for (int flips = 1 + int(random() % 8); flips > 0; --flips)
                bytes[random() % bytes.size()] ^= char(1u << (random() % 8));
        write(bad, body);
        write(bad + "-wal", bytes);
        std::filesystem::remove(bad + "-shm");
        readEverything(bad, outcome);
        ASSERT_EQ(outcome.improper, "") << "round " << round;
    }
    EXPECT_GT(outcome.answers, 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
