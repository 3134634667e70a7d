// tools/bench_index.py: the page of measurements is what its rows generate, and rows of older builds say so.
#include "tests/support/places.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string textOf(const fs::path& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

struct Answer {
    int status = 0;
    std::string text;
};

/// A source tree of two files and one row, which was measured as these files stood.
class BenchIndex : public ::testing::Test {
protected:
    void SetUp() override {
        if (std::system("python3 -c '' > /dev/null 2>&1") != 0) // NOLINT(concurrency-mt-unsafe): one thread
            GTEST_SKIP() << "python3 is not installed";
        std::string pattern = (fs::temp_directory_path() / "kvscope-bench-index-XXXXXX").string();
        folder_ = mkdtemp(pattern.data());
        write("kernels/product.cu", "int product(int a) {\n    return a * 2; // twice\n}\n");
        write("kernels/product.h", "int product(int a);\n");
        index_ = {{"introduction", "# Measurements"},
                  {"machines", {"A GPU", "Another GPU"}},
                  {"groups", {{"product", {"kernels/product.cu"}}}},
                  {"rows",
                   {{{"id", "product"},
                     {"what", "products"},
                     {"better", "more"},
                     {"values", {{{"of", "few"}, {"goal", 0.9}, {"value", {0.91, 0.93}}}}},
                     {"machine", "A GPU"},
                     {"date", "2026-01-02"},
                     {"commit", "01234567"},
                     {"sheets", {"sheet.md"}},
                     {"sources", {"@product", "kernels/product.h"}},
                     {"digest", "unknown"}}}}};
    }
    void TearDown() override {
        if (!folder_.empty()) fs::remove_all(folder_);
    }

    nlohmann::ordered_json& row() { return index_["rows"][0]; }
    void write(const std::string& name, const std::string& text) const {
        fs::create_directories((folder_ / name).parent_path());
        std::ofstream(folder_ / name) << text;
    }
    void writeIndex() const { write("bench/results/index.json", index_.dump()); }
    std::string page() const { return textOf(folder_ / "bench/results/README.md"); }
    Answer shell(const std::string& command) const {
        const std::string all = "cd " + folder_.string() + " && (" + command + ") >answer 2>&1";
        const int status = std::system(all.c_str()); // NOLINT(concurrency-mt-unsafe): one thread
        return {status, textOf(folder_ / "answer")};
    }
    Answer tool(const std::string& options) const {
        return shell("PYTHONDONTWRITEBYTECODE=1 python3 " + test::source("tools/bench_index.py") + " --root . " +
                     options);
    }
    /// Gives the row the digest of the sources as they stand, and writes index and page.
    void measure() {
        const Answer asked = shell("PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=" + test::source("tools") +
                                   " python3 -c \"import bench_index as b; i = {'groups': {}}; print(b.digest(i, "
                                   "{'sources': ['kernels/product.cu', 'kernels/product.h']}, b.Tree('.')))\"");
        ASSERT_EQ(asked.status, 0) << asked.text;
        row()["digest"] = asked.text.substr(0, asked.text.find('\n'));
        writeIndex();
        ASSERT_EQ(tool("").status, 0);
    }

    fs::path folder_;
    nlohmann::ordered_json index_;
};

TEST_F(BenchIndex, GeneratesThePageOfThisTree) {
    const Answer done = tool("--check --root " + test::source(""));
    EXPECT_EQ(done.status, 0) << done.text;
    if (!done.text.empty()) std::cout << done.text; // what this checkout lacks
}

TEST_F(BenchIndex, MarksARowWhoseCodeChangedAndAsksForTheMark) {
    measure();
    EXPECT_THAT(page(), HasSubstr("| products | at least 0.9 | 0.91 to 0.93 (few) | 2026-01-02, A GPU, 01234567 |"));
    EXPECT_THAT(page(), HasSubstr("No row has been measured on: Another GPU."));
    EXPECT_EQ(tool("--check").status, 0);

    write("kernels/product.cu", "// doubles\nint product( int a )\n{ return a*2; }\n");
    EXPECT_EQ(tool("--check").status, 0) << "a comment and the layout count";

    write("kernels/product.cu", "int product(int a) {\n    return a * 3; // twice\n}\n"); // the planted fault
    const Answer lacks = tool("--check");
    EXPECT_NE(lacks.status, 0);
    EXPECT_THAT(lacks.text, HasSubstr("README.md lacks: | products"));
    EXPECT_EQ(tool("").status, 0);
    EXPECT_THAT(page(), HasSubstr("*of an older build (01234567)*"));
    EXPECT_EQ(tool("--check").status, 0) << "it asks for the mark, not for a measurement";
}

