// The exported timeline against the documented rules of the format, and through our own importer back again.
#include "base/error.h"
#include "profiler/export/export.h"
#include "profiler/export/output_file.h"
#include "profiler/import/byte_source.h"
#include "profiler/import/import.h"
#include "profiler/read/trace_reader.h"
#include "profiler/store/trace_store.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <sys/resource.h>
#include <tuple>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using testing::HasSubstr;
using Row = std::vector<std::string>;

std::int64_t nanoseconds(const json& micros) { return std::llround(micros.get<double>() * 1e3); }

struct Slice {
    std::int64_t start, end;
    std::string name;
};
using TrackOf = std::pair<int, int>;

/// What Perfetto demands of a document: see docs/import-export.md. Fails the test where a rule is broken.
struct Checked {
    std::map<TrackOf, std::vector<Slice>> slices;
    std::map<TrackOf, std::string> threads;
    std::map<int, std::string> processes;
    std::map<std::string, int> counters, flows; // values of a counter, arrows of a kind

    explicit Checked(const json& document) {
        std::map<std::tuple<std::string, std::string, std::uint64_t>, std::pair<int, int>> ends; // starts, finishes
        std::vector<std::tuple<json, TrackOf, std::int64_t>> points;
        std::map<std::string, std::int64_t> lastCounter;
        for (const json& event : document.at("traceEvents")) {
            const std::string phase = event.at("ph");
            const TrackOf at{event.at("pid"), event.at("tid")};
            if (phase == "M") {
                if (event.at("name") == "thread_name") threads[at] = event.at("args").at("name");
                if (event.at("name") == "process_name") processes[at.first] = event.at("args").at("name");
            } else if (phase == "X") {
                const std::int64_t start = nanoseconds(event.at("ts")), length = nanoseconds(event.at("dur"));
                EXPECT_GE(length, 0);
                if (!slices[at].empty()) {
                    EXPECT_GE(start, slices[at].back().start) << "not sorted";
                }
                slices[at].push_back({start, start + length, event.at("name")});
            } else if (phase == "C") {
                EXPECT_EQ(event.at("args").size(), 1u);
                const std::string track =
                    event.at("name").get<std::string>() + " " + event.at("args").begin().key(); // Perfetto's name of it
                const std::string name = std::to_string(at.first) + track;
                if (lastCounter.count(name)) {
                    EXPECT_GE(nanoseconds(event.at("ts")), lastCounter[name]);
                }
                lastCounter[name] = nanoseconds(event.at("ts"));
                ++counters[track];
            } else {
                EXPECT_TRUE(phase == "s" || phase == "f") << phase;
                auto& [starts, finishes] = ends[{event.at("cat"), event.at("name"), event.at("id")}];
                if (phase == "s") {
                    EXPECT_EQ(finishes, 0) << "the start comes first";
                    ++starts;
                } else {
                    EXPECT_EQ(event.at("bp"), "e");
                    ++finishes;
                    ++flows[event.at("name")];
                }
                points.emplace_back(event, at, nanoseconds(event.at("ts")));
            }
        }
        for (const auto& [key, count] : ends) EXPECT_EQ(count, std::pair(1, 1)) << std::get<1>(key);
        for (const auto& [event, at, time] : points) {
            const auto inside = [time = time](const Slice& slice) { return slice.start <= time && time <= slice.end; };
            EXPECT_TRUE(std::any_of(slices[at].begin(), slices[at].end(), inside))
                << "no slice around " << event.dump();
        }
        for (const auto& [at, list] : slices) {
            EXPECT_TRUE(threads.count(at)) << "a thread without a name";
            EXPECT_TRUE(processes.count(at.first)) << "a process without a name";
            std::vector<std::int64_t> open;
            for (const Slice& slice : list) {
                while (!open.empty() && open.back() <= slice.start) open.pop_back();
                if (!open.empty()) {
                    EXPECT_LE(slice.end, open.back()) << slice.name << " overlaps without nesting";
                }
                open.push_back(slice.end);
            }
        }
    }
    int count(const std::string& thread) const {
        int total = 0;
        for (const auto& [at, list] : slices)
            if (threads.at(at) == thread) total += int(list.size());
        return total;
    }
};

std::string messageOf(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return oneLine(error);
    }
    return "nothing was thrown";
}

