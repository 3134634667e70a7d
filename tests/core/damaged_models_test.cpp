// Models of every family and format with something wrong in one of their files. Each loads and decodes, or is refused
// in one line that names a file or the model and says how to mend it; nothing crashes, under the sanitizers neither.
// KVSCOPE_DAMAGE_ROUNDS: so many times as many changes as usual; KVSCOPE_DAMAGE_SEED: other ones.
#include "core/model/safetensors.h"
#include "core/session/decode_session.h"
#include "tests/core/damage.h"
#include "tests/core/files.h"
#include "tests/core/library_reference.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"
#include "tests/support/refusal.h"

#include <cstdlib>
#include <fmt/format.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kGolden = test::source("tests/golden");

using test::contentsOf;
using test::write;

unsigned numberFrom(const char* variable, unsigned usual) {
    const char* text = std::getenv(variable);
    return text ? unsigned(std::atoi(text)) : usual;
}
unsigned times(unsigned rounds) { return rounds * numberFrom("KVSCOPE_DAMAGE_ROUNDS", 1); }

std::vector<fs::path> sorted(const fs::path& folder, const std::string& extension) {
    std::vector<fs::path> out;
    if (!fs::is_directory(folder)) return out; // a small checkout leaves out some
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == extension) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
}

class DamagedModel : public testing::TestWithParam<fs::path> {
protected:
    /// Loads and decodes a little; what it is told when it is refused. Every refusal has a hint.
    std::string refusal(const fs::path& model) const {
        const auto use = [&] {
            try {
                const auto loaded = Model::load(model.string());
                const int vocab = loaded->config().vocab;
                std::vector<std::int32_t> prompt;
                for (int i = 0; i < 20; ++i) prompt.push_back(std::int32_t(i * 7 % vocab));
                SessionOptions options;
                options.threads = 1;
                (void)test::decodeFully(loaded, prompt, 2, options);
            } catch (const Error& error) {
                EXPECT_FALSE(error.hint.empty()) << error.what();
                throw;
            }
        };
        return test::refusalOf(use, folder_.path().filename().string());
    }

    void copyTo(const fs::path& from, const char* file) const {
        if (fs::exists(from / file)) fs::copy_file(from / file, folder_ / file, fs::copy_options::overwrite_existing);
    }

    test::Folder folder_;
    std::mt19937 random_{numberFrom("KVSCOPE_DAMAGE_SEED", 5)};
};

// --- folders

TEST_P(DamagedModel, AnyValueOfItsConfigurationMayBeWrong) {
    copyTo(GetParam(), "model.safetensors");
    const Json config = Json::parse(contentsOf(GetParam() / "config.json"));
    const auto places = test::placesOf(config);
    unsigned refused = 0;
    for (unsigned round = 0; round < times(60); ++round) {
        const std::string text = test::withOneChange(config, places, random_);
        SCOPED_TRACE(text.substr(0, 3000));
        write(folder_ / "config.json", text);
        refused += !refusal(folder_.path()).empty();
    }
    EXPECT_GT(refused, 0u);
}

TEST_P(DamagedModel, AnyEntryOfItsTensorTableMayBeWrong) {
    copyTo(GetParam(), "config.json");
    const std::string whole = contentsOf(GetParam() / "model.safetensors");
    std::uint64_t size = 0;
    std::memcpy(&size, whole.data(), 8);
    const Json header = Json::parse(whole.substr(8, size));
    const auto places = test::placesOf(header);
    for (unsigned round = 0; round < times(40); ++round) {
        std::string damaged;
        if (round % 2) {
            const std::string text = test::withOneChange(header, places, random_);
            const std::uint64_t length = random_() % 20 ? text.size() : std::uint64_t(random_()) << random_() % 33;
            damaged = std::string(reinterpret_cast<const char*>(&length), 8) + text + whole.substr(8 + size);
        } else {
            damaged = test::withChangedBytes(whole, 8 + size, random_);
        }
        if (random_() % 8 == 0) damaged.resize(random_() % damaged.size());
        write(folder_ / "model.safetensors", damaged);
        SCOPED_TRACE(fmt::format("round {}", round));
        (void)refusal(folder_.path());
    }
}

