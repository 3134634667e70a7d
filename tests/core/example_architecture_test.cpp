// docs/adding-an-architecture.md prints an architecture that compiles and reads what it says, and every architecture of
// the registry has what the guide asks for.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"
#include "tests/support/places.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <sstream>

namespace kvscope {

Architecture seedOssArchitecture();

namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string contents(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string sourceText(const std::string& path) { return contents(test::source(path)); }

TEST(ExampleArchitecture, IsPrintedInTheGuideAsItIsCompiled) {
    const std::string code = sourceText("tests/core/example_architecture.cpp");
    ASSERT_FALSE(code.empty());
    EXPECT_THAT(sourceText("docs/adding-an-architecture.md"), HasSubstr(code))
        << "copy tests/core/example_architecture.cpp into the guide";
}

/// What the example makes of its defaults and of a file's keys over them.
ModelConfig readOver(const nlohmann::json& stated) {
    const Architecture seed = seedOssArchitecture();
    nlohmann::json whole = nlohmann::json::parse(seed.defaults);
    whole.update(stated);
    ModelConfig config;
    seed.read(ConfigReader(whole, "config.json"), config);
    return config;
}

TEST(ExampleArchitecture, ReadsTheBiasesThatTheFileStates) {
    const ModelConfig usual = readOver(nlohmann::json::object());
    EXPECT_EQ(usual.attentionBias, Bias::All);
    EXPECT_EQ(usual.outputBias, Bias::None);
    EXPECT_EQ(usual.feedForwardBias, Bias::None);
    const ModelConfig other = readOver({{"attention_bias", false}, {"attention_out_bias", true}, {"mlp_bias", true}});
    EXPECT_EQ(other.attentionBias, Bias::None);
    EXPECT_EQ(other.outputBias, Bias::All);
    EXPECT_EQ(other.feedForwardBias, Bias::All);
}

/// The families of all checkpoints for which a golden file says what the library, or the released code, computes.
std::set<std::string> familiesWithReferences() {
    std::set<std::string> families;
    for (const auto& entry : fs::recursive_directory_iterator(test::source("tests/golden"))) {
        if (entry.path().filename() != "config.json") continue;
        bool compared = false;
        for (const auto& file : fs::directory_iterator(entry.path().parent_path()))
            compared = compared || file.path().extension() == ".safetensors";
        if (compared) families.insert(ModelConfig::parse(contents(entry.path()), entry.path().string()).family);
    }
    return families;
}

TEST(Architectures, HaveAReferenceAndARowOfTheTableEach) {
    const std::set<std::string> references = familiesWithReferences();
    const std::string page = sourceText("docs/models.md");
    for (const Architecture& each : architectures()) {
        EXPECT_TRUE(references.count(each.family) > 0) << each.family << ": no checkpoint in tests/golden is one";
        for (const std::string& name : each.classes)
            EXPECT_THAT(page, HasSubstr("`" + name + "`")) << "the table of docs/models.md lists every class";
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
