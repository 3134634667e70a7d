// Chrome/Perfetto JSON as other tools write it, and as broken as it comes: every expectation is written out by hand.
#include "base/error.h"
#include "base/whole_file.h"
#include "profiler/import/import.h"
#include "profiler/import/trace_event.h"
#include "profiler/read/span_totals.h"
#include "profiler/read/trace_reader.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <random>
#include <sstream>
#include <sys/resource.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;
using Row = std::vector<std::string>;

std::string failureOf(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.hint.empty() ? "no hint: " + oneLine(error) : oneLine(error);
    }
    return "nothing was thrown";
}

class TraceEventImport : public testing::Test {
protected:
    ImportResult import(const std::string& text) {
        std::ofstream(in, std::ios::binary | std::ios::trunc) << text;
        return importTrace(in, out);
    }
    std::vector<Row> spans() {
        return test::sql(out,
                         "SELECT track, name, start_ns, duration_ns, depth FROM v_span ORDER BY start_ns, depth, name")
            .rows;
    }
    std::string refusal(const std::string& text) {
        const std::string said = failureOf([&] { import(text); });
        EXPECT_FALSE(std::filesystem::exists(out)) << "half a trace was left behind";
        std::size_t files = 0;
        for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
        EXPECT_EQ(files, 1u) << "something was left behind";
        EXPECT_EQ(said.find('\n'), std::string::npos);
        return said;
    }
    test::Folder folder;
    std::string in = (folder / "timeline.json").string(), out = (folder / "timeline.kvtrace").string();
};

