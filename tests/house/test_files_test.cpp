// Test files keep their names to themselves, so that several can be compiled at once.
#include "tests/support/places.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

/// Whether a file of tests opens a namespace without a name at the beginning of a line. A file without a test, which
/// others call, may: its functions lie outside.
bool opensANamelessNamespace(std::istream& file) {
    std::string line;
    bool opens = false, tests = false;
    while (std::getline(file, line)) {
        opens |= line.rfind("namespace {", 0) == 0;
        tests |= line.rfind("TEST", 0) == 0;
    }
    return opens && tests;
}

TEST(TestFiles, KeepTheirNamesInTheNamespaceOfTheirFile) {
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(test::source("tests"))) {
        const std::string name = entry.path().string();
        if (entry.path().extension() != ".cpp" || name.find("/fuzz/") != name.npos) continue;
        std::ifstream file(entry.path());
        EXPECT_FALSE(opensANamelessNamespace(file))
            << name << ": names without a namespace of their own meet those of other files where several files are "
            << "compiled at once; write namespace KVSCOPE_TEST_FILE (tests/CMakeLists.txt)";
        ++files;
    }
    EXPECT_GT(files, 300);
}

TEST(TestFiles, ANamelessNamespaceIsFound) {
    const auto found = [](const std::string& text) {
        std::istringstream file(text);
        return opensANamelessNamespace(file);
    };
    EXPECT_TRUE(found("namespace kvscope {\nnamespace {\nTEST(A, B) {\n"));
    EXPECT_FALSE(found("namespace kvscope {\nnamespace A {\nTEST(A, B) {\n"));
    EXPECT_FALSE(found("namespace kvscope {\nnamespace {\nint two() {\n"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