class ChromeExport : public testing::Test {
protected:
    json document(const ExportOptions& options = {}) {
        std::ostringstream text;
        exportChromeTrace(file, text, options);
        return json::parse(text.str());
    }
    /// A recorded run on a GPU in small: kernels of two steps, a fetch and the attention that used it, copies.
    void recordGpuRun() {
        synthetic::RunShape shape;
        shape.decodeSteps = 3;
        synthetic::recordFile(file, shape);
        std::string sql = "INSERT INTO text(value) VALUES ('stream 7'),('copies host to device'),('stage1: select'),"
                          "('offloading: gather'),('stage2: decode'),('64 bytes host to device');";
        for (int step = 1; step <= 2; ++step) {
            const std::string begin = "(SELECT start_ns FROM step WHERE id = (1 << 25 | " + std::to_string(step) + "))";
            const auto span = [&](int kind, const char* track, const char* name, int offset, int length) {
                sql +=
                    "INSERT INTO span(run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) SELECT 1," +
                    std::to_string(step) + ",2," + std::to_string(kind) + ",t.id,n.id," + begin + "+" +
                    std::to_string(offset) + "," + std::to_string(length) + ",0 FROM text t, text n WHERE t.value='" +
                    track + "' AND n.value='" + name + "';";
            };
            span(1, "stream 7", "stage1: select", 10, 20);
            span(1, "stream 7", "offloading: gather", 30, 30);
            span(1, "stream 7", "stage2: decode", 55, 20); // starts early, as programmatic launches do
            span(2, "copies host to device", "64 bytes host to device", 5, 10);
        }
        test::sql(file, sql, SQLITE_OPEN_READWRITE);
    }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

TEST_F(ChromeExport, KeepsTheRulesAndHoldsEverySpanCounterAndArrow) {
    synthetic::RunShape shape;
    shape.sequences = 2;
    shape.decodeSteps = 30;
    synthetic::recordFile(file, shape);
    synthetic::recordFile(file, {});
    const json exported = document();
    EXPECT_FALSE(exported.contains("displayTimeUnit"));
    const Checked checked(exported);
    EXPECT_EQ(std::to_string(checked.count("host")), test::value(file, "SELECT count(*) FROM v_span"));
    for (const char* direction : {"h2d", "d2h"})
        EXPECT_EQ(
            std::to_string(checked.count(std::string(direction) == "h2d" ? "host to device (modelled)"
                                                                         : "device to host (modelled)")),
            test::value(file, std::string("SELECT count(*) FROM v_transfer WHERE direction='") + direction + "'"));
    EXPECT_EQ(checked.processes.at(10), "run 1: nosa on synthetic");
    EXPECT_EQ(checked.processes.at(22), "run 2: host-device link");
    EXPECT_EQ(checked.processes.at(23), "run 2: KV cache");
    // Every fetch has an arrow to its attention; modelled ones begin with the offloading stage, before it.
    EXPECT_EQ(std::to_string(checked.flows.at("transfer to attention")),
              test::value(file, "SELECT count(*) FROM v_transfer WHERE direction='h2d'"));
    // A counter has a value for each step, and a 0 at a step's end unless the next step begins at that moment.
    const auto values = [&](const std::string& of) {
        return test::value(file,
                           "SELECT count(*) + total(next IS NULL OR next > start_ns + duration_ns) FROM (SELECT *,"
                           " lead(start_ns) OVER (PARTITION BY run_id ORDER BY step) AS next FROM v_step WHERE " +
                               of + ")");
    };
    EXPECT_EQ(double(checked.counters.at("decode tokens/s")), std::stod(values("phase = 'decode'")));
    for (const char* name : {"host to device GB/s", "device to host GB/s", "exposed transfer us"})
        EXPECT_EQ(double(checked.counters.at(name)), std::stod(values("1"))) << name;
    EXPECT_EQ(std::to_string(checked.counters.at("hit rate of the last step share") - 2), // each run's is closed once
              test::value(file, "SELECT count(*) FROM v_step WHERE hits + misses > 0"));
}

/// A viewer draws a value until the next one: checks which value it draws at each time that a step begins or ends.
TEST_F(ChromeExport, NoRateIsDrawnThroughAPause) {
    synthetic::RunShape shape;
    shape.decodeSteps = 6;
    synthetic::recordFile(file, shape);
    // The person pauses behind step 3, and a step begins the moment that the one before it ends.
    test::sql(file,
              "UPDATE step SET start_ns = start_ns + 72000000000 WHERE id & 0x1FFFFFF > 3;"
              "UPDATE layer_step SET start_ns = start_ns + 72000000000 WHERE (id >> 10) & 0x1FFFFFF > 3;"
              "UPDATE step SET start_ns = (SELECT p.start_ns + p.duration_ns FROM step p WHERE p.id = step.id - 1)"
              " WHERE id & 0x1FFFFFF = 3;"
              "INSERT INTO text(id, value) VALUES (900, 'PCIe bytes to device');"
              "INSERT INTO counter VALUES (1, 1, 900, 1000, 500, 4096), (2, 1, 900, 1500, 500, 8192),"
              " (3, 1, 900, 9000, 500, 4096)",
              SQLITE_OPEN_READWRITE);
    const auto steps = test::sql(file, "SELECT start_ns, start_ns + duration_ns, tokens * 1e9 / duration_ns FROM v_step"
                                       " WHERE phase = 'decode' ORDER BY step")
                           .rows;
    ASSERT_EQ(steps.size(), 6u);
    std::map<std::string, std::map<std::int64_t, double>> drawn; // by counter and time
    const json exported = document();
    for (const json& event : exported.at("traceEvents"))
        if (event.at("ph") == "C")
            drawn[event.at("name")][nanoseconds(event.at("ts"))] = event.at("args").begin()->get<double>();
    const auto at = [&](const std::string& name, std::int64_t ns) {
        const std::map<std::int64_t, double>& values = drawn[name];
        const auto after = values.upper_bound(ns);
        return after == values.begin() ? std::nan("") : std::prev(after)->second;
    };
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const std::int64_t start = std::stoll(steps[i][0]), end = std::stoll(steps[i][1]);
        EXPECT_NEAR(at("decode", start), std::stod(steps[i][2]), 1e-6 * std::stod(steps[i][2])) << i;
        EXPECT_NEAR(at("decode", end - 1), std::stod(steps[i][2]), 1e-6 * std::stod(steps[i][2])) << i;
        const bool follows = i + 1 < steps.size() && std::stoll(steps[i + 1][0]) == end;
        if (!follows) {
            EXPECT_EQ(at("decode", end), 0) << i;
            EXPECT_EQ(at("host to device", end), 0) << i;
            EXPECT_EQ(at("exposed transfer", end), 0) << i;
            EXPECT_GT(at("hit rate of the last step", end), 0) << "the name says whose it is";
        }
        EXPECT_EQ(follows, i == 1);
    }
    EXPECT_TRUE(std::isnan(at("decode", std::stoll(steps[0][0]) - 1))) << "the prefill decodes nothing";
    EXPECT_EQ(drawn["PCIe bytes to device"],
              (std::map<std::int64_t, double>{{1000, 8.192}, {1500, 16.384}, {2000, 0}, {9000, 8.192}, {9500, 0}}));
}

