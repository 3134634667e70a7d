// What other tools say of their spans is kept, read and written again; expectations are written out by hand.
#include "profiler/export/export.h"
#include "profiler/import/detail_store.h"
#include "profiler/import/import.h"
#include "profiler/read/span_detail.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <fstream>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sqlite3.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using Row = std::vector<std::string>;

class SpanDetails : public testing::Test {
protected:
    ImportResult import(const std::string& text) {
        std::ofstream(in, std::ios::binary | std::ios::trunc) << text;
        return importTrace(in, out);
    }
    json exported(const ExportOptions& options = {}) {
        std::ostringstream text;
        exportChromeTrace(out, text, options);
        return json::parse(text.str());
    }
    /// The slices of a document by name.
    static std::map<std::string, json> slicesOf(const json& document) {
        std::map<std::string, json> slices;
        for (const json& event : document.at("traceEvents"))
            if (event.at("ph") == "X") slices[event.at("name")] = event;
        return slices;
    }
    test::Folder folder;
    std::string in = (folder / "timeline.json").string(), out = (folder / "timeline.kvtrace").string();
};

const char* const kDocument = R"([
 {"ph":"X","pid":1,"tid":1,"ts":10,"dur":5,"cat":"cpu_op","name":"aten::mm","args":
   {"Input Dims":[[4,8],[8,2]],"Concrete Inputs":["","x\"y"],"scale":0.10,"big":12345678901234567,
    "flag":true,"none":null,"nested":{"a":{"b":[]}},"step":3,"layer":2,"text":"größe\n"}},
 {"ph":"X","pid":1,"tid":1,"ts":20,"dur":5,"cat":"kernel","name":"gemm","args":{"grid":[1,2,3]}},
 {"ph":"X","pid":1,"tid":1,"ts":30,"dur":5,"name":"plain"},
 {"ph":"X","pid":1,"tid":1,"ts":40,"dur":5,"cat":"user","name":"only a category","args":{"step":7}},
 {"ph":"B","pid":1,"tid":1,"ts":50,"cat":"range","name":"both ends","args":{"first":1,"twice":"open"}},
 {"ph":"E","pid":1,"tid":1,"ts":60,"args":{"twice":"close","last":2}},
 {"ph":"i","pid":1,"tid":1,"ts":70,"name":"list","args":[1,{"no":"object"},[2]]}
])";

