// Counters over time: curves against a brute force over their samples, reading in pieces, units, and what the device
// held against a set of blocks that is kept by hand.
#include "profiler/read/gauge_batch.h"

#include "base/error.h"
#include "profiler/format/counter_sample.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/recorded_flows.h"
#include "profiler/read/step_counters.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <array>
#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Sample = GaugeSeries::Sample;
using Source = GaugeInfo::Source;

TEST(GaugeSeries, AgreesWithEverySampleLookedAt) {
    std::mt19937 random(7);
    std::vector<Sample> all;
    for (std::int64_t at = 0; all.size() < 10'000; at += 1 + std::int64_t(random() % 50))
        all.push_back({at, at + 1 + std::int64_t(random() % 30), double(random() % 2'000) - 1'000});
    std::vector<Sample> shuffled = all;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    GaugeSeries series, late;
    series.append(all);
    for (std::size_t first = 0; first < shuffled.size(); first += 700)
        late.append({shuffled.begin() + std::ptrdiff_t(first),
                     shuffled.begin() + std::ptrdiff_t(std::min(first + 700, shuffled.size()))});
    ASSERT_EQ(series.size(), all.size());
    ASSERT_EQ(late.size(), all.size());
    const auto next = [&](std::size_t i) { return i + 1 < all.size() ? all[i + 1].startNs : GaugeSeries::kOpen; };
    for (int round = 0; round < 300; ++round) {
        const std::int64_t from = std::int64_t(random() % 260'000) - 1'000,
                           to = from + 1 + std::int64_t(random() % (round % 2 ? 100 : 200'000));
        float low = 0, high = 0;
        double wantedLow = INFINITY, wantedHigh = -INFINITY, value = std::nan("");
        for (std::size_t i = 0; i < all.size(); ++i) {
            const std::int64_t end = std::min(all[i].endNs, next(i)); // a sample ends where the next begins
            if (all[i].startNs < to && (end > from || all[i].startNs >= from)) {
                wantedLow = std::min(wantedLow, all[i].value);
                wantedHigh = std::max(wantedHigh, all[i].value);
            }
            if (all[i].startNs <= from && from < end) value = all[i].value;
        }
        for (const GaugeSeries* each : {&series, &late}) {
            ASSERT_EQ(each->range(from, to, low, high), wantedLow <= wantedHigh) << from << ' ' << to;
            if (wantedLow <= wantedHigh) {
                EXPECT_EQ(double(low), wantedLow);
                EXPECT_EQ(double(high), wantedHigh);
            }
            if (std::isnan(value))
                EXPECT_TRUE(std::isnan(each->at(from)));
            else
                EXPECT_EQ(each->at(from), value);
        }
    }
    EXPECT_EQ(series.largest(), late.largest());
    EXPECT_EQ(series.smallest(), -1000);
}

TEST(GaugeSeries, ReplacesWhatBeginsTogetherAndLeavesOutWhatIsNoNumber) {
    GaugeSeries series;
    series.append(
        {{10, GaugeSeries::kOpen, 5}, {20, GaugeSeries::kOpen, std::nan("")}, {25, GaugeSeries::kOpen, 1e300}});
    series.append({{10, GaugeSeries::kOpen, 3}, {30, GaugeSeries::kOpen, 4}});
    EXPECT_EQ(series.size(), 2u);
    EXPECT_EQ(series.largest(), 4) << "5 was replaced";
    EXPECT_TRUE(std::isnan(series.at(9)));
    EXPECT_EQ(series.at(29), 3) << "holds until the next one";
    EXPECT_EQ(series.at(1'000'000), 4);
    float low = 0, high = 0;
    EXPECT_FALSE(GaugeSeries().range(0, 100, low, high));
}

TEST(GaugeSeries, UnitsComeFromTheNamesOfTracks) {
    const GaugeInfo pcie = describeGauge(Source::Interval, kPcieToDevice);
    EXPECT_EQ(pcie.title, "PCIe to device");
    EXPECT_EQ(pcie.unit, GaugeUnit::BytesPerSecond);
    const GaugeInfo sampled = describeGauge(Source::Interval, kPmToHost);
    EXPECT_EQ(sampled.title, "PCIe to host (PM)");
    EXPECT_EQ(sampled.unit, GaugeUnit::BytesPerSecond);
    const GaugeInfo lost = describeGauge(Source::Interval, kLostGpuRecords);
    EXPECT_EQ(lost.title, "GPU records lost");
    EXPECT_EQ(lost.unit, GaugeUnit::Number);
    const GaugeInfo memory = describeGauge(Source::Held, "device memory allocated (bytes)");
    EXPECT_EQ(memory.title, "device memory allocated");
    EXPECT_EQ(memory.unit, GaugeUnit::Bytes);
    const GaugeInfo share = describeGauge(Source::Held, "PCIe Read Throughput [%]");
    EXPECT_EQ(share.title, "PCIe Read Throughput");
    EXPECT_EQ(share.unit, GaugeUnit::Percent);
    EXPECT_EQ(share.ceiling, 100);
    const GaugeInfo clock = describeGauge(Source::Held, "GPC Clock Frequency [MHz]");
    EXPECT_EQ(clock.unitName, "MHz");
    EXPECT_EQ(describeGauge(Source::Held, "(odd)").title, "(odd)");
    EXPECT_EQ(describeGauge(Source::Held, "").title, "");
}

/// Exact as long as every step since the prefill is there, and nobody knows any more after a gap.
TEST(StepCounters, KvTokensAreThoseThatWereFed) {
    const auto step = [](int number, Phase phase, int tokens) {
        StepRow row;
        row.step = number;
        row.phase = phase;
        row.tokens = tokens;
        row.startNs = number * 100;
        row.durationNs = 90;
        return row;
    };
    const auto kv = StepCounters::KvTokens;
    StepCounters counters;
    counters.append({step(0, Phase::Prefill, 1000), step(1, Phase::Decode, 4), step(2, Phase::Decode, 4)});
    EXPECT_EQ(counters.at(kv, 50), 1000);
    EXPECT_EQ(counters.at(kv, 250), 1008);
    EXPECT_EQ(counters.firstDecodeStep(), 1);
    std::int64_t from = 0, to = 0;
    ASSERT_TRUE(counters.timesOfAll(false, from, to));
    EXPECT_EQ(std::pair(from, to), (std::pair<std::int64_t, std::int64_t>(0, 290)));
    ASSERT_TRUE(counters.timesOfAll(true, from, to));
    EXPECT_EQ(from, 100);
    counters.append({step(4, Phase::Decode, 4)}); // 3 was dropped
    EXPECT_TRUE(std::isnan(counters.at(kv, 450)));
    StepCounters decodeOnly, sparse(64);
    decodeOnly.append({step(1, Phase::Decode, 4)}); // of a prompt nobody recorded
    EXPECT_FALSE(decodeOnly.has(kv));
    sparse.append({step(0, Phase::Prefill, 1000)});
    EXPECT_FALSE(sparse.has(kv)) << "with a device tier not all of them are there";
    EXPECT_EQ(sparse.firstDecodeStep(), -1);
    EXPECT_FALSE(sparse.timesOfAll(true, from, to));
    EXPECT_FALSE(StepCounters().timesOfAll(false, from, to));
}

struct Read {
    std::map<std::string, GaugeInfo> tracks;
    std::map<std::string, std::map<std::int64_t, GaugeSample>> samples; // by title, by time
};

Read readAll(const std::string& file, int rows) {
    const TraceReader reader(file);
    Read all;
    GaugePosition at;
    for (bool atEnd = false; !atEnd;) {
        const GaugeBatch batch = readGauges(reader, 1, at, rows);
        for (const GaugeInfo& info : batch.tracks) all.tracks[info.title] = info;
        for (const GaugeSample& sample : batch.samples)
            all.samples[batch.tracks[std::size_t(sample.track)].title][sample.startNs] = sample;
        at = batch.next;
        atEnd = batch.atEnd;
    }
    return all;
}

TEST(Gauges, CountersAreReadPerSecondInPiecesOfAnySize) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    std::vector<CounterSample> samples;
    for (int i = 0; i < 100; ++i) {
        samples.push_back({kPcieToDevice, i * 5'000'000, 5'000'000, i * 1000});
        samples.push_back({kPcieToHost, i * 5'000'000, 5'000'000, 7});
    }
    samples.push_back({kLostGpuRecords, 0, 500'000'000, 3});
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        recorder.take(samples);
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
    }
    for (const int rows : {16, 37, 100'000}) {
        const Read all = readAll(file, rows);
        ASSERT_EQ(all.samples.at("PCIe to device").size(), 100u);
        const GaugeSample& last = all.samples.at("PCIe to device").rbegin()->second;
        EXPECT_EQ(last.startNs, 495'000'000);
        EXPECT_EQ(last.endNs, 500'000'000);
        EXPECT_NEAR(last.value, 99'000 / 0.005, 1e-6);
        EXPECT_NEAR(all.samples.at("PCIe to host").begin()->second.value, 7 / 0.005, 1e-9);
        EXPECT_EQ(all.samples.at("GPU records lost").begin()->second.value, 3);
    }
    EXPECT_THROW(readGauges(TraceReader(file), 9, {}, 100), Error);
}

/// A value for every step that selects, in pieces of any size, as SQL has them.
TEST(Gauges, WhatTheOracleMeasuredIsAMeanOfEveryStep) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {.layers = 3, .sequences = 2, .denseLayers = 1, .decodeSteps = 20, .oracle = true});
    const auto wanted = test::sql(file, "SELECT s.start_ns, s.duration_ns, 100 * avg(o.recall), 100 * (1 - avg(o.mass))"
                                        " FROM v_oracle o JOIN v_step s USING (run_id, step) GROUP BY o.step"
                                        " ORDER BY o.step")
                            .rows;
    ASSERT_EQ(wanted.size(), 20u);
    for (const int rows : {16, 37, 100'000}) {
        SCOPED_TRACE(rows);
        const Read all = readAll(file, rows);
        for (const auto& [title, column] : {std::pair{kOracleRecall, 2}, std::pair{kLostMass, 3}}) {
            ASSERT_TRUE(all.tracks.contains(title));
            EXPECT_EQ(all.tracks.at(title).source, Source::Oracle);
            EXPECT_EQ(all.tracks.at(title).unit, GaugeUnit::Percent);
            const auto& samples = all.samples.at(title);
            ASSERT_EQ(samples.size(), wanted.size());
            auto at = samples.begin();
            for (const auto& row : wanted) {
                EXPECT_EQ(at->first, std::stoll(row[0]));
                EXPECT_EQ(at->second.endNs - at->first, std::stoll(row[1]));
                EXPECT_NEAR(at->second.value, std::stod(row[std::size_t(column)]), 1e-6);
                ++at;
            }
        }
    }
    EXPECT_EQ(readGauges(TraceReader(file), 1, {}, 100'000).next.oracle, true);
}

TEST(Gauges, ARunWithoutTheOracleSaysSoAndHasNoSuchTracks) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string(), dense = (folder / "dense.kvtrace").string();
    synthetic::recordFile(file, {.decodeSteps = 12});
    synthetic::recordFile(dense, {.layers = 2, .denseLayers = 2, .decodeSteps = 12});
    const Read all = readAll(file, 100'000);
    EXPECT_FALSE(all.tracks.contains(kOracleRecall) || all.tracks.contains(kLostMass));
    EXPECT_EQ(readGauges(TraceReader(file), 1, {}, 100'000).next.oracle, false);
    EXPECT_EQ(readGauges(TraceReader(dense), 1, {}, 100'000).next.oracle, std::nullopt) << "it selects nothing";
}

/// The blocks of every pool are kept as a set: what was selected gets a slot, and a slot is given up only for another.
TEST(Gauges, TheDeviceHoldsAsManyBlocksAsASetOfThemDoes) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    RunInfo info = synthetic::infoOf({.layers = 2, .decodeSteps = 12});
    info.kvHeads = 2;
    info.sequences = 1;
    info.deviceSlots = 9;
    info.blockBytes = 1000;
    std::mt19937 random(3);
    std::map<std::int64_t, std::int64_t> wanted; // by time, bytes
    {
        Recorder recorder(file, {});
        recorder.beginRun(info);
        std::map<std::pair<int, int>, std::set<int>> held;
        for (int number = 0; number < 12; ++number) {
            auto step = recorder.acquire();
            step->clear();
            step->step = number;
            step->phase = number == 0 ? Phase::Prefill : Phase::Decode;
            step->startNs = number * 1'000'000;
            step->durationNs = 900'000;
            step->layers.resize(2);
            for (int layer = 0; layer < 2 && number > 0; ++layer)
                for (int head = 0; head < 2; ++head) {
                    std::set<int>& slots = held[{layer, head}];
                    if (number == 1) slots.insert(100); // the prompt's last block was written on the device
                    std::set<int> chosen{100};
                    while (chosen.size() < 4) chosen.insert(int(random() % 30));
                    SelectionRecord selection;
                    selection.layer = layer;
                    selection.kvHead = head;
                    selection.selected = 4;
                    selection.first = std::uint32_t(step->blocks.size());
                    for (const int block : chosen) {
                        const bool hit = slots.contains(block);
                        selection.hits += hit;
                        selection.misses += !hit;
                        step->blocks.emplace_back(block, Origin::QueryAware, hit);
                        step->scores.push_back(0);
                    }
                    for (const int block : chosen) {
                        if (slots.contains(block)) continue;
                        if (slots.size() == 9)
                            slots.erase(*std::find_if(slots.begin(), slots.end(),
                                                      [&](int old) { return !chosen.contains(old); }));
                        slots.insert(block);
                    }
                    step->selections.push_back(selection);
                }
            std::int64_t blocks = 0;
            for (const auto& [pool, slots] : held) blocks += std::int64_t(slots.size());
            if (number > 0) wanted[step->startNs] = blocks * 1000;
            recorder.take(std::move(step));
        }
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
    }
    for (const int rows : {16, 17, 1'000}) { // 16 is the least
        const Read all = readAll(file, rows);
        ASSERT_TRUE(all.samples.contains(kResidentKv));
        std::map<std::int64_t, std::int64_t> found;
        for (const auto& [time, sample] : all.samples.at(kResidentKv)) found[time] = std::int64_t(sample.value);
        EXPECT_EQ(found, wanted) << rows;
        EXPECT_EQ(all.tracks.at(kResidentKv).ceiling, 4 * 9 * 1000);
    }
    test::sql(file, "DROP VIEW v_counter; DROP TABLE counter; DROP VIEW v_gauge; DROP TABLE gauge",
              SQLITE_OPEN_READWRITE);
    EXPECT_EQ(readAll(file, 100).samples.size(), 1u) << "older traces have fewer tables";
}

/// Layers that fill early, late and never, a layer and a sequence that begin late: what is stepped over changes
/// nothing. Also where a run has more sequences than it says.
TEST(Gauges, FullPoolsAreSteppedOverWithoutLosingAnyThatStillGrow) {
    constexpr int kSteps = 60, kLayers = 4, kSequences = 6, kHeads = 2;
    for (const int said : {kSequences, kSequences - 1, 0}) {
        const test::Folder folder;
        const std::string file = (folder / "run.kvtrace").string();
        RunInfo info = synthetic::infoOf({.layers = kLayers, .decodeSteps = 1});
        info.kvHeads = kHeads;
        info.sequences = said;
        info.deviceSlots = 12;
        info.blockBytes = 100;
        {
            Recorder recorder(file, {});
            recorder.beginRun(info);
            recorder.endRun(RunStatus::Finished, {});
            recorder.flush();
        }
        std::mt19937 random(11);
        std::map<std::array<int, 3>, int> grown; // of each pool: by how much, without an end
        std::map<std::int64_t, std::int64_t> wanted;
        std::string rows = "BEGIN;";
        for (int step = 1; step < kSteps; ++step) {
            std::string selections;
            for (int layer = 0; layer < kLayers; ++layer)
                for (int sequence = 0; sequence < kSequences; ++sequence)
                    for (int head = 0; head < kHeads; ++head) {
                        // They begin late; a sequence that the run does not know of begins with the others.
                        const int lastBegins = said == kSequences - 1 ? 1 : 30;
                        if ((layer == 2 && step < 20) || (sequence == 5 && step < lastBegins)) continue;
                        const bool opens = (step + sequence) % 16 == 0;
                        const int often = layer == 0 ? 1 : layer == 1 ? 9 : layer == 2 ? 3 : 200;
                        const int misses = random() % unsigned(often) == 0 ? int(random() % 4) : 0;
                        const auto [pool, isNew] = grown.try_emplace({layer, sequence, head}, opens ? 0 : 1);
                        pool->second += misses + opens;
                        rows += fmt::format("INSERT INTO selection VALUES ({},{},4,NULL,{},{},NULL,NULL);",
                                            trace::selectionKey(1, step, layer, sequence, head), int(opens), 4 - misses,
                                            misses);
                    }
            rows += fmt::format("INSERT INTO step VALUES ({},1,1,0,{},90,0,0,0,48,NULL,48,0,0,0,0,0,0,0);",
                                trace::stepKey(1, step), step * 100);
            std::int64_t blocks = 0;
            for (const auto& [pool, by] : grown) blocks += std::min(by, info.deviceSlots);
            wanted[step * 100] = blocks * info.blockBytes;
        }
        test::sql(file, rows + "COMMIT", SQLITE_OPEN_READWRITE);
        for (const int at : {16, 150, 100'000}) {
            const Read all = readAll(file, at);
            std::map<std::int64_t, std::int64_t> found;
            for (const auto& [time, sample] : all.samples.at(kResidentKv)) found[time] = std::int64_t(sample.value);
            EXPECT_EQ(found, wanted) << said << " sequences, " << at << " rows at once";
        }
    }
}

TEST(RecordedFlows, LeadBothWaysAndAreNoneWithoutATable) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
    }
    test::sql(file,
              "INSERT INTO text(id, value) VALUES (901,'cpu'),(902,'stream 7'),(903,'launch'),(904,'gemm');"
              "INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES "
              "(1,1,-1,-1,0,901,903,10,5,0),(2,1,-1,-1,1,902,904,30,9,0),"
              " (3,1,-1,-1,1,902,904,20,9,0),(4,1,-1,-1,1,902,904,90,9,0);"
              "INSERT INTO flow(run_id, from_span, to_span) VALUES (1,1,2),(1,1,3),(2,1,4)",
              SQLITE_OPEN_READWRITE);
    const TraceReader reader(file);
    const SpanPlace launch{"cpu", "launch", 10, 5, 0}, kernel{"stream 7", "gemm", 30, 9, 0};
    const auto out = recordedFlows(reader, 1, launch);
    ASSERT_EQ(out.size(), 2u) << "of this run";
    EXPECT_TRUE(out[0].leaves);
    EXPECT_EQ(out[0].other.startNs, 20);
    EXPECT_EQ(out[1].other, kernel);
    const auto in = recordedFlows(reader, 1, kernel);
    ASSERT_EQ(in.size(), 1u);
    EXPECT_FALSE(in[0].leaves);
    EXPECT_EQ(in[0].other, launch);
    EXPECT_TRUE(recordedFlows(reader, 1, {"cpu", "launch", 11, 5, 0}).empty());
    test::sql(file, "DROP VIEW v_flow; DROP TABLE flow", SQLITE_OPEN_READWRITE);
    EXPECT_TRUE(recordedFlows(TraceReader(file), 1, launch).empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