TEST_F(ChromeExport, OneRunLeavesTheOthersOut) {
    synthetic::recordFile(file, {});
    synthetic::recordFile(file, {});
    const json one = document({2});
    EXPECT_GT(one.at("traceEvents").size(), 100u);
    for (const json& event : one.at("traceEvents")) EXPECT_EQ(event.at("pid").get<int>() / 10, 2);
    EXPECT_TRUE(document({7}).at("traceEvents").empty());
}

TEST_F(ChromeExport, LaunchesPointToKernelsAndFetchesToTheirAttention) {
    recordGpuRun();
    const Checked checked(document());
    EXPECT_EQ(checked.flows.at("launch to kernel"), 2);
    // Two of the GPU's own, one per step, beside those of the engine's transfers.
    EXPECT_EQ(std::to_string(checked.flows.at("transfer to attention") - 2),
              test::value(file, "SELECT count(*) FROM v_transfer WHERE direction='h2d'"));
    EXPECT_EQ(checked.count("stream 7"), 6);
    EXPECT_EQ(checked.count("copies host to device"), 2);
    int lanes = 0; // the kernel that starts before its predecessor has ended lies on a lane of its own
    for (const auto& [at, name] : checked.threads) lanes += name == "stream 7";
    EXPECT_EQ(lanes, 2);
}

