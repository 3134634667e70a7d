// The files that the documents for developers name are there.
#include "tests/support/places.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

/// The paths in back quotes that begin with a folder of the source tree and end like a file, and are not there. A star
/// stands for several files.
std::vector<std::string> missingFiles(const std::string& text, const fs::path& root) {
    static const std::regex path(
        R"(`((?:base|kernels|core|profiler|ui|app|bench|sdk|tests|tools|cmake|resources)/[\w/.*-]+\.[a-z*]+)(?:`|:))");
    std::vector<std::string> missing;
    for (std::sregex_iterator at(text.begin(), text.end(), path), end; at != end; ++at) {
        const std::string name = (*at)[1];
        const std::size_t star = name.find('*');
        const fs::path folder = root / fs::path(name).parent_path();
        bool found = star == std::string::npos && fs::exists(root / name);
        if (star != std::string::npos && fs::exists(folder))
            for (const auto& entry : fs::directory_iterator(folder))
                found |= entry.path().string().starts_with((root / name.substr(0, star)).string());
        if (!found) missing.push_back(name);
    }
    return missing;
}

TEST(Documents, NameFilesThatAreThere) {
    for (const char* document :
         {"docs/walks.md", "docs/architecture.md", "docs/adding-a-method.md", "docs/glossary.md", "docs/kernels.md"}) {
        std::ifstream file(test::source(document));
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        ASSERT_FALSE(text.empty()) << document;
        for (const std::string& name : missingFiles(text, test::source(""))) ADD_FAILURE() << document << ": " << name;
    }
}

TEST(Documents, AFileThatIsNotThereIsFound) {
    const std::string text =
        "`core/model/model.h`, `core/model/gone.h`, `ui/plots/mask_*.h`, `ui/plots/gone.*`, `gone.h`";
    EXPECT_EQ(missingFiles(text, test::source("")), (std::vector<std::string>{"core/model/gone.h", "ui/plots/gone.*"}));
}

} // namespace
} // namespace kvscope