TEST_P(DamagedModel, AnyEntryOfItsIndexMayBeWrong) {
    copyTo(GetParam(), "config.json");
    copyTo(GetParam(), "model.safetensors");
    Json index{{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
    const std::string whole = contentsOf(GetParam() / "model.safetensors");
    const SafetensorsFile file(std::as_bytes(std::span(whole)), "whole");
    for (const auto& [name, tensor] : file.tensors()) index["weight_map"][name] = "model.safetensors";
    write(folder_ / "model.safetensors.index.json", index.dump());
    EXPECT_EQ(refusal(folder_.path()), "");
    const auto places = test::placesOf(index);
    for (unsigned round = 0; round < times(15); ++round) {
        const std::string text = test::withOneChange(index, places, random_);
        SCOPED_TRACE(text.substr(0, 1000));
        write(folder_ / "model.safetensors.index.json", text);
        const std::string line = refusal(folder_.path());
        if (text.find(".weight\":\"/etc/passwd\"") != text.npos ||
            text.find(".weight\":\"../../etc/passwd\"") != text.npos) {
            EXPECT_THAT(line, testing::HasSubstr("outside the model's folder"));
        }
    }
}

std::vector<fs::path> folders() {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(kGolden / "families"))
        if (fs::exists(entry.path() / "config.json")) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
}

std::string stemOf(const testing::TestParamInfo<fs::path>& tested) {
    std::string name = tested.param.stem().string();
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Folders, DamagedModel, testing::ValuesIn(folders()), stemOf);

// --- GGUF

class DamagedGguf : public DamagedModel {};

TEST_P(DamagedGguf, LoadsOrIsRefused) {
    const std::string whole = contentsOf(GetParam());
    const fs::path file = folder_ / (folder_.path().filename().string() + ".gguf"); // the model's name
    write(file, whole);
    EXPECT_EQ(refusal(file), "");
    const std::size_t header = std::min<std::size_t>(whole.size(), 16'384);
    unsigned refused = 0;
    for (unsigned round = 0; round < times(60); ++round) {
        std::string damaged = whole;
        if (round % 6 != 0) damaged = test::withChangedBytes(whole, round % 2 ? header : whole.size(), random_);
        if (round % 6 == 0) damaged.resize(random_() % damaged.size());
        write(file, damaged);
        SCOPED_TRACE(fmt::format("round {}", round));
        refused += !refusal(file).empty();
    }
    EXPECT_GT(refused, 0u);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DamagedGguf);
INSTANTIATE_TEST_SUITE_P(Files, DamagedGguf, testing::ValuesIn(sorted(kGolden / "gguf/families", ".gguf")), stemOf);

// --- tokenizers

class DamagedTokenizer : public testing::TestWithParam<fs::path> {};

TEST_P(DamagedTokenizer, ReadsTextsOrIsRefused) {
    const Json json = Json::parse(contentsOf(GetParam()));
    const auto places = test::placesOf(json);
    std::mt19937 random{numberFrom("KVSCOPE_DAMAGE_SEED", 5)};
    for (unsigned round = 0; round < times(120); ++round) {
        const std::string text = test::withOneChange(json, places, random);
        SCOPED_TRACE(fmt::format("round {}", round));
        const auto use = [&] {
            const Tokenizer tokenizer(text, "x/tokenizer.json");
            for (const char* prompt :
                 {"", "Hello, w\u00f6rld 12\n", "<s> <|im_start|>\u2581a  token\t==", "\xff\xfe\xed"})
                (void)tokenizer.decode(tokenizer.encode(prompt));
            for (std::int32_t id = -2; id < tokenizer.vocabSize() + 2; ++id) (void)tokenizer.bytesOf(id);
        };
        (void)test::refusalOf(use, "tokenizer.json");
    }
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedTokenizer, testing::ValuesIn(sorted(kGolden / "tokenizers", ".json")), stemOf);

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
