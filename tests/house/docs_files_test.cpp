// The files, folders and names of the code that the documents and the comments of the sources mention are there.
#include "tests/support/places.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fnmatch.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

constexpr std::array kFolders{"base", "kernels", "core",  "profiler", "ui",        "app", "bench",
                              "sdk",  "tests",   "tools", "cmake",    "resources", "docs"};

std::string contents(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Files and folders of the source tree, by their path from the top folder.
std::vector<std::string> treePaths() {
    const fs::path root = test::source("");
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(root))
        if (entry.is_regular_file()) paths.push_back(entry.path().filename().string());
    for (const char* folder : kFolders)
        for (const auto& entry : fs::recursive_directory_iterator(root / folder))
            paths.push_back(fs::relative(entry.path(), root).string());
    return paths;
}

/// What stands in back quotes on one line, outside of blocks of code.
std::vector<std::string> quoted(const std::string& text) {
    static const std::regex block(R"(```[\s\S]*?```)"), quote(R"(`([^`\n]+)`)");
    const std::string prose = std::regex_replace(text, block, "");
    std::vector<std::string> found;
    for (std::sregex_iterator at(prose.begin(), prose.end(), quote), end; at != end; ++at) found.push_back((*at)[1]);
    return found;
}

/// Whether a path of the tree is this name, or ends with it behind a slash. Stars stand for any letters but slashes.
bool isIn(const std::vector<std::string>& paths, const std::string& name) {
    return std::any_of(paths.begin(), paths.end(), [&](const std::string& path) {
        std::size_t begin = path.size() + 1; // behind a slash that as many follow as the name has
        for (auto parts = std::count(name.begin(), name.end(), '/') + 1; parts > 0 && begin > 0; --parts)
            begin = begin < 2 ? 0 : path.rfind('/', begin - 2) + 1;
        return fnmatch(name.c_str(), path.c_str() + begin, FNM_PATHNAME) == 0;
    });
}

