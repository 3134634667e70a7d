// Nsight Systems exports built by hand from the documented tables, and the ways in which they differ between versions.
#include "base/error.h"
#include "profiler/import/import.h"
#include "profiler/read/trace_reader.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/temporary_folder.h"

#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <sqlite3.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;
using Row = std::vector<std::string>;

// Process 42 and its thread 43 as Nsight packs them: hardware, virtual machine, 24 bits of process, 24 of thread.
constexpr std::int64_t kProcess = std::int64_t(42) << 24, kThread = kProcess | 43;

const std::string kStrings = "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT NOT NULL);"
                             "INSERT INTO StringIds VALUES (1,'gemm_kernel'),(2,'void gemm_kernel<float>(int)'),"
                             "(3,'cudaLaunchKernel_v7000'),(4,'cudaMemcpyAsync_v3020'),(5,'main thread'),(6,'decode');"
                             "CREATE TABLE META_DATA_EXPORT(name TEXT, value TEXT);"
                             "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION','2026.2.1'),"
                             "('EXPORT_SCHEMA_VERSION','3.25.0');";

class NsightImport : public testing::Test {
protected:
    ImportResult import(const std::string& statements) {
        std::filesystem::remove(in);
        test::sql(in, kStrings + statements, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
        return importTrace(in, out);
    }
    std::vector<Row> spans() {
        return test::sql(out, "SELECT track, name, start_ns, duration_ns, depth FROM v_span ORDER BY start_ns, depth")
            .rows;
    }
    static std::string number(std::int64_t value) { return std::to_string(value); }
    test::Folder folder;
    std::string in = (folder / "report.sqlite").string(), out = (folder / "report.kvtrace").string();
};

TEST_F(NsightImport, ReadsKernelsCopiesCallsAndRangesAndLinksLaunches) {
    const std::string process = number(kProcess), thread = number(kThread);
    const ImportResult result = import(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT "
        "NULL,"
        " contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName "
        "INTEGER,"
        " shortName INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000500,1000900,0,1,7,11," +
        process +
        ",2,1);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1000450,1000490,0,7,10," +
        process +
        ",4096,1,1,2),"
        " (1001000,1001100,0,7,NULL," +
        process +
        ",100,2,2,0);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER, bytes INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1000950,1000960,0,7,0," +
        process +
        ",64);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,"
        " correlationId INTEGER, nameId INTEGER, returnValue INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000400,1000410,0," +
        thread +
        ",10,4,0),"
        " (1000420,1000440,0," +
        thread +
        ",11,3,0);"
        "CREATE TABLE NVTX_EVENTS(start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, textId "
        "INTEGER,"
        " globalTid INTEGER);"
        "INSERT INTO NVTX_EVENTS VALUES (1000000,1002000,59,'step 3',NULL," +
        thread +
        "),"
        " (1000100,1000600,59,NULL,6," +
        thread + "), (1000300,NULL,34,'mark',NULL," + thread +
        "),"
        " (1000200,NULL,60,'open',NULL," +
        thread + "), (0,NULL,75,'a domain',NULL," + thread +
        ");"
        "CREATE TABLE ThreadNames(nameId INTEGER, priority INTEGER, globalTid INTEGER);"
        "INSERT INTO ThreadNames VALUES (5,0," +
        thread +
        ");"
        "CREATE TABLE TARGET_INFO_GPU(id INTEGER, name TEXT);"
        "INSERT INTO TARGET_INFO_GPU VALUES (0,'NVIDIA H200');"
        "CREATE TABLE TARGET_INFO_SESSION_START_TIME(utcEpochNs INTEGER, utcTime TEXT);"
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1,'2026-05-05 12:34:56.789');");
    EXPECT_THAT(spans(), ElementsAre(Row{"main thread NVTX", "step 3", "0", "2000", "0"},
                                     Row{"main thread NVTX", "decode", "100", "500", "1"},
                                     Row{"main thread NVTX ranges", "open", "200", "1800", "0"},
                                     Row{"main thread NVTX", "mark", "300", "0", "2"},
                                     Row{"main thread CUDA calls", "cudaMemcpyAsync", "400", "10", "0"},
                                     Row{"main thread CUDA calls", "cudaLaunchKernel", "420", "20", "0"},
                                     Row{"copies host to device", "4096 bytes host to device", "450", "40", "0"},
                                     Row{"stream 7", "gemm_kernel", "500", "400", "0"},
                                     Row{"stream 7", "64 bytes set", "950", "10", "0"},
                                     Row{"copies device to host", "100 bytes device to host, pageable memory", "1000",
                                         "100", "0"}));
    EXPECT_THAT(
        test::sql(out, "SELECT from_name, to_name FROM v_flow ORDER BY to_start_ns").rows,
        ElementsAre(Row{"cudaMemcpyAsync", "4096 bytes host to device"}, Row{"cudaLaunchKernel", "gemm_kernel"}));
    EXPECT_EQ(test::value(out, "SELECT group_concat(kind, '') FROM (SELECT kind FROM span ORDER BY start_ns, depth)"),
              "0000002122");
    const auto run = *TraceReader(out).run(1);
    EXPECT_EQ(run.device, "NVIDIA H200");
    EXPECT_EQ(run.createdUtc, "2026-05-05T12:34:56Z");
    EXPECT_THAT(run.statusMessage, HasSubstr("imported from Nsight Systems 2026.2.1 (schema 3.25.0)"));
    EXPECT_THAT(run.paramsJson, HasSubstr("\"origin_ns\":1000000"));
    EXPECT_EQ(result.spans, 10);
}

TEST_F(NsightImport, CorrelationIdsOfTwoProcessesDoNotMeet) {
    const std::int64_t other = std::int64_t(77) << 24;
    const ImportResult result = import(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER, shortName INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (20,30,0,7,5," +
        number(kProcess) +
        ",1),"
        " (20,30,1,7,5," +
        number(other) +
        ",1);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,"
        " nameId INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10,12," +
        number(kThread) + ",5,3);");
    EXPECT_EQ(result.flows, 1);
    EXPECT_THAT(test::sql(out, "SELECT from_track, to_track FROM v_flow").rows,
                ElementsAre(Row{"process 42 / thread 43 CUDA calls", "process 42 / GPU 0 stream 7"}));
}

TEST_F(NsightImport, MissingTablesAndColumnsAreNotMissed) {
    // The oldest and the leanest: no names, no process, nothing but what a kernel must have.
    EXPECT_EQ(
        import("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, extra BLOB, streamId INTEGER);"
               "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5,9,x'00',3),(NULL,9,NULL,3),(9,5,NULL,3);")
            .spans,
        2);
    EXPECT_THAT(spans(), ElementsAre(Row{"stream 3", "(string 0)", "0", "4", "0"},
                                     Row{"stream 3", "(string 0)", "4", "0", "0"}));
    EXPECT_THAT(TraceReader(out).run(1)->statusMessage, HasSubstr("1 event had no usable time"));
    // A suffixed NVTX table of a later version.
    EXPECT_EQ(
        import(
            "CREATE TABLE NVTX_EVENTS_V3(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER);"
            "INSERT INTO NVTX_EVENTS_V3 VALUES (1,2,59,'a',1);")
            .spans,
        1);
}

TEST_F(NsightImport, MetricsAndMemoryBecomeCounters) {
    import(
        "CREATE TABLE TARGET_INFO_GPU_METRICS(typeId INTEGER, metricId INTEGER, metricName TEXT);"
        "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (256,3,'PCIe Read Throughput [%]');"
        "CREATE TABLE GPU_METRICS(timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);"
        "INSERT INTO GPU_METRICS VALUES (100,256,3,40),(200,256,3,55),(300,256,99,1);"
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS(start INTEGER, globalPid INTEGER, deviceId INTEGER, bytes INTEGER,"
        " memoryOperationType INTEGER);"
        "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (150,0,0,64,0),(120,0,0,100,0),(190,0,0,100,1);");
    EXPECT_THAT(test::sql(out, "SELECT track, time_ns, value FROM v_gauge ORDER BY track, time_ns").rows,
                ElementsAre(Row{"PCIe Read Throughput [%]", "0", "40.0"},
                            Row{"PCIe Read Throughput [%]", "100", "55.0"},
                            Row{"device memory allocated (bytes)", "20", "100.0"},
                            Row{"device memory allocated (bytes)", "50", "164.0"},
                            Row{"device memory allocated (bytes)", "90", "64.0"}));
}

TEST_F(NsightImport, SaysThatWholeGraphsHideTheirKernels) {
    const ImportResult result = import(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
        " graphId INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1,5,0,7,12);"
        "CREATE TABLE DIAGNOSTIC_EVENT(timestamp INTEGER, severity INTEGER, text TEXT);"
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (1,1,'just so'),(2,3,'events were lost');");
    EXPECT_THAT(result.remarks, ElementsAre("events were lost", HasSubstr("--cuda-graph-trace=node")));
    EXPECT_EQ(spans()[0][1], "CUDA graph 12");
}

TEST_F(NsightImport, RefusesDamageWithOneSentence) {
    const auto refusal = [&] {
        try {
            importTrace(in, out);
        } catch (const Error& error) {
            return error.hint.empty() ? "no hint: " + oneLine(error) : oneLine(error);
        }
        return std::string("nothing was thrown");
    };
    test::sql(in, kStrings + "CREATE TABLE NVTX_EVENTS(start INTEGER, end INTEGER, eventType INTEGER, text TEXT);",
              SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    EXPECT_THAT(refusal(), HasSubstr("nothing to show"));
    std::string rows = "INSERT INTO NVTX_EVENTS VALUES (1,2,59,'a')";
    for (int i = 0; i < 4000; ++i) rows += ",(" + number(i) + "," + number(i + 1) + ",59,'a range of some length')";
    test::sql(in, rows, SQLITE_OPEN_READWRITE);
    std::filesystem::resize_file(in, std::filesystem::file_size(in) / 2);
    EXPECT_THAT(refusal(), testing::AnyOf(HasSubstr("cut short"), HasSubstr("damaged")));
    EXPECT_FALSE(std::filesystem::exists(out));
    // Another program's database is no export of Nsight.
    std::filesystem::remove(in);
    test::sql(in, "CREATE TABLE bookmarks(url TEXT)", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    EXPECT_THAT(refusal(), HasSubstr("no format that can be imported"));
    // A view under the name of a table could run for ever: it is not looked at.
    std::filesystem::remove(in);
    test::sql(in,
              kStrings +
                  "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)"
                  " SELECT start, start AS end, 59 AS eventType FROM n",
              SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    EXPECT_THAT(refusal(), HasSubstr("nothing to show"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
