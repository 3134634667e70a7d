#include "base/utf8.h"
#include "profiler/read/trace_reader.h"

#include "base/error.h"
#include "profiler/export/gzip_stream.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::failureOf;

using synthetic::RunShape;
using testing::HasSubstr;

class ReaderTest : public testing::Test {
protected:
    void SetUp() override {
        shape.sequences = 2;
        shape.decodeSteps = 40;
        shape.denseLayers = 1;
        shape.oracle = true;
        synthetic::recordFile(file, shape);
        steps = synthetic::stepsOf(shape);
    }
    /// NaN equals NaN.
    static bool same(double a, double b) {
        return (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= 1e-4 * std::abs(b);
    }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
    RunShape shape;
    std::vector<StepRecord> steps;
};

TEST_F(ReaderTest, RangesOfStepsAreCutToWhatIsThere) {
    TraceReader reader(file);
    EXPECT_EQ(reader.steps(1).size(), 41u);
    EXPECT_EQ(reader.steps(1, 5, 7).size(), 3u);
    EXPECT_EQ(reader.steps(1, 5, 7).front().step, 5);
    EXPECT_EQ(reader.steps(1, 39, 400).size(), 2u);
    EXPECT_EQ(reader.steps(1, -3, 0).size(), 1u);
    EXPECT_TRUE(reader.steps(1, 41).empty());
    EXPECT_TRUE(reader.steps(1, 8, 7).empty());
    EXPECT_TRUE(reader.steps(2).empty());
    EXPECT_TRUE(reader.steps(-1).empty());
    EXPECT_TRUE(reader.steps(100000).empty());
    EXPECT_FALSE(reader.run(2).has_value());
    EXPECT_FALSE(reader.run(0).has_value());
    EXPECT_EQ(reader.stepCount(2), 0);
    EXPECT_EQ(reader.tokens(1, 0, 30).front().step, 30);
    EXPECT_EQ(reader.breakdownSteps(1, 4, 6).size(), 3u);
    EXPECT_TRUE(reader.tokens(1, 7).empty());
    EXPECT_TRUE(reader.prompt(1, 7).empty());
    EXPECT_EQ(reader.prompt(1, 0, 198, 10).size(), 2u);
    EXPECT_EQ(reader.prompt(1, 1, 0, 3).size(), 3u);
    EXPECT_FALSE(reader.selection(1, 0, 1, 0, 0).has_value());
    EXPECT_FALSE(reader.selection(1, -1, 1, 0, 0).has_value());
    EXPECT_FALSE(reader.selection(1, 5, 1, 0, 5000).has_value());
    EXPECT_FALSE(reader.selection(1, 5, -1, 0, 0).has_value());
}

TEST_F(ReaderTest, LayerMatricesHoldTheLayersSums) {
    TraceReader reader(file);
    for (const MetricInfo& info : metrics()) {
        const StepMatrix matrix = reader.layerMatrix(1, info.metric);
        ASSERT_EQ(matrix.steps, 41);
        ASSERT_EQ(matrix.rows, 4);
        ASSERT_EQ(matrix.rowNames.size(), 4u);
        ASSERT_EQ(matrix.values.size(), 41u * 4u);
        for (const StepRecord& step : steps)
            for (int l = 0; l < 4; ++l) {
                const LayerRecord& layer = step.layers[std::size_t(l)];
                double want = std::nan("");
                double mass = 0, recall = 0, farMass = 0;
                int masses = 0, fars = 0;
                std::int64_t time = 0;
                for (const std::int64_t ns : layer.stageNs) time += ns;
                for (const SelectionRecord& selection : step.selections)
                    if (selection.layer == l) {
                        mass += selection.mass, recall += selection.recall, ++masses;
                        if (!std::isnan(selection.farMass)) farMass += selection.farMass, ++fars;
                    }
                switch (info.metric) {
                case Metric::Locality:
                    if (layer.kept >= 0 && layer.selected > 0) want = double(layer.kept) / layer.selected;
                    break;
                case Metric::HitRate:
                    if (layer.selected > 0) want = double(layer.hits) / layer.selected;
                    break;
                case Metric::Misses:
                    want = layer.misses;
                    break;
                case Metric::H2dBytes:
                    want = double(layer.h2dBytes);
                    break;
                case Metric::ExposedTime:
                    want = double(layer.exposedNs) / 1e3;
                    break;
                case Metric::LayerTime:
                    want = double(time) / 1e3;
                    break;
                case Metric::Mass:
                    if (masses > 0) want = mass / masses;
                    break;
                case Metric::Recall:
                    if (masses > 0) want = recall / masses;
                    break;
                case Metric::FarMass:
                    if (fars > 0) want = farMass / fars;
                    break;
                }
                EXPECT_TRUE(same(matrix.at(step.step, l), want)) << info.id << " step " << step.step << " layer " << l
                                                                 << ": " << matrix.at(step.step, l) << " not " << want;
            }
    }
}

TEST_F(ReaderTest, FilteredMatricesHoldTheSumsOfTheHeadsAskedFor) {
    TraceReader reader(file);
    for (const HeadFilter filter :
         {HeadFilter{0, -1}, HeadFilter{1, -1}, HeadFilter{-1, 1}, HeadFilter{1, 0}, HeadFilter{5, 0}})
        for (const MetricInfo& info : metrics()) {
            const StepMatrix matrix = reader.layerMatrix(1, info.metric, filter, 3, 30);
            ASSERT_EQ(matrix.firstStep, 3);
            ASSERT_EQ(matrix.steps, 28);
            for (int step = 3; step <= 30; ++step)
                for (int l = 0; l < 4; ++l) {
                    double kept = 0, comparable = 0, hits = 0, misses = 0, mass = 0, recall = 0, farMass = 0;
                    int rows = 0, fars = 0;
                    for (const SelectionRecord& selection : steps[std::size_t(step)].selections) {
                        if (selection.layer != l || (filter.sequence >= 0 && selection.sequence != filter.sequence) ||
                            (filter.kvHead >= 0 && selection.kvHead != filter.kvHead))
                            continue;
                        ++rows;
                        if (selection.kept >= 0) kept += selection.kept, comparable += selection.selected;
                        hits += selection.hits;
                        misses += selection.misses;
                        mass += selection.mass;
                        recall += selection.recall;
                        if (!std::isnan(selection.farMass)) farMass += selection.farMass, ++fars;
                    }
                    double want = std::nan("");
                    if (rows > 0 && info.metric == Metric::Locality && comparable > 0) want = kept / comparable;
                    if (rows > 0 && info.metric == Metric::HitRate) want = hits / (hits + misses);
                    if (rows > 0 && info.metric == Metric::Misses) want = misses;
                    if (rows > 0 && info.metric == Metric::H2dBytes) want = misses * 8192;
                    if (rows > 0 && info.metric == Metric::Mass) want = mass / rows;
                    if (rows > 0 && info.metric == Metric::Recall) want = recall / rows;
                    if (fars > 0 && info.metric == Metric::FarMass) want = farMass / fars;
                    EXPECT_TRUE(same(matrix.at(step - 3, l), want)) << info.id << " step " << step << " layer " << l;
                }
        }
}

TEST_F(ReaderTest, HeadMatricesHaveARowForEverySequenceAndHead) {
    TraceReader reader(file);
    const StepMatrix matrix = reader.headMatrix(1, Metric::Locality, 2);
    ASSERT_EQ(matrix.rows, 4);
    EXPECT_EQ(matrix.rowNames[3], "sequence 1, head 1");
    int defined = 0;
    for (const StepRecord& step : steps)
        for (const SelectionRecord& selection : step.selections) {
            if (selection.layer != 2) continue;
            const double want = selection.kept < 0 ? std::nan("") : double(selection.kept) / selection.selected;
            EXPECT_TRUE(same(matrix.at(step.step, selection.sequence * 2 + selection.kvHead), want));
            defined += selection.kept >= 0;
        }
    EXPECT_EQ(std::count_if(matrix.values.begin(), matrix.values.end(), [](float v) { return !std::isnan(v); }),
              defined);
    EXPECT_EQ(reader.headMatrix(1, Metric::Misses, 77).values.size(), matrix.values.size());
}

TEST_F(ReaderTest, MatricesOfUnknownRunsAreRefused) {
    TraceReader reader(file);
    EXPECT_THAT(failureOf([&] { reader.layerMatrix(9, Metric::Locality); }), HasSubstr("no run 9"));
    EXPECT_THAT(failureOf([&] { reader.headMatrix(9, Metric::Locality, 0); }), HasSubstr("no run 9"));
}

TEST_F(ReaderTest, BlockTextRunsFromThePromptIntoTheAnswer) {
    TraceReader reader(file);
    for (int sequence = 0; sequence < 2; ++sequence) {
        std::map<int, std::string> all;
        for (const TokenRow& token : reader.prompt(1, sequence)) all[token.position] = token.bytes;
        for (const TokenRow& token : reader.tokens(1, sequence)) all[token.position] = token.bytes;
        const int last = all.rbegin()->first;
        EXPECT_EQ(int(all.size()), last + 1);
        for (int block = 0; block * 16 <= last + 16; ++block) {
            std::string want;
            for (int i = block * 16; i < block * 16 + 16; ++i)
                if (all.count(i)) want += all[i];
            EXPECT_EQ(reader.blockText(1, sequence, block), toValidUtf8(want)) << "block " << block;
        }
    }
    EXPECT_EQ(reader.blockText(1, 0, -1), "");
    EXPECT_EQ(reader.blockText(1, 0, 1 << 30), "");
    EXPECT_EQ(reader.blockText(1, 9, 0), "");
    EXPECT_EQ(reader.blockText(4, 0, 0), "");
}

TEST_F(ReaderTest, BlockTextFindsTokensThatSkipPositions) {
    // As another engine would write it: two tokens a step from step 10 on.
    test::sql(
        file,
        "UPDATE token SET position = position + ((id >> 20) & 0x1FFFFFF) - 9 WHERE ((id >> 20) & 0x1FFFFFF) >= 10",
        SQLITE_OPEN_READWRITE);
    TraceReader reader(file);
    std::map<int, std::string> all;
    for (const TokenRow& token : reader.tokens(1, 0)) all[token.position] = token.bytes;
    std::string want;
    for (int i = 224; i < 240; ++i)
        if (all.count(i)) want += all[i];
    EXPECT_FALSE(want.empty());
    EXPECT_EQ(reader.blockText(1, 0, 14), toValidUtf8(want));
}

TEST_F(ReaderTest, MetricsHaveUniqueNamesAndHelp) {
    std::set<std::string> ids;
    std::set<int> kinds;
    for (const MetricInfo& info : metrics()) {
        EXPECT_TRUE(ids.insert(info.id).second);
        EXPECT_TRUE(kinds.insert(int(info.metric)).second);
        EXPECT_GT(std::string(info.help).size(), 20u);
        EXPECT_GT(std::string(info.title).size(), 3u);
    }
    EXPECT_EQ(kinds.size(), 9u);
}

TEST_F(ReaderTest, StopsLongReadsWhenAsked) {
    TraceReader reader(file);
    std::atomic<bool> stop = true;
    reader.setInterrupt(&stop);
    EXPECT_THAT(failureOf([&] {
                    for (int i = 0; i < 1000; ++i) reader.breakdown(1);
                }),
                HasSubstr("cancelled"));
    stop = false;
    EXPECT_FALSE(reader.breakdown(1).empty());
    stop = true;
    reader.setInterrupt(nullptr);
    EXPECT_FALSE(reader.breakdown(1).empty());
}

TEST_F(ReaderTest, CallsARunStaleWhoseWriterIsSilent) {
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf(shape));
        recorder.flush();
        EXPECT_FALSE(TraceReader(file).run(2)->stale);
        recorder.endRun(RunStatus::Finished, "");
    }
    test::sql(file,
              "UPDATE run SET status='running' WHERE run_id=2; UPDATE health SET heartbeat_ms = heartbeat_ms - 60000",
              SQLITE_OPEN_READWRITE);
    TraceReader reader(file);
    EXPECT_TRUE(reader.run(2)->stale);
    EXPECT_FALSE(reader.run(1)->stale); // finished long ago is not stale
}