TEST_F(SpanDetails, ComeFromTraceEventsAsTheyStand) {
    EXPECT_THAT(import(kDocument).remarks, IsEmpty());
    const TraceReader reader(out);
    const auto detail = [&](const char* name, std::int64_t start, std::int64_t length = 5'000) {
        return spanDetail(reader, 1, {"thread 1", name, start, length, 0});
    };
    const SpanDetail mm = detail("aten::mm", 0);
    EXPECT_EQ(mm.category, "cpu_op");
    EXPECT_THAT(mm.args,
                ElementsAre(Pair("Input Dims", "[[4,8],[8,2]]"), Pair("Concrete Inputs", R"(["","x\"y"])"),
                            Pair("scale", "0.1"), Pair("big", "12345678901234567"), Pair("flag", "true"),
                            Pair("none", "null"), Pair("nested", R"({"a":{"b":[]}})"), Pair("text", "größe\n")));
    EXPECT_EQ(test::value(out, "SELECT args FROM v_span WHERE name='gemm'"), R"({"grid":[1,2,3]})");
    EXPECT_EQ(test::value(out, "SELECT json_extract(args, '$.scale') FROM v_span WHERE name='aten::mm'"), "0.1");
    EXPECT_EQ(test::value(out, "SELECT step || ' ' || layer FROM v_span WHERE name='aten::mm'"), "3 2");
    EXPECT_THAT(detail("plain", 20'000).args, IsEmpty());
    EXPECT_EQ(detail("plain", 20'000).category, "");
    EXPECT_EQ(detail("only a category", 30'000).category, "user");
    EXPECT_THAT(detail("only a category", 30'000).args, IsEmpty()) << "the step has a column of its own";
    EXPECT_THAT(detail("both ends", 40'000, 10'000).args,
                ElementsAre(Pair("first", "1"), Pair("twice", "close"), Pair("last", "2")));
    EXPECT_THAT(detail("list", 60'000, 0).args, IsEmpty()) << "arguments have names";
    EXPECT_EQ(detail("nobody", 60'000).category, "");
    EXPECT_EQ(test::value(out, "SELECT count(*) FROM span_detail"), "4");
}

TEST_F(SpanDetails, AreExportedAgain) {
    import(kDocument);
    const auto original = [] {
        std::map<std::string, json> slices;
        for (const json& event : json::parse(kDocument))
            if (event.at("ph") == "X") slices[event.at("name")] = event;
        return slices;
    }();
    const auto slices = slicesOf(exported());
    for (const auto& [name, event] : original) {
        SCOPED_TRACE(name);
        EXPECT_EQ(slices.at(name).value("args", json::object()), event.value("args", json::object()));
        EXPECT_EQ(slices.at(name).at("cat"), event.value("cat", "range"));
    }
    std::ostringstream csv, lines;
    exportTable(out, ExportTable::Spans, ExportFormat::Csv, csv);
    EXPECT_THAT(csv.str(), HasSubstr("depth,category,args\n"));
    EXPECT_THAT(csv.str(), HasSubstr(R"(,gemm,10000,5000,0,kernel,"{""grid"":[1,2,3]}")"));
    exportTable(out, ExportTable::Spans, ExportFormat::Jsonl, lines);
    EXPECT_THAT(lines.str(), HasSubstr(R"("category":"kernel","args":"{\"grid\":[1,2,3]}"})"));
}

TEST_F(SpanDetails, OfAnyProgramNeverBreakTheExport) {
    import(kDocument);
    test::sql(out, R"(UPDATE span_detail SET args = 'no JSON "at all"' WHERE args LIKE '%grid%')",
              SQLITE_OPEN_READWRITE);
    EXPECT_EQ(slicesOf(exported()).at("gemm").at("args"), (json{{"args", "no JSON \"at all\""}}));
    EXPECT_THAT(spanDetail(TraceReader(out), 1, {"thread 1", "gemm", 10'000, 5'000, 0}).args,
                ElementsAre(Pair("args", "no JSON \"at all\"")));
}

TEST_F(SpanDetails, TooLongToKeepAreCounted) {
    const std::string most = R"([{"ph":"X","ts":1,"dur":1,"name":"long","cat":"c","args":{"a":")";
    EXPECT_THAT(
        import(most + std::string(70'000, 'x') + R"("}},{"ph":"X","ts":5,"dur":1,"name":"next","args":{"b":1}}])")
            .remarks,
        ElementsAre("1 span had arguments too long to keep"));
    EXPECT_EQ(test::sql(out, "SELECT name, category, args FROM v_span ORDER BY start_ns").rows,
              (std::vector<Row>{{"long", "c", "NULL"}, {"next", "NULL", R"({"b":1})"}}));
}

TEST_F(SpanDetails, ComeFromNsightByTheNamesOfItsColumns) {
    const std::string report = (folder / "report.sqlite").string();
    test::sql(report,
              "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL);"
              "INSERT INTO StringIds VALUES (1,'gemm'),(2,'void gemm<float>(int)'),(3,'cudaLaunchKernel_v7000');"
              "CREATE TABLE META_DATA_EXPORT(name TEXT, value TEXT);"
              "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
              " correlationId INTEGER, globalPid INTEGER, shortName INTEGER, demangledName INTEGER, gridX INTEGER,"
              " blockX INTEGER, registersPerThread INTEGER, dynamicSharedMemory INTEGER);"
              "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (20,30,0,7,5,0,1,2,132,256,96,NULL);"
              "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, end INTEGER, globalTid INTEGER,"
              " correlationId INTEGER, nameId INTEGER, returnValue INTEGER);"
              "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10,12,1,5,3,719);"
              "CREATE TABLE NVTX_EVENTS(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,"
              " doubleValue REAL, jsonText TEXT);"
              "INSERT INTO NVTX_EVENTS VALUES (5,40,59,'decode',1,0.5,'{\"k\":1}');",
              SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    importTrace(report, out);
    const std::vector<Row> expected{
        {"decode", "nvtx", R"x({"doubleValue":0.5,"jsonText":"{\"k\":1}"})x"},
        {"cudaLaunchKernel", "cuda_runtime", R"x({"returnValue":719,"correlationId":5})x"},
        {"gemm", "kernel",
         R"x({"signature":"void gemm<float>(int)","gridX":132,"blockX":256,"registersPerThread":96,"correlationId":5})x"}};
    EXPECT_EQ(test::sql(out, "SELECT name, category, args FROM v_span ORDER BY start_ns").rows, expected);
}

TEST_F(SpanDetails, AMarkedRangeHoldsWhatTouchesItAndTheArrowsWithinIt) {
    import(R"([{"ph":"X","pid":1,"tid":1,"ts":0,"dur":10,"name":"before"},
               {"ph":"X","pid":1,"tid":1,"ts":15,"dur":10,"name":"reaches in"},
               {"ph":"X","pid":1,"tid":1,"ts":30,"dur":5,"name":"inside"},
               {"ph":"X","pid":1,"tid":1,"ts":40,"dur":0,"name":"at the end"},
               {"ph":"s","pid":1,"tid":1,"ts":1,"id":1,"name":"f"},{"ph":"f","bp":"e","pid":1,"tid":1,"ts":31,"id":1,"name":"f"},
               {"ph":"s","pid":1,"tid":1,"ts":16,"id":2,"name":"f"},{"ph":"f","bp":"e","pid":1,"tid":1,"ts":31,"id":2,"name":"f"},
               {"ph":"C","pid":1,"ts":2,"name":"c","args":{"v":1}},{"ph":"C","pid":1,"ts":22,"name":"c","args":{"v":2}}])");
    ExportOptions options;
    options.range = ExportRange{20'000, 40'000};
    const json document = exported(options);
    std::map<std::string, int> phases;
    for (const json& event : document.at("traceEvents")) ++phases[event.at("ph")];
    const auto slices = slicesOf(document);
    EXPECT_EQ(slices.size(), 2u);
    EXPECT_EQ(slices.count("reaches in") + slices.count("inside"), 2u);
    EXPECT_EQ(phases["s"], 1);
    EXPECT_EQ(phases["f"], 1);
    EXPECT_EQ(phases["C"], 2) << "a value, and where it ends";
    std::ostringstream csv;
    EXPECT_EQ(exportTable(out, ExportTable::Spans, ExportFormat::Csv, csv, options).rows, 2);
    EXPECT_THROW(exportTable(out, ExportTable::Tokens, ExportFormat::Csv, csv, options), Error);
}

TEST_F(SpanDetails, ARangeOfARecordedRunHoldsItsWholeSteps) {
    synthetic::recordFile(out, {});
    const auto steps = TraceReader(out).steps(1);
    ExportOptions options;
    options.range = ExportRange{steps[5].startNs + 1, steps[7].startNs + 1};
    int decode = 0;
    const json document = exported(options);
    for (const json& event : document.at("traceEvents"))
        if (event.at("ph") == "X" && event.at("name") == "decode") {
            ++decode;
            EXPECT_GE(int(event.at("args").at("step")), 5);
            EXPECT_LE(int(event.at("args").at("step")), 7);
        }
    EXPECT_EQ(decode, 3);
}

TEST(DetailStore, GivesBackWhatWentToDisk) {
    test::Folder folder;
    DetailStore store(folder.path().string(), 100);
    std::vector<std::pair<DetailStore::Ref, std::string>> kept;
    for (int i = 0; i < 50; ++i) {
        const std::string text = std::string(std::size_t(i * 7 % 23), char('a' + i % 26)) + std::to_string(i);
        kept.emplace_back(store.add(text), text);
    }
    kept.emplace_back(store.add(std::string(500, 'z')), std::string(500, 'z')); // longer than the memory
    kept.emplace_back(store.add(""), "");
    for (const auto& [ref, text] : kept) EXPECT_EQ(store.read(ref), text);
    const auto once = store.add("again"), twice = store.add("again");
    EXPECT_EQ(once.at, twice.at);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