TEST_F(ChromeExport, TimeBeginsWithTheProfilersOwnWorkBecausePerfettoDropsNegativeTimes) {
    recordGpuRun();
    const json before = document();
    EXPECT_EQ(before.at("otherData").at("time_zero_ns"), 0);
    test::sql(file,
              "INSERT INTO text(value) VALUES ('CUPTI overhead'),('buffer');"
              "INSERT INTO span(run_id, step, layer, kind, track, name, start_ns, duration_ns, depth)"
              " SELECT 1, -1, -1, 3, t.id, n.id, -390000123, 1000, 0 FROM text t, text n"
              " WHERE t.value='CUPTI overhead' AND n.value='buffer'",
              SQLITE_OPEN_READWRITE);
    const json after = document();
    EXPECT_EQ(after.at("otherData").at("time_zero_ns"), -390000123);
    const auto moments = [](const json& exported, const char* name) {
        std::vector<std::int64_t> all;
        for (const json& event : exported.at("traceEvents"))
            if (event.contains("ts") && event.at("name") == name) all.push_back(nanoseconds(event.at("ts")));
        return all;
    };
    EXPECT_THAT(moments(after, "buffer"), testing::ElementsAre(0));
    for (const char* name : {"stage2: decode", "hit rate of the last step", "transfer to attention", "prefill"}) {
        std::vector<std::int64_t> expected = moments(before, name);
        EXPECT_FALSE(expected.empty()) << name;
        for (std::int64_t& moment : expected) moment += 390000123;
        EXPECT_EQ(moments(after, name), expected) << name;
    }
}

TEST_F(ChromeExport, ResidentBlocksAreThoseThatWereEverSelectedUpToTheSlots) {
    synthetic::RunShape shape;
    shape.decodeSteps = 40;
    synthetic::recordFile(file, shape);
    const int slots = std::stoi(test::value(file, "SELECT device_slots FROM run"));
    ASSERT_GT(slots, 0);
    std::vector<double> values;
    const json exported = document();
    for (const json& event : exported.at("traceEvents"))
        if (event.at("ph") == "C" && event.at("name") == "resident")
            values.push_back(event.at("args").at("KV blocks").get<double>());
    ASSERT_GE(values.size(), 40u);
    // By the misses and new blocks of every head, counted independently in SQL.
    const std::string expected = test::value(
        file, "WITH pool AS (SELECT layer, seq, kv_head, sum(misses) + sum(opens_block)"
              " + (SELECT NOT b.opens_block FROM v_locality b WHERE b.layer = a.layer AND b.seq = a.seq"
              " AND b.kv_head = a.kv_head ORDER BY b.step LIMIT 1) AS grown FROM v_locality a GROUP BY 1, 2, 3)"
              " SELECT sum(min(grown, " +
                  std::to_string(slots) + ")) FROM pool");
    EXPECT_EQ(std::to_string(std::int64_t(values.back())), expected);
    EXPECT_TRUE(std::is_sorted(values.begin(), values.end())) << "a cache that is not full loses nothing";
}

TEST_F(ChromeExport, ComesBackThroughTheImporterAsItWas) {
    recordGpuRun();
    const std::string exported = (folder / "out.json").string(), again = (folder / "again.kvtrace").string();
    {
        std::ofstream text(exported);
        exportChromeTrace(file, text);
    }
    const ImportResult result = importTrace(exported, again);
    EXPECT_THAT(result.remarks, testing::IsEmpty());
    const char* spans =
        "SELECT CASE name WHEN 'layer' THEN 'layer ' || layer ELSE name END AS n, step, layer, start_ns, duration_ns"
        " FROM v_span UNION ALL SELECT blocks || CASE blocks WHEN 1 THEN ' block' ELSE ' blocks' END, step,"
        " layer, start_ns, duration_ns FROM v_transfer ORDER BY 4, 5, 1, 2, 3";
    EXPECT_EQ(test::sql(again, spans).rows, test::sql(file, spans).rows);
    const char* kinds = "SELECT kind, count(*) FROM span WHERE kind = 1 GROUP BY 1";
    EXPECT_EQ(test::sql(again, kinds).rows, test::sql(file, kinds).rows);
    EXPECT_EQ(test::value(again, "SELECT max(depth) FROM v_span WHERE track LIKE '% / host'"), "2");
    const Checked checked(document());
    EXPECT_EQ(std::to_string(checked.flows.at("launch to kernel") + checked.flows.at("transfer to attention")),
              test::value(again, "SELECT count(*) FROM flow"));
    EXPECT_EQ(test::value(again, "SELECT count(*) FROM v_gauge WHERE track LIKE '% / hit rate of the last step share'"),
              std::to_string(checked.counters.at("hit rate of the last step share")));
    // And once more: what was imported exports to the same spans, arrows and values.
    const std::string twice = (folder / "twice.json").string(), third = (folder / "third.kvtrace").string();
    {
        std::ofstream text(twice);
        exportChromeTrace(again, text);
    }
    const Checked second(json::parse(std::ifstream(twice)));
    importTrace(twice, third);
    EXPECT_EQ(test::sql(third, spans).rows, test::sql(again, spans).rows);
    const char* flows = "SELECT from_name, from_start_ns, to_name, to_start_ns FROM v_flow ORDER BY 2, 4, 1, 3";
    EXPECT_EQ(test::sql(third, flows).rows, test::sql(again, flows).rows);
    const char* values = "SELECT DISTINCT time_ns, value FROM v_gauge ORDER BY 1, 2";
    EXPECT_EQ(test::sql(third, values).rows, test::sql(again, values).rows);
}

