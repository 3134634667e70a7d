// Counter samples: recorded, read, held beside the engine's bytes; older traces do without and take them on.
#include "core/transfer/link.h"
#include "profiler/read/counters.h"

#include "profiler/export/export.h"
#include "profiler/import/import.h"
#include "profiler/insights/insight.h"
#include "profiler/record/recorder.h"
#include "profiler/report/report.h"
#include "profiler/report/run_data.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gmock/gmock.h>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::HasSubstr;

/// A prefill of 1 ms, then two decode steps of 1 ms that move 1000 and 3000 bytes to the device and 500 back.
void recordWithCounters(const std::string& file, std::vector<CounterSample> samples) {
    Recorder recorder(file, {});
    synthetic::RunShape shape;
    shape.layers = 1;
    recorder.beginRun(synthetic::infoOf(shape));
    for (int step = 0; step < 3; ++step) {
        auto record = recorder.acquire();
        record->step = step;
        record->phase = step == 0 ? Phase::Prefill : Phase::Decode;
        record->startNs = 1'000'000 * step;
        record->durationNs = 1'000'000;
        record->layers.resize(1);
        record->layers[0].startNs = record->startNs;
        if (step == 0) record->tokens = shape.promptTokens;
        LayerRecord& layer = record->layers[0];
        layer.h2dBytes = step == 0 ? 0 : step == 1 ? 1000 : 3000;
        layer.d2hBytes = step == 1 ? 500 : 0;
        layer.h2dBlocks = step == 0 ? 0 : 1;
        layer.transferNs = Link().transferNs(layer.h2dBytes) + Link().transferNs(layer.d2hBytes);
        recorder.take(std::move(record));
    }
    recorder.take(std::move(samples));
    recorder.endRun(RunStatus::Finished, {});
    recorder.flush();
}

std::string exported(const std::string& file) {
    std::ostringstream out;
    exportTable(file, ExportTable::Counters, ExportFormat::Csv, out);
    return out.str();
}