TEST_F(BenchIndex, FindsAPageThatWasWrittenByHand) {
    measure();
    std::string text = page();
    text.replace(text.find("0.91 to"), 4, "0.97");
    write("bench/results/README.md", text);
    const Answer done = tool("--check");
    EXPECT_NE(done.status, 0);
    EXPECT_THAT(done.text, HasSubstr("index.json does not generate:  | products | at least 0.9 | 0.97 to"));
}

TEST_F(BenchIndex, SaysWhatIsMissedAndWhatWasNotMeasured) {
    row()["values"] = {{{"of", "a"}, {"goal", 0.9}, {"value", {0.89, 0.95}}},
                       {{"of", "b"}, {"goal", 5}, {"aim", 3}, {"unit", "us"}, {"better", "less"}, {"value", 5.5}},
                       {{"of", "c"}, {"value", nullptr}},
                       {{"of", "d"}, {"value", "does not fit"}}};
    writeIndex();
    ASSERT_EQ(tool("").status, 0);
    EXPECT_THAT(page(), HasSubstr("| at least 0.9; at most 5 us (3) | **missed**: 0.89 to 0.95 (a); **missed**: 5.5 us "
                                  "(b); does not fit (d); **not measured** (c) |"));
}

TEST_F(BenchIndex, JudgesNoRowWhoseSourcesThisCheckoutLacks) {
    measure();
    fs::remove(folder_ / "kernels/product.h");
    const Answer without = tool("--check");
    EXPECT_EQ(without.status, 0) << without.text;
    EXPECT_THAT(without.text, HasSubstr("not judged, for their sources are not in this checkout: product"));
    if (shell("git init -q . && git add .").status != 0) GTEST_SKIP() << "git is not installed";
    const Answer gone = tool("--check");
    EXPECT_NE(gone.status, 0) << "git knows no such file: the project has it no more, and the row is of an older build";
}

TEST_F(BenchIndex, TakesAHeadlineWithTheDigestOfItsCommit) {
    const std::string commit = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -qm a";
    if (shell("git init -q . && git add . && " + commit).status != 0) GTEST_SKIP() << "git is not installed";
    std::string hash = shell("git rev-parse HEAD").text;
    hash.pop_back();
    writeIndex();
    nlohmann::ordered_json headline = {{"format", 1}, {"machine", "Another GPU"}, {"commit", hash}};
    auto& part = headline["parts"]["all"];
    part["date"] = "2026-02-03";
    part["rows"]["product"]["few"] = {0.95, 0.94};
    write("bench/results/new.json", headline.dump());
    shell("git mv kernels/product.cu kernels/moved.cu && " + commit); // a new name is no new code
    index_["groups"]["product"] = {"kernels/moved.cu"};
    writeIndex();
    const Answer taken = tool("--take bench/results/new.json");
    ASSERT_EQ(taken.status, 0) << taken.text;
    EXPECT_THAT(page(), HasSubstr("2026-01-02, A GPU, *of an older build (01234567)*"));
    EXPECT_THAT(page(), HasSubstr("0.94 to 0.95 (few) | 2026-02-03, Another GPU, " + hash.substr(0, 8) + " |"));
    EXPECT_THAT(page(), Not(HasSubstr("No row has been measured on")));
    EXPECT_EQ(tool("--check").status, 0);

    part["rows"]["product"] = {{"many", {1, 1}}};
    write("bench/results/new.json", headline.dump());
    EXPECT_THAT(tool("--take bench/results/new.json").text, HasSubstr("row product has values of few"));
    headline["commit"] = hash + "+";
    write("bench/results/new.json", headline.dump());
    EXPECT_THAT(tool("--take bench/results/new.json").text, HasSubstr("is of no commit"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
