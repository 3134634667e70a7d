// Files of a model that another program writes to while their mapped bytes are read.
#include "core/model/mapped_watch.h"

#include "core/calibrate/calibrate.h"
#include "core/eval/eval.h"
#include "core/model/safetensors.h"
#include "core/serve/engine.h"
#include "core/trace/trace_sink.h"
#include "tests/core/tiny_checkpoint.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/random_prompt.h"
#include "tests/support/refusal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using test::failureOf;
using testing::HasSubstr;

/// Other bytes in the same place, so that the size stays. They are small numbers where they are taken for weights.
void overwrite(const fs::path& file, std::streamoff at = 5000) {
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(at).write("<<<<<", 5);
}

void setTimes(const fs::path& file, const timespec& time) {
    const timespec times[2] = {time, time};
    ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}

class WatchedFile : public testing::Test {
protected:
    WatchedFile() { test::write(file_, std::string(20'000, 'a')); }
    std::string written() const { return fileWrittenSince(folder_.path().string()); }

    test::Folder folder_;
    const fs::path file_ = folder_ / "model.safetensors";
};

TEST_F(WatchedFile, IsWrittenWhereBytesAreAndNotWhereTimesAlone) {
    const MappedFile mapped(file_.string());
    EXPECT_EQ(written(), "");
    setTimes(file_, {1'000'000'000, 0});
    EXPECT_EQ(written(), "") << "its time is another, its bytes are not";
    fs::permissions(file_, fs::perms::owner_read | fs::perms::owner_write);
    EXPECT_EQ(written(), "");
    overwrite(file_);
    EXPECT_EQ(written(), file_.string());
    setTimes(file_, {1'000'000'000, 0});
    EXPECT_EQ(written(), file_.string()) << "programs that copy a file set its time afterwards";
}

TEST_F(WatchedFile, IsWrittenWhereTheTimeIsSetBackOrTheFileIsGoneAfterwards) {
    struct stat before {};
    ASSERT_EQ(stat(file_.c_str(), &before), 0);
    const MappedFile mapped(file_.string());
    overwrite(file_);
    setTimes(file_, before.st_mtim);
    EXPECT_EQ(written(), file_.string());
    fs::remove(file_);
    EXPECT_EQ(written(), file_.string());
}

TEST_F(WatchedFile, IsWrittenWhereAnotherProgramHasMappedIt) {
    setTimes(file_, {1'000'000'000, 0});
    const MappedFile mapped(file_.string());
    const int descriptor = open(file_.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(descriptor, 0);
    void* const bytes = mmap(nullptr, 20'000, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    ASSERT_NE(bytes, MAP_FAILED);
    static_cast<char*>(bytes)[9'000] = 'b';
    ASSERT_EQ(msync(bytes, 20'000, MS_SYNC), 0);
    munmap(bytes, 20'000);
    close(descriptor);
    EXPECT_EQ(written(), file_.string());
}

TEST_F(WatchedFile, IsNotWrittenForThoseWhoMappedItLaterOrHaveTheOldOne) {
    {
        const MappedFile first(file_.string());
        overwrite(file_);
        const MappedFile second(file_.string());
        EXPECT_EQ(written(), file_.string()) << "for the first";
    }
    const MappedFile third(file_.string());
    EXPECT_EQ(written(), "");
    fs::remove(file_);
    EXPECT_EQ(written(), "") << "the mapped bytes stay";
    test::write(file_, "another file");
    EXPECT_EQ(written(), "");
}

TEST_F(WatchedFile, OneMappingThatEndsLeavesTheOthersWatched) {
    const MappedFile first(file_.string());
    { const MappedFile second(file_.string()); }
    setTimes(file_, {1'000'000'000, 0});
    EXPECT_EQ(written(), "");
    overwrite(file_);
    EXPECT_EQ(written(), file_.string());
}

/// All that computes with mapped weights, once with a model whose files are left alone but for their times, and once
/// with one that is written to.
class WatchedModel : public testing::Test {
protected:
    void expectNoticed(const std::function<void(const std::shared_ptr<const Model>&)>& compute) const {
        const fs::path weights = folder_ / "model.safetensors";
        TinyCheckpoint().writeTo(folder_.path());
        const auto model = Model::load(folder_.path().string());
        setTimes(weights, {1'000'000'000, 0});
        EXPECT_EQ(failureOf([&] { compute(model); }), "nothing was thrown");
        overwrite(weights);
        EXPECT_THAT(failureOf([&] { compute(model); }),
                    HasSubstr("another program wrote to " + weights.string() + " while it was read"));
    }
    using TinyCheckpoint = test::TinyCheckpoint;
    test::Folder folder_;
};

SessionOptions fullAttention() {
    SessionOptions options;
    options.method = "full";
    options.stopAtEos = false;
    options.maxNewTokens = 3;
    options.threads = 1;
    return options;
}

TEST_F(WatchedModel, ASessionDoesNotEndAsFinished) {
    expectNoticed([](const auto& model) {
        NullSink sink;
        DecodeSession session(model, {test::randomPrompt(20, 1)}, fullAttention(), sink);
        session.prefill();
        while (session.step()) {
        }
        session.end(RunStatus::Finished);
    });
}

/// The folder of a calibration may lie anywhere.
TEST_F(WatchedModel, ASessionWhoseCalibrationIsWrittenDoesNotEndAsFinished) {
    TinyCheckpoint().writeTo(folder_.path());
    const test::Folder apart;
    const fs::path learned = apart / kForecastFile;
    const std::string bytes = test::safetensors({{"learned", {"F32", {64}, std::string(256, '\0')}}});
    test::write(learned, bytes);
    const auto model = Model::load(folder_.path().string(), {}, {}, apart.path().string());
    const auto decode = [&] {
        NullSink sink;
        DecodeSession session(model, {test::randomPrompt(20, 1)}, fullAttention(), sink);
        session.prefill();
        session.end(RunStatus::Finished);
    };
    EXPECT_EQ(failureOf(decode), "nothing was thrown");
    overwrite(learned, std::streamoff(bytes.size()) - 20);
    EXPECT_THAT(failureOf(decode), HasSubstr("another program wrote to " + learned.string() + " while it was read"));
}

TEST_F(WatchedModel, AScoreIsRefused) {
    expectNoticed(
        [](const auto& model) { (void)scoreText(model, fullAttention(), test::randomPrompt(40, 1), 20, 10); });
}

/// A program that copies a file over another one cuts it first; if the copy is equal, the file soon looks as it did.
TEST_F(WatchedModel, WeightsThatWereReadAsZerosForAMomentAreRefused) {
    explainCutFiles();
    TinyCheckpoint().writeTo(folder_.path());
    const fs::path weights = folder_ / "model.safetensors";
    const auto model = Model::load(folder_.path().string());
    NullSink sink;
    DecodeSession session(model, {test::randomPrompt(20, 1)}, fullAttention(), sink);
    session.prefill();
    const std::string bytes = textOfFile(weights);
    fs::resize_file(weights, 0);
    EXPECT_THAT(failureOf([&] { session.step(); }),
                HasSubstr(weights.string() + " was cut short by another program while it was read"));
    test::write(weights, bytes);
    EXPECT_THAT(failureOf([&] { session.step(); }), HasSubstr("was cut short"));
    EXPECT_THAT(failureOf([&] { session.end(RunStatus::Finished); }), HasSubstr("was cut short"));
}

TEST_F(WatchedModel, AServedRequestGetsNoToken) {
    struct Tokens final : serve::EngineObserver {
        void token(serve::RequestId, std::int32_t, int, std::int64_t, const StepRecord&) override { ++count; }
        int count = 0;
    };
    int served = 0;
    expectNoticed([&](const auto& model) {
        serve::EngineOptions options;
        options.session = fullAttention();
        options.budget = {0, 1 << 28, 1 << 28, 1 << 28, true};
        Tokens tokens;
        serve::Engine engine(model, options, tokens);
        serve::Submission request;
        request.prompt = test::randomPrompt(20, 1);
        request.maxTokens = 3;
        request.stopAtEos = false;
        engine.submit(request);
        try {
            while (engine.iterate()) {
            }
        } catch (const Error&) {
            served = tokens.count;
            throw;
        }
        EXPECT_EQ(tokens.count, 3);
    });
    EXPECT_EQ(served, 0);
}

TEST_F(WatchedModel, ACalibrationIsRefused) {
    expectNoticed([](const auto& model) {
        CalibrateOptions options;
        options.forecast = options.retaining = false;
        options.texts = 2;
        options.tokens = 128;
        options.queriesPerText = 4;
        options.training.threads = 1;
        (void)calibrate(model, options);
    });
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
