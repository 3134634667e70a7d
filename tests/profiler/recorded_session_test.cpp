// A run from its request to its end: what the file says, whatever ended the run.
#include "profiler/run/recorded_session.h"

#include "base/error.h"
#include "profiler/read/trace_reader.h"
#include "tests/profiler/temporary_folder.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <stdexcept>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Go = RecordedSession::Go;
using testing::HasSubstr;
constexpr int kNewTokens = 6;

std::shared_ptr<const Model> model() {
    static const auto loaded = Model::load(kDefaultModel);
    return loaded;
}

std::vector<std::vector<std::int32_t>> prompts() {
    std::vector<std::int32_t> ids{0};
    while (ids.size() < 150) ids.push_back(std::int32_t(2 + ids.size() * 37 % 4000));
    return {ids};
}

SessionOptions options() {
    SessionOptions options;
    options.maxNewTokens = kNewTokens;
    options.stopAtEos = false;
    options.threads = 1;
    return options;
}

class RecordedSessionTest : public testing::Test {
protected:
    RecordingRequest request() const {
        RecordingRequest request;
        request.trace = file_;
        return request;
    }
    RunRow row() const { return TraceReader(file_).runs().at(0); }

    test::Folder folder_;
    const std::string file_ = (folder_ / "run.kvtrace").string();
};

TEST_F(RecordedSessionTest, RunsToTheEndAndTheFileHoldsAllOfIt) {
    RecordedSession plain(options(), {});
    plain.begin(model(), prompts());
    EXPECT_TRUE(plain.run({}, {}));
    EXPECT_FALSE(plain.recording().records());
    EXPECT_EQ(plain.recording().runId(), 0);
    plain.recording().finish();

    RecordedSession run(options(), request());
    EXPECT_EQ(run.recording().gpuTrace(), nullptr) << "the CPU has no kernels to record";
    EXPECT_EQ(run.recording().kernelRefusal(), "");
    run.begin(model(), prompts());
    int calls = 0, last = 0;
    double read = 0;
    EXPECT_TRUE(run.run([&](double fraction, std::string_view) { read = fraction; }, {},
                        [&](DecodeSession& session) {
                            ++calls;
                            last = int(session.generated().front().size());
                            return Go::On;
                        }));
    EXPECT_EQ(calls, kNewTokens) << "after the prompt, and after each step";
    EXPECT_EQ(last, kNewTokens);
    EXPECT_EQ(read, 1);
    EXPECT_EQ(run.session().generated(), plain.session().generated());
    EXPECT_EQ(run.recording().finish().droppedSteps, 0);
    EXPECT_EQ(run.recording().runId(), 1);
    EXPECT_EQ(row().status, RunStatus::Finished);
    EXPECT_EQ(row().steps, kNewTokens);
}

TEST_F(RecordedSessionTest, AFileIsReplacedWhenTheRunBeginsAndNotBefore) {
    {
        RecordedSession run(options(), request());
        run.begin(model(), prompts());
        run.run({}, {}, [](DecodeSession&) { return Go::On; });
        run.recording().finish();
    }
    RecordingRequest replacing = request();
    replacing.overwrite = true;
    SessionOptions wrong = options();
    wrong.settings = {{"nothing", "1"}};
    {
        RecordedSession refused(wrong, replacing);
        EXPECT_THROW(refused.begin(model(), prompts()), Error);
    }
    EXPECT_EQ(row().steps, kNewTokens) << "a run that never began took nothing away";
    EXPECT_EQ(row().status, RunStatus::Finished);
    RecordedSession run(options(), replacing);
    run.begin(model(), prompts());
    EXPECT_FALSE(run.run({}, {}, [](DecodeSession&) { return Go::Stop; }));
    run.recording().finish();
    EXPECT_EQ(TraceReader(file_).runs().size(), 1u);
    EXPECT_EQ(row().status, RunStatus::Stopped);
}

