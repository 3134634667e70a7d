// tools/check_sources.sh headers in a repository made here: what it says when headers changed since the base, and when
// none did.
#include "tests/support/places.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>
#include <string>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckSources : public ::testing::Test {
protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "kvscope-check-sources-XXXXXX").string();
        folder_ = mkdtemp(pattern.data());
        fs::create_directories(folder_ / "tools");
        for (const char* name : {"check_sources.sh", "headers_alone.py"}) {
            fs::copy_file(test::source("tools/" + std::string(name)), folder_ / "tools" / name);
        }
        write("base/whole.h", "#include <string>\nstd::string whole();\n");
        write("base/whole.cpp", "#include \"base/whole.h\"\n");
        write("cmake/tidy_base", "checked today\n");
        write("build/checks/compile_commands.json",
              R"([{"directory": ")" + folder_.string() + R"(", "file": ")" + (folder_ / "base/whole.cpp").string() +
                  R"(", "command": "c++ -std=c++20 -o whole.o -c base/whole.cpp"}])");
        write(".gitignore", "build\nprinted\n");
        run("git init -q . && git add . && git -c user.name=t -c user.email=t@t commit -qm base");
    }
    void TearDown() override { fs::remove_all(folder_); }

    void write(const fs::path& name, const std::string& text) const {
        fs::create_directories((folder_ / name).parent_path());
        std::ofstream(folder_ / name) << text;
    }

    /// The status of a command of the shell in the repository. What it printed is in printed_.
    int run(const std::string& command) {
        const std::string line = "cd " + folder_.string() + " && (" + command + ") >printed 2>&1";
        const int status = std::system(line.c_str()); // NOLINT(concurrency-mt-unsafe): one thread
        std::stringstream text;
        text << std::ifstream(folder_ / "printed").rdbuf();
        printed_ = text.str();
        return status;
    }

    fs::path folder_;
    std::string printed_;
};

TEST_F(CheckSources, NoChangedHeaderIsNoFault) {
    EXPECT_EQ(run("tools/check_sources.sh headers changed"), 0) << printed_;
    EXPECT_THAT(printed_, HasSubstr("headers alone: 0 of 0 compiled, 0 failed"));
}

TEST_F(CheckSources, AChangedHeaderMustCompileAlone) {
    write("base/whole.h", "#include <string>\nstd::string whole(int);\n");
    EXPECT_EQ(run("tools/check_sources.sh headers changed"), 0) << printed_;
    EXPECT_THAT(printed_, HasSubstr("headers alone: 1 of 1 compiled, 0 failed"));

    write("base/part.h", "std::string part();\n");
    EXPECT_NE(run("tools/check_sources.sh headers changed"), 0) << printed_;
    EXPECT_THAT(printed_, HasSubstr("base/part.h does not compile alone"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
