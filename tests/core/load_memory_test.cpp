// Weights stay in the mapped file: what a process needs to load a model, and to decode with it, beside the file's size.
#include "core/model/gguf.h"
#include "tests/core/gguf_writer.h"
#include "tests/core/library_reference.h"
#include "tests/profiler/temporary_folder.h"

#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

constexpr int kHidden = 1024, kFfn = 4096, kLayers = 8, kVocab = 32000, kHeads = 16, kKvHeads = 4, kHeadDim = 64;

struct Matrix {
    std::string checkpoint, gguf;
    std::int64_t rows, cols; // rows 0: a vector
};

std::vector<Matrix> matrices() {
    std::vector<Matrix> out{{"model.embed_tokens", "token_embd", kVocab, kHidden},
                            {"model.norm", "output_norm", 0, kHidden}};
    for (int layer = 0; layer < kLayers; ++layer) {
        const std::string checkpoint = fmt::format("model.layers.{}.", layer), gguf = fmt::format("blk.{}.", layer);
        const auto add = [&](const char* name, const char* other, std::int64_t rows, std::int64_t cols) {
            out.push_back({checkpoint + name, gguf + other, rows, cols});
        };
        add("input_layernorm", "attn_norm", 0, kHidden);
        add("post_attention_layernorm", "ffn_norm", 0, kHidden);
        add("self_attn.q_proj", "attn_q", kHeads * kHeadDim, kHidden);
        add("self_attn.k_proj", "attn_k", kKvHeads * kHeadDim, kHidden);
        add("self_attn.v_proj", "attn_v", kKvHeads * kHeadDim, kHidden);
        add("self_attn.o_proj", "attn_output", kHidden, kHeads * kHeadDim);
        add("mlp.gate_proj", "ffn_gate", kFfn, kHidden);
        add("mlp.up_proj", "ffn_up", kFfn, kHidden);
        add("mlp.down_proj", "ffn_down", kHidden, kFfn);
    }
    return out;
}

/// Extends the file by zeros, which take no room on the disk and are valid weights.
void extendWithZeros(const std::string& path, const std::string& header, std::uint64_t dataBytes) {
    std::ofstream(path, std::ios::binary) << header;
    fs::resize_file(path, header.size() + dataBytes);
}

std::string writeCheckpoint(const fs::path& folder) {
    nlohmann::json header, config{{"architectures", {"LlamaForCausalLM"}},
                                  {"model_type", "llama"},
                                  {"hidden_size", kHidden},
                                  {"intermediate_size", kFfn},
                                  {"num_hidden_layers", kLayers},
                                  {"num_attention_heads", kHeads},
                                  {"num_key_value_heads", kKvHeads},
                                  {"vocab_size", kVocab},
                                  {"max_position_embeddings", 4096},
                                  {"rms_norm_eps", 1e-5},
                                  {"tie_word_embeddings", true}};
    std::uint64_t at = 0;
    for (const Matrix& m : matrices()) {
        const std::uint64_t bytes = std::uint64_t(std::max<std::int64_t>(m.rows, 1) * m.cols) * 2;
        auto shape = nlohmann::json::array();
        if (m.rows > 0) shape.push_back(m.rows);
        shape.push_back(m.cols);
        header[m.checkpoint + ".weight"] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
        at += bytes;
    }
    std::ofstream(folder / "config.json") << config;
    const std::string text = header.dump();
    extendWithZeros((folder / "model.safetensors").string(),
                    test::GgufWriter::number(std::uint64_t(text.size())) + text, at);
    return folder.string();
}

std::string writeGguf(const fs::path& folder) {
    test::GgufWriter gguf;
    gguf.put("general.architecture", "llama");
    for (const auto& [key, value] : {std::pair{"block_count", kLayers},
                                     {"context_length", 4096},
                                     {"embedding_length", kHidden},
                                     {"feed_forward_length", kFfn},
                                     {"attention.head_count", kHeads},
                                     {"attention.head_count_kv", kKvHeads}})
        gguf.put(std::string("llama.") + key, std::uint32_t(value));
    gguf.put("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    std::vector<std::string> tokens;
    for (int id = 0; id < kVocab; ++id) tokens.push_back(fmt::format("token{}", id));
    gguf.put("tokenizer.ggml.model", "gpt2");
    gguf.put("tokenizer.ggml.pre", "gpt-2");
    gguf.put("tokenizer.ggml.tokens", tokens);
    gguf.put("tokenizer.ggml.merges", std::vector<std::string>{});
    std::uint64_t at = 0;
    for (const Matrix& m : matrices()) {
        constexpr std::uint32_t f32 = 0, q8 = 8;
        const bool vector = m.rows == 0;
        std::vector<std::uint64_t> sizes{std::uint64_t(m.cols)};
        if (!vector) sizes.push_back(std::uint64_t(m.rows));
        gguf.tensors.push_back({m.gguf + ".weight", sizes, vector ? f32 : q8, at});
        at += vector ? std::uint64_t(m.cols) * 4 : std::uint64_t(m.rows * m.cols) / 32 * 34;
    }
    const std::string path = (folder / "model.gguf").string();
    extendWithZeros(path, gguf.bytes(), at);
    return path;
}

/// A line of /proc/self/status, in bytes.
std::int64_t statusBytes(const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
    return -1;
}

/// The most that `work` keeps in memory in a process of its own, mapped files included; -1 when it fails.
std::int64_t peakOf(const std::function<void()>& work) {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        const std::int64_t before = statusBytes("VmRSS");
        std::int64_t peak = -1;
        try {
            work();
            peak = statusBytes("VmHWM") - before;
        } catch (const std::exception& error) {
            std::fprintf(stderr, "%s\n", error.what());
        }
        _exit(write(ends[1], &peak, sizeof peak) == sizeof peak ? 0 : 1);
    }
    close(ends[1]);
    std::int64_t peak = -1;
    if (read(ends[0], &peak, sizeof peak) != sizeof peak) peak = -1;
    close(ends[0]);
    waitpid(child, nullptr, 0);
    return peak;
}

class LoadMemory : public ::testing::TestWithParam<bool> {
protected:
    LoadMemory() : path_(GetParam() ? writeGguf(folder_.path()) : writeCheckpoint(folder_.path())) {
        for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
            fileBytes_ += std::int64_t(entry.file_size());
    }
    void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        GTEST_SKIP() << "a sanitizer's own memory is counted, too";
#endif
        ASSERT_GT(fileBytes_, 100 << 20);
    }

    test::Folder folder_;
    const std::string path_;
    std::int64_t fileBytes_ = 0;
};

/// Loading looks at the header and the norms; the names of 32,000 tokens are what it keeps.
TEST_P(LoadMemory, LoadingTakesATenthOfTheFileAtMost) {
    const std::int64_t peak = peakOf([&] { (void)Model::load(path_); });
    ASSERT_GT(peak, 0);
    EXPECT_LT(peak, fileBytes_ / 10);
}

/// A decode step touches every weight: the file, once, and a tenth for all else.
TEST_P(LoadMemory, DecodingTakesTheFileAndATenthAtMost) {
    const std::int64_t peak = peakOf([&] { (void)test::decodeFully(Model::load(path_), {1, 2, 3}, 3); });
    ASSERT_GT(peak, fileBytes_ / 10 * 8) << "the weights were not read: this test measures nothing";
    EXPECT_LT(peak, fileBytes_ / 10 * 11);
}

INSTANTIATE_TEST_SUITE_P(Files, LoadMemory, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "gguf" : "safetensors"; });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