TEST(Microseconds, KeepEveryNanosecond) {
    EXPECT_EQ(nanosecondsOf("0"), 0);
    EXPECT_EQ(nanosecondsOf("12"), 12'000);
    EXPECT_EQ(nanosecondsOf("12.5"), 12'500);
    EXPECT_EQ(nanosecondsOf("1754321098765432.123"), 1754321098765432123); // a double has no room for this
    EXPECT_EQ(nanosecondsOf("0.0004"), 0);
    EXPECT_EQ(nanosecondsOf("0.0005"), 1);
    EXPECT_EQ(nanosecondsOf("-3.001"), -3'001);
    EXPECT_EQ(nanosecondsOf("1.5e3"), 1'500'000);
    EXPECT_EQ(nanosecondsOf("9223372036854775"), 9223372036854775000);
    EXPECT_EQ(nanosecondsOf("9223372036854776"), std::nullopt);
    for (const char* text : {"", "-", "abc", "1x", "1e400", "1e30", "--1", ".5"})
        EXPECT_EQ(nanosecondsOf(text), std::nullopt) << text;
}

TEST_F(TraceEventImport, ReadsTheObjectFormWithEveryPhase) {
    const ImportResult result = import(R"({
      "schemaVersion": 1, "deviceProperties": [{"name": "H200", "id": 0}],
      "traceEvents": [
        {"ph":"X","pid":1,"tid":7,"ts":100.5,"dur":10.25,"name":"outer","cat":"cpu_op","args":{"step":3,"layer":2}},
        {"ph":"X","pid":1,"tid":7,"ts":102,"dur":1,"name":"inner","cat":"cpu_op"},
        {"ph":"B","pid":1,"tid":8,"ts":101,"name":"range"},
        {"ph":"E","pid":1,"tid":8,"ts":104.001},
        {"ph":"i","pid":1,"tid":7,"ts":105,"name":"mark","s":"t"},
        {"ph":"C","pid":1,"ts":100,"name":"memory","args":{"used":5,"free":"7.5"}},
        {"ph":"X","pid":0,"tid":"stream 7","ts":106,"dur":2,"name":"gemm","cat":"kernel"},
        {"ph":"X","pid":0,"tid":"stream 7","ts":109,"dur":2,"name":"Memcpy HtoD","cat":"gpu_memcpy"},
        {"ph":"b","pid":1,"tid":7,"cat":"io","id":"0x1","ts":100,"name":"read"},
        {"ph":"b","pid":1,"tid":7,"cat":"io","id":"0x2","ts":101,"name":"read"},
        {"ph":"e","pid":1,"tid":7,"cat":"io","id":"0x1","ts":103,"name":"read"},
        {"ph":"e","pid":1,"tid":7,"cat":"io","id":"0x2","ts":110,"name":"read"},
        {"ph":"M","pid":1,"tid":7,"name":"thread_name","args":{"name":"main"}},
        {"ph":"M","pid":1,"name":"process_name","args":{"name":"python"}},
        {"ph":"M","pid":0,"name":"process_name","args":{"name":"GPU 0"}}
      ]})");
    EXPECT_THAT(result.remarks, testing::IsEmpty());
    EXPECT_THAT(spans(), ElementsAre(Row{"python / read (asynchronous)", "read", "0", "3000", "0"},
                                     Row{"python / main", "outer", "500", "10250", "0"},
                                     Row{"python / thread 8", "range", "1000", "3001", "0"},
                                     Row{"python / read (asynchronous)", "read", "1000", "9000", "1"},
                                     Row{"python / main", "inner", "2000", "1000", "1"},
                                     Row{"python / main", "mark", "5000", "0", "1"},
                                     Row{"GPU 0 / stream 7", "gemm", "6000", "2000", "0"},
                                     Row{"GPU 0 / stream 7", "Memcpy HtoD", "9000", "2000", "0"}));
    EXPECT_THAT(test::sql(out, "SELECT track, time_ns, value FROM v_gauge ORDER BY track").rows,
                ElementsAre(Row{"python / memory free", "0", "7.5"}, Row{"python / memory used", "0", "5.0"}));
    EXPECT_THAT(
        test::sql(out, "SELECT n.value, s.kind FROM span s JOIN text n ON n.id = s.name WHERE s.kind > 0 ORDER BY 2")
            .rows,
        ElementsAre(Row{"gemm", "1"}, Row{"Memcpy HtoD", "2"}));
    EXPECT_EQ(test::value(out, "SELECT step || ' ' || layer FROM v_span WHERE name='outer'"), "3 2");
    EXPECT_EQ(test::value(out, "SELECT status || ': ' || status_message FROM runs"),
              "finished: imported from trace-event JSON");
}

TEST_F(TraceEventImport, OrderInTheFileDoesNotMatter) {
    std::vector<std::string> events;
    for (int i = 0; i < 60; ++i) {
        const int at = 10 * i;
        events.push_back("{\"ph\":\"B\",\"pid\":1,\"tid\":1,\"ts\":" + std::to_string(at) + ",\"name\":\"outer\"}");
        events.push_back("{\"ph\":\"B\",\"pid\":1,\"tid\":1,\"ts\":" + std::to_string(at + 2) + ",\"name\":\"inner\"}");
        events.push_back("{\"ph\":\"E\",\"pid\":1,\"tid\":1,\"ts\":" + std::to_string(at + 5) + "}");
        events.push_back("{\"ph\":\"E\",\"pid\":1,\"tid\":1,\"ts\":" + std::to_string(at + 9) + "}");
        events.push_back("{\"ph\":\"X\",\"pid\":1,\"tid\":2,\"ts\":" + std::to_string(at) +
                         ",\"dur\":4,\"name\":\"x\"}");
    }
    const auto joined = [&] {
        std::string text = "[";
        for (const std::string& event : events) text += (text.size() > 1 ? "," : "") + event;
        return text + "]";
    };
    import(joined());
    const std::vector<Row> sorted = spans();
    ASSERT_EQ(sorted.size(), 180u);
    EXPECT_EQ(sorted[0], (Row{"thread 1", "outer", "0", "9000", "0"}));
    EXPECT_EQ(sorted[2], (Row{"thread 1", "inner", "2000", "3000", "1"}));
    std::shuffle(events.begin(), events.end(), std::mt19937(3));
    std::filesystem::remove(out);
    import(joined());
    EXPECT_EQ(spans(), sorted);
}

TEST_F(TraceEventImport, SaysWhatItCouldNotTakeAsItStood) {
    const ImportResult result = import(R"([
        {"ph":"B","pid":1,"tid":1,"ts":0,"name":"never closed"},
        {"ph":"E","pid":1,"tid":2,"ts":1},
        {"ph":"X","pid":1,"tid":1,"ts":2,"dur":-5,"name":"backwards"},
        {"ph":"X","pid":1,"tid":1,"name":"no time","dur":1},
        {"ph":"X","pid":1,"tid":1,"ts":"soon","name":"no number"},
        {"ph":"X","pid":1,"tid":1,"ts":99999999999999999999,"name":"too late"},
        {"ph":"f","pid":1,"tid":1,"ts":3,"id":4,"cat":"a","name":"b","bp":"e"},
        {"ph":"?","pid":1,"tid":1,"ts":3},
        {"ph":"X","pid":1,"tid":1,"ts":10,"dur":1,"name":"last"}])");
    EXPECT_THAT(result.remarks,
                ElementsAre("3 events had no usable time and were left out", "1 duration below zero was taken as zero",
                            "1 range had no end of its own and ends with its parent or the trace",
                            "1 end of a range had no beginning and was left out",
                            "1 end of a flow met no span and was left out",
                            "1 event was of a kind that has no place on a timeline"));
    EXPECT_THAT(spans(), ElementsAre(Row{"thread 1", "never closed", "0", "11000", "0"},
                                     Row{"thread 1", "backwards", "2000", "0", "1"},
                                     Row{"thread 1", "last", "10000", "1000", "1"}));
    EXPECT_THAT(TraceReader(out).run(1)->statusMessage, HasSubstr("3 events had no usable time"));
}

TEST_F(TraceEventImport, BindsFlowsToTheSlicesAroundAndAfterThem) {
    const ImportResult result = import(R"([
        {"ph":"X","pid":1,"tid":1,"ts":0,"dur":10,"name":"step"},
        {"ph":"X","pid":1,"tid":1,"ts":1,"dur":2,"name":"launch a"},
        {"ph":"X","pid":1,"tid":1,"ts":4,"dur":2,"name":"launch b"},
        {"ph":"s","pid":1,"tid":1,"ts":1,"id":1,"cat":"ac2g","name":"ac2g"},
        {"ph":"s","pid":1,"tid":1,"ts":4.5,"id":2,"cat":"ac2g","name":"ac2g"},
        {"ph":"X","pid":2,"tid":1,"ts":5,"dur":2,"name":"kernel a"},
        {"ph":"f","pid":2,"tid":1,"ts":5,"id":1,"cat":"ac2g","name":"ac2g","bp":"e"},
        {"ph":"X","pid":2,"tid":1,"ts":8,"dur":2,"name":"kernel b"},
        {"ph":"f","pid":2,"tid":1,"ts":7.5,"id":2,"cat":"ac2g","name":"ac2g"},
        {"ph":"X","pid":3,"tid":1,"ts":0,"dur":1,"name":"out","bind_id":"0x9","flow_out":true},
        {"ph":"X","pid":3,"tid":2,"ts":2,"dur":1,"name":"in","bind_id":"0x9","flow_in":true}])");
    EXPECT_EQ(result.flows, 3);
    EXPECT_THAT(test::sql(out, "SELECT from_name, to_name FROM v_flow ORDER BY to_start_ns").rows,
                ElementsAre(Row{"out", "in"}, Row{"launch a", "kernel a"}, Row{"launch b", "kernel b"}));
}

