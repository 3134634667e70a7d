#include "profiler/roofline/gpu_table.h"

#include "base/error.h"
#include "tests/profiler/temporary_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kGood =
    R"({"gpus":[{"name":"mine","read_gbps":100,"tflops":1,"memory_gib":8,"link_gbps":10,"latency_us":5}]})";

std::string refusal(const std::string& text) {
    try {
        GpuTable().merge(text, "gpus.json");
    } catch (const Error& error) {
        return oneLine(error);
    }
    return {};
}

/// kGood with something else in place of a part.
std::string with(const std::string& part, const std::string& other) {
    std::string text = kGood;
    return text.replace(text.find(part), part.size(), other);
}

TEST(GpuTable, HasTheKnownGpusWithEveryNumber) {
    const GpuTable table;
    for (const char* name : {"h200", "b200", "h100", "a100", "a100-40", "a800", "l40s", "rtx5090", "rtx4090", "rtx3090",
                             "rtx4060-laptop"}) {
        const GpuSpec& gpu = table.get(name);
        EXPECT_GT(gpu.readGbps, 0) << name;
        EXPECT_GT(gpu.tflops, 0) << name;
        EXPECT_GT(gpu.memoryGib, 0) << name;
        EXPECT_GT(gpu.linkGbps, 0) << name;
        EXPECT_NE(gpu.link, "") << name;
    }
    EXPECT_TRUE(table.get("h200").isMeasured("read_gbps"));
    EXPECT_FALSE(table.get("a100").isMeasured("read_gbps"));
    EXPECT_EQ(table.preferred().name, "h200") << "where nothing was measured";
}

TEST(GpuTable, LaterEntriesReplaceEarlierOnes) {
    GpuTable table;
    const std::size_t before = table.all().size();
    table.merge(kGood, "a");
    EXPECT_EQ(table.all().size(), before + 1);
    EXPECT_EQ(table.get("mine").title, "mine");
    table.merge(with("\"read_gbps\":100", "\"read_gbps\":200"), "b");
    EXPECT_EQ(table.all().size(), before + 1);
    EXPECT_EQ(table.get("mine").readGbps, 200);
    table.merge(with("mine", "local"), "c");
    EXPECT_EQ(table.preferred().name, "local");
}

TEST(GpuTable, RefusesWhatItCannotReadNamingIt) {
    EXPECT_THAT(refusal("{"), HasSubstr("gpus.json: this is not valid JSON"));
    EXPECT_THAT(refusal("[]"), HasSubstr("the list 'gpus' is missing"));
    EXPECT_THAT(refusal(R"({"gpus":[7]})"), HasSubstr("entry 1 of 'gpus' has no 'name'"));
    EXPECT_THAT(refusal(with("\"tflops\":1,", "")), AllOf(HasSubstr("GPU 'mine'"), HasSubstr("'tflops' is missing")));
    EXPECT_THAT(refusal(with("\"tflops\":1", "\"tflops\":\"fast\"")), HasSubstr("'tflops' is \"fast\", no number"));
    EXPECT_THAT(refusal(with("\"memory_gib\":8", "\"memory_gib\":-8")), HasSubstr("'memory_gib' is -8, not between"));
    EXPECT_THAT(refusal(with("\"memory_gib\":8", "\"memory_gib\":8589934592")), HasSubstr("not between"));
    EXPECT_THAT(refusal(with("\"name\":\"mine\"", "\"name\":\"mine\",\"memroy\":1")),
                HasSubstr("unknown key 'memroy'"));
    EXPECT_THAT(refusal(with("\"name\":\"mine\"", "\"name\":\"mine\",\"measured\":[\"speed\"]")),
                HasSubstr("names \"speed\""));
    EXPECT_THAT(refusal(with("\"name\":\"mine\"", "\"name\":\"mine\",\"cache_mib\":4")), HasSubstr("without"));
    EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("not valid JSON"));
    EXPECT_EQ(refusal(kGood), "");
}

class GpuFile : public ::testing::Test {
protected:
    GpuFile() {
        if (const char* before = std::getenv("XDG_CONFIG_HOME")) before_ = before;
        setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1);
    }
    ~GpuFile() override {
        if (before_)
            setenv("XDG_CONFIG_HOME", before_->c_str(), 1);
        else
            unsetenv("XDG_CONFIG_HOME");
    }
    static GpuSpec spec(const char* name, double read) {
        GpuSpec gpu;
        gpu.name = name;
        gpu.title = "a \"title\"";
        gpu.readGbps = read;
        gpu.tflops = 0.25;
        gpu.memoryGib = 23.5;
        gpu.linkGbps = 55.5;
        gpu.latencyUs = 0;
        gpu.measured = {"read_gbps"};
        return gpu;
    }
    test::Folder folder;

private:
    std::optional<std::string> before_;
};

TEST_F(GpuFile, WhatWasSavedIsLoadedOverTheBuiltInTable) {
    EXPECT_EQ(userGpuFile(), (folder / "kvscope/gpus.json").string());
    EXPECT_EQ(GpuTable::load().find("local"), nullptr);
    saveGpu(spec("local", 123.25), userGpuFile());
    saveGpu(spec("other", 5), userGpuFile());
    saveGpu(spec("local", 99), userGpuFile());
    const GpuTable table = GpuTable::load();
    EXPECT_EQ(table.get("local").readGbps, 99);
    EXPECT_EQ(table.get("local").title, "a \"title\"");
    EXPECT_TRUE(table.get("local").isMeasured("read_gbps"));
    EXPECT_EQ(table.get("other").readGbps, 5);
    EXPECT_EQ(table.all().size(), GpuTable().all().size() + 2);
    const std::string more = (folder / "more.json").string();
    saveGpu(spec("local", 7), more);
    EXPECT_EQ(GpuTable::load(more).get("local").readGbps, 7) << "a named file comes last";
}

TEST_F(GpuFile, IsNotOverwrittenWhenItCannotBeRead) {
    const std::string file = (folder / "gpus.json").string();
    std::ofstream(file) << "{ half a table";
    EXPECT_THROW(saveGpu(spec("local", 1), file), Error);
    std::ifstream in(file);
    std::string text;
    std::getline(in, text);
    EXPECT_EQ(text, "{ half a table");
}

TEST_F(GpuFile, ThatIsMissingOrUnwritableIsNamed) {
    try {
        GpuTable::load((folder / "none.json").string());
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("none.json: No such file or directory; check its name"));
    }
    try {
        saveGpu(spec("local", 1), "/proc/kvscope/gpus.json");
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("/proc/kvscope/gpus.json could not be written"));
    }
    try {
        saveGpu(spec("local", 1), "");
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("no configuration folder"));
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