TEST_F(ChromeExport, IsCompressedWhereTheNameEndsInGz) {
    const std::string plain = (folder / "out.json").string(), packed = (folder / "out.json.gz").string(),
                      loud = (folder / "loud.JSON.GZ").string();
    if (!GzipStream::isAvailable()) {
        EXPECT_THROW(OutputFile{packed}, Error);
        return;
    }
    synthetic::recordFile(file, {.decodeSteps = 200});
    for (const std::string& path : {plain, packed, loud}) {
        OutputFile out(path);
        exportChromeTrace(file, out.stream());
        out.commit();
    }
    const auto bytes = [](const std::string& path) {
        ByteSource source(path, {}, {}); // unpacks what is gzip
        return std::string(std::istreambuf_iterator<char>(&source), {});
    };
    const std::string wanted = bytes(plain);
    EXPECT_GT(wanted.size(), std::size_t(1) << 18) << "more than is packed at once";
    EXPECT_EQ(bytes(packed), wanted);
    EXPECT_EQ(bytes(loud), wanted);
    EXPECT_EQ(std::filesystem::file_size(loud), std::filesystem::file_size(packed)) << "however it is written";
    EXPECT_LT(std::filesystem::file_size(packed) * 4, std::filesystem::file_size(plain));
    if (!std::filesystem::exists("/dev/full")) return;
    const std::string full = (folder / "full.gz").string();
    std::filesystem::create_symlink("/dev/full", full);
    OutputFile out(full);
    out.stream() << wanted;
    EXPECT_EQ(messageOf([&] { out.commit(); }),
              "cannot write " + full +
                  ": No space left on device; choose another name, in a folder that is writable"
                  " and has space");
}

TEST_F(ChromeExport, AnUnfinishedFileNeverStays) {
    const std::string out = (folder / "out.json").string();
    std::ofstream(out) << "what was there before";
    {
        OutputFile unfinished(out);
        unfinished.stream() << "half";
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
    std::string text;
    std::getline(std::ifstream(out) >> std::ws, text);
    EXPECT_EQ(text, "what was there before");
    OutputFile finished(out);
    finished.stream() << "whole";
    finished.commit();
    std::getline(std::ifstream(out) >> std::ws, text);
    EXPECT_EQ(text, "whole");
    EXPECT_THROW(OutputFile((folder / "no/such/out.json").string()), Error);
    if (std::filesystem::exists("/dev/full")) {
        synthetic::recordFile(file, {});
        OutputFile full("/dev/full");
        EXPECT_THROW(exportChromeTrace(file, full.stream()), Error) << "a full disk took it";
        EXPECT_THAT(messageOf([&] { full.requireWritten(); }),
                    HasSubstr("cannot write /dev/full: No space left on device"));
    }
}

TEST_F(ChromeExport, SaysWhyAFileBecomesNoLarger) {
    const std::string out = (folder / "out.csv").string();
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{4096, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    OutputFile large(out);
    large.requireWritten();
    large.stream() << std::string(100'000, 'x') << std::flush;
    const std::string said = messageOf([&] { large.requireWritten(); }), end = messageOf([&] { large.commit(); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_THAT(said, HasSubstr("cannot write " + out + ": File too large"));
    EXPECT_EQ(end, said);
    EXPECT_FALSE(std::filesystem::exists(out));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
