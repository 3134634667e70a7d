// The headers of the GPU's kernels say in their first line what they are for.
#include "tests/support/places.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> headersIn(const fs::path& folder) {
    std::vector<fs::path> headers;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const std::string kind = entry.path().extension().string();
        if (kind == ".h" || kind == ".cuh") headers.push_back(entry.path());
    }
    return headers;
}

std::string firstLine(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// As the methods' entries have them.
std::vector<std::string> methodTitles() {
    static const std::regex title(R"re(entry\.title = "([^"(]+[^"( ]))re");
    std::vector<std::string> titles;
    for (const auto& entry : fs::directory_iterator(test::source("core/select"))) {
        const std::string text = contents(entry.path());
        for (std::sregex_iterator at(text.begin(), text.end(), title), end; at != end; ++at) titles.push_back((*at)[1]);
    }
    return titles;
}

bool namesOne(const std::string& line, const std::vector<std::string>& titles) {
    return std::any_of(titles.begin(), titles.end(),
                       [&](const std::string& title) { return line.find(title) != line.npos; });
}

TEST(KernelHeaders, BeginWithWhatTheyAreFor) {
    const auto headers = headersIn(test::source("kernels/cuda"));
    EXPECT_GT(headers.size(), 50u);
    for (const fs::path& header : headers) EXPECT_EQ(firstLine(header).substr(0, 3), "// ") << header;
}

TEST(KernelHeaders, OfMethodsNameTheirMethodInTheFirstLine) {
    const auto titles = methodTitles();
    EXPECT_GT(titles.size(), 15u);
    for (const fs::path& header : headersIn(test::source("kernels/cuda/methods")))
        EXPECT_TRUE(namesOne(firstLine(header), titles)) << header << ": " << firstLine(header);
    EXPECT_FALSE(namesOne("// Attention to the chosen places, and the merge of the results.", titles));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
