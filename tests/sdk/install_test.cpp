// The library as somebody installs it: found by pkg-config and by CMake, its examples compiled as C and C++ and run.
#include "tests/sdk/sdk_fixture.h"

#include <fstream>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
namespace fs = std::filesystem;

Finished shell(const std::string& command) { return Process({"/bin/sh", "-c", command}).wait(); }

class SdkInstalled : public SdkTest {
protected:
    void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        GTEST_SKIP() << "a library under a sanitizer cannot be linked by a program that is not";
#endif
        if (shell("command -v cmake && command -v pkg-config && command -v cc && command -v c++").status != 0)
            GTEST_SKIP() << "cmake, pkg-config, cc or c++ is not installed";
        const std::string build = fs::path(kCommandLine).parent_path().parent_path().string();
        const Finished installed =
            shell(fmt::format("cmake --install '{}' --component sdk --prefix '{}'", build, prefix));
        ASSERT_EQ(installed.status, 0) << installed.err;
        for (const auto& entry : fs::recursive_directory_iterator(prefix)) {
            if (entry.path().extension() == ".pc") packages = entry.path().parent_path().string();
            if (entry.path().extension() == ".so") libraries = entry.path().parent_path().string();
        }
    }
    const std::string prefix = path("usr");
    std::string packages, libraries;
};

TEST_F(SdkInstalled, ExamplesCompileByPkgConfigAndTheirTracesAreGood) {
    const std::string flags = fmt::format(
        "$(PKG_CONFIG_PATH='{0}' pkg-config --cflags --libs kvscope_trace) -Wl,-rpath,'{1}'", packages, libraries);
    for (const auto& [file, compiler] : {std::pair("minimal.c", "cc -std=c99 -pedantic"),
                                         {"serving.c", "cc -std=c99 -pedantic"},
                                         {"everything.cpp", "c++ -std=c++17"}}) {
        const std::string text = source("sdk/trace/examples/") + file, program = path(std::string(file) + ".bin");
        std::ifstream in(text);
        const std::string lines((std::istreambuf_iterator<char>(in)), {});
        EXPECT_LT(std::count(lines.begin(), lines.end(), '\n'), 60) << file;
        const Finished compiled =
            shell(fmt::format("{} -Wall -Wextra -Werror '{}' -o '{}' {}", compiler, text, program, flags));
        ASSERT_EQ(compiled.status, 0) << compiled.err;
        const std::string trace = path(std::string(file) + ".kvtrace");
        const Finished ran = Process({program, trace}).wait();
        ASSERT_EQ(ran.status, 0) << ran.err;
        expectGood(trace);
        EXPECT_GE(read(trace, "steps")["step"].ints.size(), 40U);
    }
}

TEST_F(SdkInstalled, ACMakeProjectFindsIt) {
    fs::create_directories(path("project"));
    std::ofstream(path("project/CMakeLists.txt"))
        << "cmake_minimum_required(VERSION 3.20)\nproject(example C)\nfind_package(kvscope_trace REQUIRED)\n"
        << "add_executable(example " << source("sdk/trace/examples/minimal.c") << ")\n"
        << "target_link_libraries(example PRIVATE kvscope::kvscope_trace)\n";
    const Finished built = shell(
        fmt::format("cmake -G Ninja -S '{0}' -B '{0}/build' -DCMAKE_PREFIX_PATH='{1}' && cmake --build '{0}/build'",
                    path("project"), prefix));
    ASSERT_EQ(built.status, 0) << built.out << built.err;
    const Finished ran = Process({path("project/build/example"), path("run.kvtrace")}).wait();
    EXPECT_EQ(ran.status, 0) << ran.err;
    expectGood(path("run.kvtrace"));
}

TEST_F(SdkInstalled, TheLibraryExportsItsInterfaceAlone) {
    const Finished symbols = shell(fmt::format("nm -D --defined-only '{}/libkvscope_trace.so'", libraries));
    ASSERT_EQ(symbols.status, 0) << symbols.err;
    std::istringstream lines(symbols.out);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count)
        EXPECT_THAT(line, ::testing::HasSubstr(" kvtrace_")); // no SQLite that meets Python's, no C++ library
    EXPECT_GT(count, 20);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