/// The words of the comments behind // on any line, each with all that belongs to a path. Addresses are left out.
std::vector<std::string> commentWords(const std::string& text) {
    const auto ofPath = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_./*-", c);
    };
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t slashes = line.find("//");
        if (slashes == std::string::npos || (slashes > 0 && line[slashes - 1] == ':')) continue;
        for (auto at = line.begin() + std::ptrdiff_t(slashes) + 2; at != line.end();) {
            const auto begin = std::find_if(at, line.end(), ofPath);
            at = std::find_if_not(begin, line.end(), ofPath);
            std::string word(begin, at);
            while (word.ends_with('.') || word.ends_with('-')) word.pop_back();
            if (word.find_first_of("/.") != std::string::npos && word.find("//") == std::string::npos)
                found.push_back(std::move(word));
        }
    }
    return found;
}

/// The names of files and folders among words that the tree lacks: those that end like a source or a document, and
/// those that begin with a folder of the tree, which may leave the ending out (`core/serve/engine` is two files).
std::vector<std::string> missingFiles(const std::vector<std::string>& words, const std::vector<std::string>& paths) {
    static const std::regex path(R"(([\w./*-]*[\w*])/?(?::\d+)?)"),
        ending(R"(.*[\w*]\.(?:h|cpp|cu|cuh|py|sh|md|sql|cmake|\*))");
    std::vector<std::string> missing;
    for (const std::string& word : words) {
        std::smatch parts;
        if (!std::regex_match(word, parts, path)) continue;
        const std::string name = parts[1];
        const std::size_t slash = name.find('/');
        const bool inTree =
            slash != std::string::npos &&
            std::find(kFolders.begin(), kFolders.end(), std::string_view(name).substr(0, slash)) != kFolders.end();
        const bool endsLikeOne = std::regex_match(name, ending) && (inTree || !name.ends_with("*"));
        if ((!inTree && !endsLikeOne) || isIn(paths, name)) continue;
        if (inTree && name.find('*') == std::string::npos && isIn(paths, name + ".*")) continue;
        missing.push_back(name);
    }
    return missing;
}

/// The words of all sources, in which names of functions, types and fields are.
std::set<std::string> sourceWords(const std::vector<std::string>& paths) {
    std::set<std::string> words;
    for (const std::string& path : paths) {
        static const std::set<std::string> kinds{".h", ".cpp", ".cu", ".cuh", ".py", ".sql", ".cmake", ".txt"};
        if (path.starts_with("tests/golden") || kinds.count(fs::path(path).extension().string()) == 0) continue;
        const std::string text = contents(fs::path(test::source("")) / path);
        const auto partOfWord = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
        for (auto at = text.begin(); at != text.end();) {
            const auto begin = std::find_if(at, text.end(), partOfWord);
            at = std::find_if_not(begin, text.end(), partOfWord);
            words.emplace(begin, at);
        }
    }
    return words;
}

/// Quoted words with a capital behind a small letter (`blocksOf`, `TraceReader`) that no source has.
std::vector<std::string> missingNames(const std::string& text, const std::set<std::string>& words) {
    static const std::regex name(R"(\b\w*[a-z][A-Z]\w*\b)");
    std::vector<std::string> missing;
    for (const std::string& word : quoted(text)) {
        const bool isBeginning = word.ends_with("*"); // `given*` stands for several
        for (std::sregex_iterator at(word.begin(), word.end(), name), end; at != end; ++at) {
            const std::string found = at->str();
            const auto next = words.lower_bound(found);
            const bool known = next != words.end() && (isBeginning ? next->starts_with(found) : *next == found);
            if (!known) missing.push_back(found);
        }
    }
    return missing;
}

std::vector<std::string> documents() {
    std::vector<std::string> found{"README.md"};
    const fs::path root = test::source("");
    for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
        if (entry.path().extension() == ".md") found.push_back(fs::relative(entry.path(), root).string());
    return found;
}

TEST(Documents, NameFilesThatAreThere) {
    const std::vector<std::string> paths = treePaths();
    for (const std::string& document : documents()) {
        const std::string text = contents(test::source(document));
        ASSERT_FALSE(text.empty()) << document;
        for (const std::string& name : missingFiles(quoted(text), paths)) ADD_FAILURE() << document << ": " << name;
    }
}

TEST(Comments, NameFilesThatAreThere) {
    const std::vector<std::string> paths = treePaths();
    const std::set<std::string> kinds{".h", ".cpp", ".cu", ".cuh"},
        ofOthers{"highway.h", "cupti_result.h", "nvml.h"}; // headers of Highway, CUPTI and NVML
    int read = 0;
    for (const std::string& path : paths) {
        if (!kinds.contains(fs::path(path).extension().string()) || path.starts_with("tests/house/")) continue;
        ++read;
        for (const std::string& name : missingFiles(commentWords(contents(fs::path(test::source("")) / path)), paths))
            if (!ofOthers.contains(name)) ADD_FAILURE() << path << ": a comment names " << name;
    }
    EXPECT_GT(read, 1000);
}

TEST(Comments, AFileThatIsNotThereIsFound) {
    const std::vector<std::string> paths{"core/model/model.h", "core/model/model.cpp", "core/model", "core"};
    const std::string text = "#include \"core/gone.h\" // before core/model/gone_too.h and model.h\n"
                             "// see core/model/model, core/model/*.cpp and (core/lost/file.h).\n"
                             "    int a; /// gone.cpp: and/or https://example.com/core/gone.html\n";
    EXPECT_EQ(missingFiles(commentWords(text), paths),
              (std::vector<std::string>{"core/model/gone_too.h", "core/lost/file.h", "gone.cpp"}));
}

TEST(Documents, NameWhatTheCodeHas) {
    const std::set<std::string> words = sourceWords(treePaths());
    for (const char* document :
         {"docs/architecture.md", "docs/glossary.md", "docs/building.md", "docs/walks.md", "docs/adding-a-method.md",
          "docs/adding-a-view.md", "docs/adding-an-architecture.md", "docs/kernels.md"})
        for (const std::string& name : missingNames(contents(test::source(document)), words))
            ADD_FAILURE() << document << ": " << name;
    for (const auto& entry : fs::directory_iterator(test::source("docs/decisions")))
        for (const std::string& name : missingNames(contents(entry.path()), words))
            ADD_FAILURE() << entry.path().filename() << ": " << name;
}

TEST(Documents, EveryDecisionIsInTheList) {
    const std::string list = contents(test::source("docs/decisions/README.md"));
    int pages = 0;
    for (const auto& entry : fs::directory_iterator(test::source("docs/decisions"))) {
        const std::string name = entry.path().filename().string();
        if (name == "README.md") continue;
        ++pages;
        EXPECT_NE(list.find("](" + name + ")"), std::string::npos) << name;
    }
    EXPECT_GE(pages, 10);
}

TEST(Documents, WhatIsNotThereIsFound) {
    const std::vector<std::string> paths = treePaths();
    const std::string files =
        "`core/model/model.h:12`, `core/model/gone.h`, `ui/plots/mask_*.h`, `ui/plots/gone.*`, "
        "`gone.h`, `model.h`, `core/gone`, `core/gone/`, `core/model/`, `core/model/model`, `.cu`, "
        "`*_gone.py`, `*_methods.py`, `not a file.h`";
    EXPECT_EQ(missingFiles(quoted(files), paths),
              (std::vector<std::string>{"core/model/gone.h", "ui/plots/gone.*", "gone.h", "core/gone", "core/gone",
                                        "*_gone.py"}));
    const std::set<std::string> words{"blocksOf", "givenScores", "TraceReader"};
    EXPECT_EQ(missingNames("`blocksOf(row)`, `TraceReader::goneAway`, `given*`, `givenSc*`, `goneBy*`\n"
                           "```cpp\ncode `notLooked At`\n```",
                           words),
              (std::vector<std::string>{"goneAway", "goneBy"}));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
