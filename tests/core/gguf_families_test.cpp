// Every architecture as the GGUF file that llama.cpp's converter makes of its checkpoint (tools/make_gguf_families.py),
// against what the transformers library computes with the checkpoint. KVSCOPE_GGUF_FAMILIES names a folder with more
// such files, whose checkpoints lie under the same names in KVSCOPE_FAMILIES.
#include "tests/core/library_reference.h"
#include "tests/support/places.h"

#include <cstdlib>
#include <filesystem>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

struct Converted {
    std::string gguf, checkpoint;
};

void PrintTo(const Converted& tested, std::ostream* out) { *out << tested.gguf; }

std::vector<Converted> files() {
    std::vector<Converted> found;
    const auto collect = [&](const fs::path& ggufs, const fs::path& checkpoints) {
        if (!fs::is_directory(ggufs)) return;
        for (const auto& entry : fs::directory_iterator(ggufs))
            if (fs::exists(checkpoints / entry.path().stem() / "reference.safetensors"))
                found.push_back({entry.path().string(), (checkpoints / entry.path().stem()).string()});
    };
    const fs::path golden = test::source("tests/golden");
    collect(golden / "gguf/families", golden / "families");
    const char *ggufs = std::getenv("KVSCOPE_GGUF_FAMILIES"), *checkpoints = std::getenv("KVSCOPE_FAMILIES");
    if (ggufs != nullptr && checkpoints != nullptr) collect(ggufs, checkpoints);
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.gguf < b.gguf; });
    return found;
}

class ConvertedFamily : public ::testing::TestWithParam<Converted> {};

TEST_P(ConvertedFamily, LogitsAndGreedyIdsAreTheLibrarys) {
    test::expectTheLibrarysLogits(GetParam().checkpoint, Model::load(GetParam().gguf));
}

std::string nameOfFile(const ::testing::TestParamInfo<Converted>& tested) {
    std::string name = fs::path(tested.param.gguf).stem().string();
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConvertedFamily); // a small checkout leaves out the files
INSTANTIATE_TEST_SUITE_P(LlamaCpp, ConvertedFamily, ::testing::ValuesIn(files()), nameOfFile);

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