TEST(Counters, AreReadBackAndHeldBesideTheEnginesBytes) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    // Prefill only; half in prefill, half in decoding; decoding; a quarter in decoding. Another track does not mix in.
    recordWithCounters(file, {{kPcieToDevice, 0, 500'000, 7777},
                              {kPcieToDevice, 500'000, 1'000'000, 2000},
                              {kPcieToHost, 500'000, 1'000'000, 600},
                              {kPcieToDevice, 1'500'000, 1'000'000, 3000},
                              {kPcieToDevice, 2'500'000, 2'000'000, 400},
                              {kLostGpuRecords, 0, 4'500'000, 3}});
    const TraceReader reader(file);
    const auto samples = counterSamples(reader, 1);
    ASSERT_EQ(samples.size(), 6u);
    EXPECT_EQ(samples[0].value, 7777);
    EXPECT_EQ(samples.back().startNs, 2'500'000);
    const auto traffic = pcieTraffic(reader, 1);
    ASSERT_TRUE(traffic.has_value());
    EXPECT_EQ(traffic->countedToDevice, 1000 + 3000 + 100);
    EXPECT_EQ(traffic->countedToHost, 300);
    EXPECT_EQ(traffic->engineToDevice, 4000);
    EXPECT_EQ(traffic->engineToHost, 500);
    EXPECT_EQ(lostGpuRecords(reader, 1), 3);
    EXPECT_FALSE(pcieTraffic(reader, 2).has_value());
    EXPECT_EQ(test::value(file, "SELECT sum(value) FROM v_counter WHERE track LIKE 'PCIe%device'"), "13177");
    EXPECT_THAT(exported(file), HasSubstr("1,PCIe bytes to host,500000,1000000,600\n"));

    const InsightReport insights = insightsOf(reader, 1, {});
    const auto said = std::find_if(insights.insights.begin(), insights.insights.end(),
                                   [](const Insight& insight) { return insight.id == "lost-gpu-records"; });
    ASSERT_NE(said, insights.insights.end());
    EXPECT_THAT(said->title, HasSubstr("3 records"));
    const auto runs = reports::readRuns({file});
    EXPECT_THAT(reports::lossText(runs.front()), HasSubstr("3 records of GPU kernels"));
    const auto tables = reports::keyNumbers(runs);
    const auto bytesOf = [&](const std::string& name) {
        for (const auto& row : tables.rows)
            if (std::get<std::string>(row[0].value) == name) return row[1].number();
        return -1e9;
    };
    EXPECT_EQ(bytesOf("PCIe counter, to device"), 4100);
    EXPECT_EQ(bytesOf("PCIe counter minus engine, to device"), 100);
    EXPECT_EQ(bytesOf("PCIe counter minus engine, to host"), -200);
}

TEST(Counters, PmSamplingIsPreferredAndComparesSingleSteps) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    // Steps of 1 ms. In samples of 0.1 ms, step 1 carries 1100 bytes down and 600 up, step 2 3300 and nothing; one
    // sample lies half in each step. NVML, were it there too, counts whole packets.
    std::vector<CounterSample> samples{{kPcieToDevice, 1'000'000, 2'000'000, 5000}};
    for (int i = 0; i < 9; ++i) samples.push_back({kPmToDevice, 1'000'000 + i * 100'000 + 50'000, 100'000, 100});
    samples.push_back({kPmToDevice, 1'950'000, 100'000, 400});
    for (int i = 0; i < 9; ++i) samples.push_back({kPmToDevice, 2'050'000 + i * 100'000, 100'000, i == 4 ? 3100 : 0});
    samples.push_back({kPmToHost, 1'200'000, 100'000, 600});
    samples.push_back({kPmToHost, 1'300'000, 1'700'000, 0}); // an idle link's samples are joined
    samples.push_back({kLostPmSamples, 0, 3'000'000, 2});
    recordWithCounters(file, samples);
    const TraceReader reader(file);
    const auto traffic = pcieTraffic(reader, 1);
    ASSERT_TRUE(traffic.has_value());
    EXPECT_TRUE(traffic->sampled);
    EXPECT_EQ(traffic->countedToDevice, 900 + 400 + 3100);
    EXPECT_EQ(traffic->countedToHost, 600);
    const auto steps = pcieOfSteps(reader, 1);
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(steps[0].step, 1);
    EXPECT_EQ(steps[0].traffic.countedToDevice, 900 + 200);
    EXPECT_EQ(steps[0].traffic.engineToDevice, 1000);
    EXPECT_EQ(steps[0].traffic.countedToHost, 600);
    EXPECT_EQ(steps[1].traffic.countedToDevice, 200 + 3100);
    EXPECT_EQ(steps[1].traffic.countedToHost, 0);
    EXPECT_EQ(lostPmSamples(reader, 1), 2);
    EXPECT_FALSE(lostGpuRecords(reader, 1).has_value());

    const auto runs = reports::readRuns({file});
    const reports::Table table = reports::pcieCounters(runs);
    ASSERT_EQ(table.rows.size(), 2u);
    const auto cell = [&](int row, const char* column) {
        return reports::raw(table.rows[std::size_t(row)][std::size_t(table.columnAt(column))]);
    };
    EXPECT_EQ(cell(0, "counted_by"), "PM sampling");
    EXPECT_EQ(cell(0, "engine_bytes"), "4000");
    EXPECT_EQ(cell(0, "difference_bytes"), "400");
    // 4000 bytes are 31.25 packets of 128 bytes with 12 around each.
    EXPECT_EQ(cell(0, "expected_bytes"), "4375");
    EXPECT_EQ(cell(0, "left_bytes"), "25");
    EXPECT_EQ(cell(0, "steps"), "2");
    EXPECT_EQ(cell(0, "mean_left_bytes"), "12.5"); // 1100 - 1094 and 3300 - 3281
    EXPECT_EQ(cell(0, "largest_left_bytes"), "19");
    EXPECT_EQ(cell(0, "largest_left_step"), "2");
    // 500 bytes with 16 around each 128, and 16 to ask for each 128 of the 4000.
    EXPECT_EQ(cell(1, "difference_bytes"), "100");
    EXPECT_EQ(cell(1, "expected_bytes"), "1063"); // 1062.5
    EXPECT_THAT(reports::lossText(runs.front()), HasSubstr("2 samples of the GPU's counters"));
    const InsightReport insights = insightsOf(reader, 1, {});
    EXPECT_TRUE(std::any_of(insights.insights.begin(), insights.insights.end(),
                            [](const Insight& insight) { return insight.id == "lost-pm-samples"; }));
}

TEST(Counters, AReportSaysWhyTheyComeFromNvml) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    recordWithCounters(file, {});
    EXPECT_THAT(reports::readRuns({file}).front().notes, ::testing::IsEmpty());
    EXPECT_EQ(reports::health(reports::readRuns({file})).find("quantity", "Notes"), nullptr);
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        SpanRecord note;
        note.track = "recorder";
        note.name = "PCIe bytes are counted by NVML and not by PM sampling, because libcupti was not found";
        recorder.take(std::vector<SpanRecord>{note});
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
    }
    EXPECT_THAT(csv(reports::health(reports::readRuns({file}))), HasSubstr(",\"PCIe bytes are counted by NVML"));
}

TEST(Counters, AReportHasEachNoteOnceAndNoneOfAnotherTool) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    {
        Recorder recorder(file, {});
        RunInfo imported = synthetic::infoOf({});
        imported.backend = kImported;
        for (const RunInfo& info : {synthetic::infoOf({}), imported}) {
            recorder.beginRun(info);
            std::vector<SpanRecord> notes(30);
            for (std::size_t i = 0; i < notes.size(); ++i) {
                notes[i].track = "recorder";
                notes[i].name = i < 3 ? "the same" : "note " + std::to_string(i);
            }
            recorder.take(notes);
            recorder.endRun(RunStatus::Finished, {});
        }
        recorder.flush();
    }
    const std::vector<reports::RunData> runs = reports::readRuns({file});
    ASSERT_EQ(runs.size(), 2U);
    ASSERT_EQ(runs[0].notes.size(), 20U);
    EXPECT_EQ(runs[0].notes[0], "the same");
    EXPECT_EQ(runs[0].notes[1], "note 3");
    EXPECT_TRUE(runs[1].notes.empty());
}

TEST(Counters, BytesOfADamagedTraceThatNoSumHoldsAreReadAllTheSame) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    recordWithCounters(file,
                       {{kPmToDevice, 1'000'000, 100'000, 1}, {kLostPmSamples, 0, 1, 2}, {kLostPmSamples, 1, 1, 3}});
    test::sql(file,
              "UPDATE step SET h2d_bytes = 9223372036854775807, d2h_bytes = 9223372036854775807;"
              "UPDATE counter SET value = -9223372036854775807;",
              SQLITE_OPEN_READWRITE);
    const TraceReader reader(file);
    EXPECT_TRUE(pcieTraffic(reader, 1).has_value());
    EXPECT_TRUE(lostPmSamples(reader, 1).has_value());
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    reports::RunData run;
    run.pcie = PcieTraffic{true, -kMost, -kMost, kMost, kMost};
    run.pcieSteps = {{1, *run.pcie}, {2, *run.pcie}};
    EXPECT_EQ(reports::pcieCounters({run}).rows.size(), 2U);
}

TEST(Counters, StepsShorterThanASampleOfNvmlAreNotCompared) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    recordWithCounters(file, {{kPcieToDevice, 1'000'000, 5'000'000, 5000}});
    const TraceReader reader(file);
    EXPECT_TRUE(pcieOfSteps(reader, 1).empty());
    const auto traffic = pcieTraffic(reader, 1);
    ASSERT_TRUE(traffic.has_value());
    EXPECT_FALSE(traffic->sampled);
    const reports::Table table = reports::pcieCounters(reports::readRuns({file}));
    EXPECT_EQ(reports::raw(table.rows[0][std::size_t(table.columnAt("counted_by"))]), "NVML");
    EXPECT_EQ(reports::raw(table.rows[0][std::size_t(table.columnAt("mean_left_bytes"))]), "");
    EXPECT_EQ(traffic->expectedToDevice(), 4000 + 4000 * 20 / 128) << "8 bytes more of a packet than PM sampling";
    EXPECT_EQ(traffic->expectedToHost(), 500 + 94 + 750);
}

TEST(Counters, ShowAsCounterTracksOfTheChromeTrace) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    recordWithCounters(file, {{kPcieToDevice, 1'000'000, 500'000, 20'000'000},
                              {kPmMemoryRead, 1'000'000, 500'000, 400'000},
                              {kLostGpuRecords, 0, 1, 0}});
    std::ostringstream out;
    exportChromeTrace(file, out);
    int found = 0, memory = 0;
    std::map<std::string, std::string> process; // of a counter
    std::map<int, std::string> named;
    const auto trace = nlohmann::json::parse(out.str());
    for (const auto& event : trace["traceEvents"]) {
        EXPECT_NE(event["name"], kLostGpuRecords);
        if (event["name"] == "process_name") named[event["pid"]] = event["args"]["name"];
        if (event["ph"] == "C") process[event["name"]] = named[event["pid"]];
        if (event["name"] == kPmMemoryRead) memory += event["args"]["GB/s"] == 0.8 ? 1 : 0;
        if (event["ph"] == "C" && event["name"] == kPcieToDevice) {
            const bool begins = event["ts"] == 1000.0; // the other is its end, whose 0 viewers draw from there on
            found += begins ? 1 : 0;
            EXPECT_EQ(event["args"]["GB/s"], begins ? 40.0 : 0.0) << event;
        }
    }
    EXPECT_EQ(found, 1);
    EXPECT_GE(memory, 1);
    EXPECT_THAT(process[kPcieToDevice], HasSubstr("link"));
    EXPECT_THAT(process[kPmMemoryRead], HasSubstr("GPU"));
}

TEST(Counters, ATraceFromBeforeThemIsReadAndTakesThemOn) {
    test::Folder folder;
    const std::string file = (folder / "old.kvtrace").string();
    recordWithCounters(file, {});
    test::sql(file, "DROP VIEW v_counter; DROP TABLE counter;", SQLITE_OPEN_READWRITE);
    {
        const TraceReader reader(file);
        EXPECT_TRUE(counterSamples(reader, 1).empty());
        EXPECT_FALSE(pcieTraffic(reader, 1).has_value());
        EXPECT_FALSE(lostGpuRecords(reader, 1).has_value());
        std::ostringstream out;
        EXPECT_THAT(exportTable(file, ExportTable::Counters, ExportFormat::Csv, out).note, HasSubstr("no counters"));
        EXPECT_GT(exportChromeTrace(file, out).rows, 0);
    }
    recordWithCounters(file, {{kPcieToHost, 1'000'000, 2'000'000, 900}});
    const TraceReader reader(file);
    EXPECT_TRUE(counterSamples(reader, 1).empty());
    const auto traffic = pcieTraffic(reader, 2);
    ASSERT_TRUE(traffic.has_value());
    EXPECT_EQ(traffic->countedToHost, 900);
    // The same tables as a new file has.
    const std::string fresh = (folder / "new.kvtrace").string();
    recordWithCounters(fresh, {});
    const char* shape = "SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_schema WHERE name LIKE '%counter' "
                        "ORDER BY name)";
    EXPECT_EQ(test::value(file, shape), test::value(fresh, shape));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
