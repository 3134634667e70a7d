// What a trace says of its run in a word of a list.
#include "profiler/format/run_fact.h"

#include "profiler/read/trace_reader.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

TEST(RunFact, IsTheValueOfItsWord) {
    for (const RunStatus status : kFactsOf<RunStatus>) {
        const auto fact = RunFact<RunStatus>::parse(nameOf(status));
        EXPECT_EQ(fact, status);
        EXPECT_EQ(fact, RunFact<RunStatus>(status));
        EXPECT_EQ(fact.value(), status);
        EXPECT_EQ(fact.text(), nameOf(status));
    }
    EXPECT_EQ(kFactsOf<RunStatus>.size(), 4U);
    EXPECT_EQ(RunFact<RunBackend>::parse("cuda"), RunBackend::Cuda);
    EXPECT_EQ(RunFact<RunBackend>::parse("imported"), RunBackend::Imported);
    EXPECT_EQ(RunFact<Timing>::parse("modelled"), Timing::Modelled);
    EXPECT_EQ(RunFact<RecordLevel>::parse("selections"), RecordLevel::Selections);
}

TEST(RunFact, KeepsAWordThatIsOnNoList) {
    const auto other = RunFact<RunBackend>::parse("rocm");
    EXPECT_FALSE(other.value());
    EXPECT_EQ(other.text(), "rocm");
    EXPECT_NE(other, RunBackend::Cpu);
    EXPECT_EQ(other, RunFact<RunBackend>::parse("rocm"));
    EXPECT_NE(other, RunFact<RunBackend>::parse("tpu"));
    EXPECT_NE(other, RunFact<RunBackend>());
    EXPECT_EQ(RunFact<RunBackend>::parse("Cuda").value(), std::nullopt) << "words are as they are written";
    EXPECT_EQ(RunFact<RunBackend>().text(), "");
}

TEST(RunFact, OfAnotherEnginesTraceReadsAsItIsWritten) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    test::sql(file, "UPDATE run SET backend = 'rocm', timing = 'guessed', level = 'everything', status = 'paused'",
              SQLITE_OPEN_READWRITE);
    const RunRow run = TraceReader(file).runs().at(0);
    EXPECT_EQ(run.backend.text(), "rocm");
    EXPECT_EQ(run.timing.text(), "guessed");
    EXPECT_EQ(run.level.text(), "everything");
    EXPECT_EQ(run.status.text(), "paused");
    EXPECT_FALSE(run.stale) << "only who says that a run is on can be late";
    EXPECT_FALSE(run.timing.value());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