TEST_F(TraceEventImport, OverlappingSlicesOfOneThreadGetDepthsOfTheirOwn) {
    import(R"([{"ph":"X","pid":1,"tid":1,"ts":0,"dur":10,"name":"a"},
               {"ph":"X","pid":1,"tid":1,"ts":5,"dur":10,"name":"b"},
               {"ph":"X","pid":1,"tid":1,"ts":12,"dur":10,"name":"c"}])");
    EXPECT_THAT(spans(),
                ElementsAre(Row{"thread 1", "a", "0", "10000", "0"}, Row{"thread 1", "b", "5000", "10000", "1"},
                            Row{"thread 1", "c", "12000", "10000", "0"}));
}

TEST_F(TraceEventImport, TellsThreadsOfOneNameApart) {
    import(R"([{"ph":"M","pid":1,"tid":10,"name":"thread_name","args":{"name":"worker"}},
               {"ph":"M","pid":1,"tid":11,"name":"thread_name","args":{"name":"worker"}},
               {"ph":"X","pid":1,"tid":10,"ts":0,"dur":1,"name":"a"},
               {"ph":"X","pid":1,"tid":11,"ts":0,"dur":1,"name":"b"}])");
    EXPECT_THAT(test::sql(out, "SELECT track, name FROM v_span ORDER BY name").rows,
                ElementsAre(Row{"worker (10)", "a"}, Row{"worker (11)", "b"}));
}