TEST_F(RecordedSessionTest, ARefusedRunLeavesNoFileBehind) {
    SessionOptions wrong = options();
    wrong.settings = {{"block_size", "-3"}};
    const auto refused = [&](bool overwrite) {
        RecordingRequest asked = request();
        asked.overwrite = overwrite;
        RecordedSession run(wrong, asked);
        EXPECT_THROW(run.begin(model(), prompts()), Error);
    };
    const auto files = [&] {
        const std::filesystem::directory_iterator begin(folder_.path());
        return std::distance(begin, std::filesystem::directory_iterator());
    };
    for (const bool overwrite : {false, true}) {
        refused(overwrite);
        EXPECT_EQ(files(), 0) << "neither the trace, nor its log, nor its lock";
    }
    {
        RecordedSession run(options(), request());
        run.begin(model(), prompts());
        run.run({}, {});
    }
    refused(false);
    EXPECT_EQ(TraceReader(file_).runs().size(), 1u) << "a file that was there stays as it was";
}

TEST_F(RecordedSessionTest, StopsWhereItIsToldTo) {
    RecordedSession run(options(), request());
    run.begin(model(), prompts());
    int calls = 0;
    EXPECT_FALSE(run.run({}, {}, [&](DecodeSession&) { return ++calls < 3 ? Go::On : Go::Stop; }));
    run.recording().finish();
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(row().status, RunStatus::Stopped);
    EXPECT_EQ(row().steps, 3);
}

TEST_F(RecordedSessionTest, WhateverIsThrownEndsTheRunAsFailedAndGoesOn) {
    for (const bool ours : {true, false}) {
        SCOPED_TRACE(ours);
        std::filesystem::remove(file_);
        RecordedSession run(options(), request());
        run.begin(model(), prompts());
        const auto fails = [&](DecodeSession& session) {
            if (session.generated().front().size() < 2) return Go::On;
            if (ours) throw Error(ErrorKind::Device, "the GPU fell off", "put it back");
            throw std::runtime_error("something else");
        };
        EXPECT_ANY_THROW(run.run({}, {}, fails));
        run.recording().finish();
        EXPECT_EQ(row().status, RunStatus::Failed);
        EXPECT_THAT(row().statusMessage, HasSubstr(ours ? "the GPU fell off" : "something else"));
        EXPECT_EQ(row().steps, 2) << "what was decoded before is there";
    }
}

TEST_F(RecordedSessionTest, APersonsStopWhileThePromptIsReadIsNoFailure) {
    RecordedSession run(options(), request());
    run.begin(model(), prompts());
    std::stop_source stop;
    stop.request_stop();
    try {
        run.run({}, stop.get_token());
        FAIL() << "nothing was thrown";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Cancelled);
    }
    run.recording().finish();
    EXPECT_EQ(row().status, RunStatus::Stopped);
    EXPECT_EQ(row().statusMessage, "");
}

TEST_F(RecordedSessionTest, TheFileIsProvenBeforeTheSessionIsMade) {
    RecordingRequest nowhere = request();
    nowhere.trace = (folder_ / "no" / "such" / "folder.kvtrace").string();
    RecordedSession run(options(), nowhere);
    try {
        run.begin(nullptr, {}); // it does not come to look at the model
        FAIL() << "nothing was thrown";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Storage);
    }
}

TEST_F(RecordedSessionTest, SaysSoWhereTheFileDoesNotHoldTheRun) {
    RecordedSession run(options(), request());
    run.begin(model(), prompts());
    EXPECT_TRUE(run.run({}, {}, [&](DecodeSession&) {
        std::filesystem::remove(file_);
        return Go::On;
    }));
    try {
        run.recording().finish();
        FAIL() << "nothing was thrown";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Storage);
        EXPECT_EQ(error.hint, "nothing of this run was kept");
    }
}

TEST_F(RecordedSessionTest, ARunThatIsGivenUpEndsAsStopped) {
    {
        RecordedSession run(options(), request());
        run.begin(model(), prompts());
    }
    EXPECT_EQ(row().status, RunStatus::Stopped);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