TEST_F(ReaderTest, CanBeMoved) {
    TraceReader first(file);
    TraceReader second(std::move(first));
    EXPECT_EQ(second.stepCount(1), 41);
    EXPECT_EQ(second.path(), file);
}

TEST_F(ReaderTest, SaysWhatIsWrongWithAFile) {
    const std::string other = (folder / "other").string();
    EXPECT_THAT(failureOf([&] { TraceReader reader(other); }), HasSubstr("there is no file " + other));
    EXPECT_THAT(failureOf([&] { TraceReader reader(folder.path().string()); }), HasSubstr("is not a file"));
    std::ofstream(other)
        << "hello, I am a text file and a little longer than the header of a database, which has 100 bytes.\n";
    EXPECT_THAT(failureOf([&] { TraceReader reader(other); }), HasSubstr(other + " is not a KVScope trace"));
    std::ofstream(other, std::ios::trunc).close();
    EXPECT_THAT(failureOf([&] { TraceReader reader(other); }), HasSubstr("is empty"));
    std::filesystem::remove(other);
    test::sql(other, "CREATE TABLE run(x)", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    EXPECT_THAT(failureOf([&] { TraceReader reader(other); }), HasSubstr("not a KVScope trace"));
    test::sql(other, "PRAGMA application_id=0x4B565343; PRAGMA user_version=1", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(failureOf([&] { TraceReader reader(other); }), HasSubstr("it has no table health"));
    test::sql(file, "PRAGMA user_version=9", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(failureOf([&] { TraceReader reader(file); }), HasSubstr("has trace format 9"));
    EXPECT_THAT(failureOf([&] { TraceReader reader(file); }), HasSubstr("update KVScope"));
}

TEST_F(ReaderTest, SaysThatATraceIsCompressed) {
    if (!GzipStream::isAvailable()) GTEST_SKIP() << "built without zlib";
    const std::string packed = file + ".gz";
    {
        std::ifstream in(file, std::ios::binary);
        std::ofstream out(packed, std::ios::binary);
        GzipStream gzip(*out.rdbuf());
        std::ostream(&gzip) << in.rdbuf();
        ASSERT_TRUE(gzip.finish());
    }
    EXPECT_THAT(failureOf([&] { TraceReader reader(packed); }), HasSubstr(packed + " is compressed; unpack it"));
}

TEST_F(ReaderTest, RefusesAViewInPlaceOfATable) {
    test::sql(file,
              "DROP TABLE span; CREATE VIEW span AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT "
              "* FROM n",
              SQLITE_OPEN_READWRITE);
    EXPECT_THAT(failureOf([&] { TraceReader reader(file); }), HasSubstr("no table span"));
}

TEST_F(ReaderTest, RefusesAbsurdNumbers) {
    test::sql(file, "UPDATE run SET layers = 2000000000", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(failureOf([&] { TraceReader reader(file); }), HasSubstr("layers = 2000000000"));
    test::sql(file, "UPDATE run SET layers = 4; UPDATE step SET tokens = 5000000000 WHERE id & 0x1FFFFFF = 4",
              SQLITE_OPEN_READWRITE);
    TraceReader reader(file);
    EXPECT_THAT(failureOf([&] { reader.steps(1); }), HasSubstr("tokens is 5000000000"));
    EXPECT_EQ(reader.steps(1, 5).size(), 36u);
}

TEST_F(ReaderTest, RefusesADamagedSelection) {
    test::sql(file, "UPDATE selection SET blocks = x'FF00' WHERE id = (SELECT min(id) FROM selection)",
              SQLITE_OPEN_READWRITE);
    TraceReader reader(file);
    EXPECT_THAT(failureOf([&] { reader.selections(1, 1, 0, 0); }), HasSubstr("step 1, layer 1, sequence 0, KV head 0"));
    EXPECT_EQ(reader.selections(1, 1, 0, 0, 2).size(), 39u);
}

TEST_F(ReaderTest, RefusesAMatrixThatWouldNotFit) {
    test::sql(file, "UPDATE run SET sequences = 1024, kv_heads = 1024", SQLITE_OPEN_READWRITE);
    test::sql(file, "UPDATE step SET id = (1 << 25) | 0x1FFFFFF WHERE id = (1 << 25) | 40", SQLITE_OPEN_READWRITE);
    TraceReader reader(file);
    EXPECT_THAT(failureOf([&] { reader.headMatrix(1, Metric::Misses, 1); }), HasSubstr("shorter range"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