TEST_F(TraceEventImport, TheArrayFormMayEndWithoutItsBracket) {
    const std::string event = R"({"ph":"X","pid":1,"tid":1,"ts":0,"dur":1,"name":"a"})";
    for (const std::string& text :
         {"[" + event, "[" + event + ",", "[" + event + ",\n", "[" + event + ",]", "[" + event + "]"}) {
        std::filesystem::remove(out);
        EXPECT_EQ(import(text).spans, 1) << text;
    }
}

TEST_F(TraceEventImport, RefusesWithOneSentence) {
    EXPECT_THAT(refusal(""), HasSubstr("is empty"));
    EXPECT_THAT(refusal("[]"), HasSubstr("nothing to show"));
    EXPECT_THAT(refusal("{}"), HasSubstr("no list of trace events"));
    EXPECT_THAT(refusal(R"({"model":"llama","layers":[1,2]})"), HasSubstr("no list of trace events"));
    EXPECT_THAT(refusal(R"([{"ph":"X","pid":1,"ts":0,"dur)"), HasSubstr("cut short"));
    EXPECT_THAT(refusal(R"({"traceEvents":[{"ph":"X","ts":0,"dur":1,"name":"a"})"), HasSubstr("cut short"));
    EXPECT_THAT(refusal(R"([{"ph":"X","ts":0 "dur":1}])"), HasSubstr("not readable as JSON"));
    EXPECT_THAT(refusal("[{\"ph\":\"X\",\"ts\":0,\"name\":\"\xff\xfe\"}]"), HasSubstr("not readable as JSON"));
    EXPECT_THAT(refusal(R"([{"ph":"X","ts":1e999,"name":"a"}])"), HasSubstr("beyond all bounds"));
    EXPECT_THAT(refusal("[" + std::string(100'000, '[')), HasSubstr("nests brackets"));
    EXPECT_THAT(refusal(R"([{"ph":"X","ts":0,"args":)" + std::string(100'000, '{')), HasSubstr("not readable as JSON"));
    EXPECT_THAT(refusal("plain text"), HasSubstr("no format that can be imported"));
    EXPECT_THAT(refusal("\x1f\x8b\x08 broken"), testing::AnyOf(HasSubstr("gzip"), HasSubstr("zlib")));
}

TEST_F(TraceEventImport, NestingWithoutEndIsDrawnAtTheDeepestLevel) {
    std::string text = "[";
    for (int i = 0; i < 5000; ++i)
        text += "{\"ph\":\"B\",\"pid\":1,\"tid\":1,\"ts\":" + std::to_string(i) + ",\"name\":\"n\"},";
    const ImportResult result = import(text);
    EXPECT_EQ(result.spans, 5000);
    EXPECT_EQ(test::value(out, "SELECT max(depth) FROM span"), "500");
    // 501 levels fit; the last range begins where the trace and with it all others end.
    EXPECT_THAT(result.remarks.back(), HasSubstr("4498 spans are nested too deep"));
}

TEST_F(TraceEventImport, UnpacksGzip) {
    std::ofstream(folder / "a.json") << R"([{"ph":"X","pid":1,"tid":1,"ts":0,"dur":1,"name":"packed"}])";
    if (std::system(("gzip -kf '" + (folder / "a.json").string() + "' 2> /dev/null").c_str()) != 0)
        GTEST_SKIP() << "gzip is not installed";
    try {
        EXPECT_EQ(importTrace((folder / "a.json.gz").string(), out).spans, 1);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Unsupported) << oneLine(error); // built without zlib
    }
}

TEST_F(TraceEventImport, CanBeCancelledAndLeavesNothing) {
    std::ofstream(in) << R"([{"ph":"X","pid":1,"tid":1,"ts":0,"dur":1,"name":"a"}])";
    std::stop_source stop;
    stop.request_stop();
    EXPECT_THAT(failureOf([&] { importTrace(in, out, {}, stop.get_token()); }), HasSubstr("cancelled"));
    EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(TraceEventImport, OpensThroughTheReaderByItsOwnName) {
    setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
    std::ofstream(in) << R"({"traceEvents":[{"ph":"X","pid":1,"tid":1,"ts":5,"dur":1,"name":"a"}]})";
    EXPECT_TRUE(needsImport(in));
    const std::filesystem::path imports = folder / "cache/kvscope/imports";
    const std::filesystem::path left[] = {imports / "a.kvtrace.writing-7", imports / "b.kvtrace.importing-7"};
    std::filesystem::create_directories(imports);
    for (const std::filesystem::path& each : left) {
        std::ofstream(each) << "half";
        std::filesystem::last_write_time(each, std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
    }
    const TraceReader reader(in);
    EXPECT_FALSE(needsImport(in)) << "it was converted and is kept";
    for (const std::filesystem::path& each : left)
        EXPECT_FALSE(std::filesystem::exists(each)) << "of a program that was killed two days ago";
    const auto runs = reader.runs();
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].name, "timeline.json");
    EXPECT_EQ(runs[0].backend, RunBackend::Imported);
    EXPECT_EQ(runs[0].steps, 0);
    EXPECT_TRUE(reader.steps(1).empty());
    EXPECT_EQ(spanTotals(reader, 1).spans, 1);
    std::size_t beside = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) beside += entry.is_regular_file();
    EXPECT_EQ(beside, 1u) << "nothing is written beside the file";
    // The file changes: the old conversion is not taken for it.
    std::ofstream(in)
        << R"({"traceEvents":[{"ph":"X","pid":1,"tid":1,"ts":5,"dur":1,"name":"a"},{"ph":"X","pid":1,"tid":1,"ts":7,"dur":1,"name":"b"}]})";
    EXPECT_EQ(spanTotals(TraceReader(in), 1).spans, 2);
}

TEST_F(TraceEventImport, RandomDamageEndsInAnAnswerOrASentence) {
    std::string good = "{\"traceEvents\":[";
    for (int i = 0; i < 200; ++i)
        good += "{\"ph\":\"" + std::string(1, "XBEbeisfCM"[i % 10]) + "\",\"pid\":1,\"tid\":" + std::to_string(i % 3) +
                ",\"ts\":" + std::to_string(i * 1.5) + ",\"dur\":2,\"id\":" + std::to_string(i / 10) +
                ",\"cat\":\"c\",\"name\":\"n\",\"args\":{\"name\":\"x\",\"v\":1}},";
    good.back() = ']';
    good += "}";
    std::mt19937 random(5);
    int answers = 0, refusals = 0;
    for (int round = 0; round < 120; ++round) {
        std::string bytes = good;
        if (round % 2 == 0) bytes.resize(random() % bytes.size());
        for (int flips = int(random() % 3); flips > 0 && !bytes.empty(); --flips)
            bytes[random() % bytes.size()] ^= char(1u << (random() % 8));
        std::filesystem::remove(out);
        std::ofstream(in, std::ios::binary | std::ios::trunc) << bytes;
        try {
            importTrace(in, out);
            ++answers;
        } catch (const Error& error) {
            ++refusals;
            EXPECT_FALSE(error.hint.empty()) << oneLine(error);
        }
    }
    EXPECT_GT(answers, 0);
    EXPECT_GT(refusals, 0);
}

/// Files of this process cannot grow beyond a limit while it exists.
class SmallFiles {
public:
    explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit limit{bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~SmallFiles() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    SmallFiles(const SmallFiles&) = delete;
    SmallFiles& operator=(const SmallFiles&) = delete;

private:
    rlimit before_{};
    void (*handler_)(int);
};

TEST_F(TraceEventImport, NamesTheFileThatWasAskedFor) {
    std::string text = R"({"traceEvents":[)";
    for (int i = 0; i < 20'000; ++i)
        text += std::string(i ? "," : "") + R"({"ph":"X","pid":1,"tid":1,"dur":1,"name":"event )" + std::to_string(i) +
                R"(","ts":)" + std::to_string(2 * i) + "}";
    text += "]}";
    std::ofstream(in) << text;
    const std::string nowhere = (folder / "missing/out.kvtrace").string();
    EXPECT_EQ(failureOf([&] { importTrace(in, nowhere); }), "cannot record to " + nowhere + ": there is no folder " +
                                                                (folder / "missing").string() +
                                                                "; create the folder first");
    // At the schema, the run's row, the spans: whoever writes then, the file aside has a name that nobody knows.
    for (const rlim_t bytes : {4096, 65'536, 131'072, 262'144, 524'288}) {
        const std::string said = failureOf([&] {
            const SmallFiles limit(bytes);
            importTrace(in, out);
        });
        EXPECT_THAT(said, HasSubstr(out)) << bytes;
        EXPECT_THAT(said, testing::Not(HasSubstr(WholeFile::kMark))) << bytes;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
