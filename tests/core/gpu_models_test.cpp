// Families and file formats on the GPU beside the CPU backend, which is held to the transformers library elsewhere:
// random checkpoints of sizes that a GPU's kernels take, fed the same tokens.
#include "base/error.h"
#include "core/model/safetensors.h"
#include "core/plan/model_limits.h"
#include "core/session/decode_session.h"
#include "core/session/engine.h"
#include "tests/core/gguf_writer.h"
#include "tests/core/random_checkpoint.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;

using Ids = std::vector<std::vector<std::int32_t>>; // [sequence]

struct Outcome {
    Ids ids;
    std::vector<std::vector<float>> logits; // [step * sequences]
};

Outcome decode(const std::shared_ptr<const Model>& model, const Ids& prompts, SessionOptions options, int newTokens,
               const Ids& forced = {}) {
    options.stopAtEos = false;
    options.maxNewTokens = newTokens;
    options.twoInFlight = false;
    CollectingSink sink;
    DecodeSession session(model, prompts, options, sink);
    Outcome out;
    const auto keep = [&] {
        for (int s = 0; s < int(prompts.size()); ++s)
            if (const float* logits = session.logits(s))
                out.logits.emplace_back(logits, logits + model->config().vocab);
    };
    session.prefill();
    keep();
    for (std::size_t next = 0;; ++next) {
        std::vector<std::int32_t> tokens;
        for (const auto& ids : forced)
            if (next < ids.size()) tokens.push_back(ids[next]);
        if (tokens.size() == prompts.size()) session.forceNextTokens(tokens);
        if (!session.step()) break;
        keep();
    }
    out.ids = session.generated();
    session.end(RunStatus::Finished);
    return out;
}

double relativeError(const std::vector<float>& got, const std::vector<float>& want) {
    double difference = 0, scale = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double apart = std::abs(double(got[i]) - double(want[i]));
        if (!std::isfinite(apart)) return INFINITY; // std::max would leave NaN out
        difference = std::max(difference, apart);
        scale = std::max(scale, std::abs(double(want[i])));
    }
    return difference / scale;
}

class GpuModels : public ::testing::Test {
protected:
    static bool hasGpu() {
        try {
            requireGpu();
            return true;
        } catch (const Error&) {
            return false;
        }
    }
    static SessionOptions denseOptions() {
        SessionOptions options;
        options.method = "full";
        return options;
    }
    Ids prompts(int count, int tokens, int vocab) {
        std::mt19937 random(3);
        Ids ids(static_cast<std::size_t>(count));
        for (auto& prompt : ids)
            for (int i = 0; i < tokens + 5 * count; ++i) prompt.push_back(std::int32_t(random() % unsigned(vocab)));
        return ids;
    }
    /// The GPU's activations and KV cache are bf16: logits stay within a few hundredths of the largest one. A part left
    /// out or misplaced moves all of them by several tenths. With experts the middle one counts: where two experts'
    /// scores nearly agree, rounding decides between them, and that token's logits are others.
    void expectTheCpusLogits(const std::shared_ptr<const Model>& model, int batch, int promptTokens,
                             SessionOptions options = denseOptions()) {
        ASSERT_EQ(gpuProblem(*model), "");
        const Ids given = prompts(batch, promptTokens, model->config().vocab);
        options.threads = 1;
        constexpr int kTokens = 12;
        const Outcome cpu = decode(model, given, options, kTokens);
        for (const auto& logits : cpu.logits)
            ASSERT_TRUE(std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); }));
        if (!hasGpu()) GTEST_SKIP() << "no NVIDIA GPU";
        options.backend = Backend::Cuda;
        const Outcome gpu = decode(model, given, options, kTokens, cpu.ids);
        ASSERT_EQ(gpu.logits.size(), cpu.logits.size());
        ASSERT_FALSE(cpu.logits.empty());
        std::vector<double> errors;
        for (std::size_t i = 0; i < cpu.logits.size(); ++i)
            errors.push_back(relativeError(gpu.logits[i], cpu.logits[i]));
        std::sort(errors.begin(), errors.end());
        const double middle = errors[errors.size() / 2],
                     mean = std::accumulate(errors.begin(), errors.end(), 0.) / double(errors.size());
        EXPECT_LT(middle, 0.05);
        if (!model->config().experts) {
            EXPECT_LT(mean, 0.05);
            EXPECT_LT(errors.back(), 0.15);
        }
        std::printf("mean difference %.4f of the largest logit, middle %.4f\n", mean, middle);
    }
    test::Folder folder_;
};

// ---- Quantised files ------------------------------------------------------------------------------------------------

int ggufCode(DType type) {
    switch (type) {
    case DType::F32:
        return 0;
    case DType::F16:
        return 1;
    case DType::Q4_0:
        return 2;
    case DType::Q4_1:
        return 3;
    case DType::Q5_0:
        return 6;
    case DType::Q5_1:
        return 7;
    case DType::Q8_0:
        return 8;
    case DType::Q4_K:
        return 12;
    case DType::Q5_K:
        return 13;
    case DType::Q6_K:
        return 14;
    case DType::BF16:
        return 30;
    }
    return -1;
}

/// Blocks of random integers whose weights have the deviation 1/sqrt(cols).
std::string randomBlocks(std::mt19937& random, DType type, int rows, int cols) {
    const auto [weights, bytes] = blockOf(type);
    double deviation = 4.6, least = 0; // of the integers times their factors; the minimum's scale in scales
    std::size_t scaleAt = 0;
    switch (type) {
    case DType::Q8_0:
        deviation = 74;
        break;
    case DType::Q4_1:
        least = -7.5;
        break;
    case DType::Q5_0:
        deviation = 9.2;
        break;
    case DType::Q5_1:
        deviation = 9.2, least = -15.5;
        break;
    case DType::Q4_K:
        deviation = 250, least = 7.5;
        break;
    case DType::Q5_K:
        deviation = 500, least = 15.5;
        break;
    case DType::Q6_K:
        deviation = 1370, scaleAt = 208;
        break;
    default:
        break;
    }
    const float scale = float(1 / (deviation * std::sqrt(double(cols))));
    std::string out;
    for (int block = 0; block < rows * (cols / weights); ++block) {
        std::string one(std::size_t(bytes), '\0');
        for (char& byte : one) byte = char(random());
        const auto put = [&](std::size_t at, float value) {
            const std::uint16_t half = test::toHalf(value);
            std::memcpy(&one[at], &half, 2);
        };
        put(scaleAt, scale);
        if (least != 0) put(2, float(least) * scale);
        out += one;
    }
    return out;
}

struct Recipe {
    const char* name;
    DType q, k, v, o, gate, up, down, embedding, head;
    int hidden, ffn, heads, kvHeads;
    int experts = 0; // gate, up and down of each, two for every token
};

void PrintTo(const Recipe& recipe, std::ostream* out) { *out << recipe.name; }

/// A Llama as llama.cpp writes it: neighbouring channels are rotated, so the projections' rows may lie as they are.
std::string writeGguf(const std::filesystem::path& path, const Recipe& recipe) {
    test::GgufWriter gguf;
    std::mt19937 random(11);
    constexpr int kLayers = 2, kVocab = 96, kDim = 64;
    const auto number = [](int value) { return std::uint32_t(value); };
    gguf.put("general.architecture", "llama");
    gguf.put("llama.block_count", number(kLayers));
    gguf.put("llama.context_length", number(512));
    gguf.put("llama.embedding_length", number(recipe.hidden));
    gguf.put("llama.feed_forward_length", number(recipe.ffn));
    gguf.put("llama.attention.head_count", number(recipe.heads));
    gguf.put("llama.attention.head_count_kv", number(recipe.kvHeads));
    gguf.put("llama.attention.key_length", number(kDim));
    gguf.put("llama.attention.value_length", number(kDim));
    gguf.put("llama.rope.dimension_count", number(kDim));
    gguf.put("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf.put("llama.rope.freq_base", 10000.f);
    if (recipe.experts > 0) {
        gguf.put("llama.expert_count", number(recipe.experts));
        gguf.put("llama.expert_used_count", number(2));
    }
    std::vector<std::string> tokens;
    for (int id = 0; id < kVocab; ++id) tokens.push_back("t" + std::to_string(id));
    gguf.put("tokenizer.ggml.model", "gpt2");
    gguf.put("tokenizer.ggml.pre", "gpt-2");
    gguf.put("tokenizer.ggml.tokens", tokens);
    gguf.put("tokenizer.ggml.merges", std::vector<std::string>{});
    gguf.put("tokenizer.ggml.bos_token_id", 0u);
    gguf.put("tokenizer.ggml.eos_token_id", 1u);
    // lists: the rows are those of so many matrices
    const auto matrix = [&](const std::string& name, DType type, int rows, int cols, int lists = 0) {
        std::string bytes;
        if (isQuantised(type)) {
            bytes = randomBlocks(random, type, rows, cols);
        } else {
            std::normal_distribution<float> normal(0.f, 1.f / std::sqrt(float(cols)));
            for (int i = 0; i < rows * cols; ++i) {
                const float value = normal(random);
                const std::uint16_t half = type == DType::F16 ? test::toHalf(value) : test::toBfloat(value);
                bytes.append(type == DType::F32 ? reinterpret_cast<const char*>(&value)
                                                : reinterpret_cast<const char*>(&half),
                             std::size_t(bytesOf(type)));
            }
        }
        std::vector<std::uint64_t> sizes{std::uint64_t(cols), std::uint64_t(rows)};
        if (lists > 0) sizes = {std::uint64_t(cols), std::uint64_t(rows / lists), std::uint64_t(lists)};
        gguf.add(name + ".weight", sizes, std::uint32_t(ggufCode(type)), bytes);
    };
    const auto norm = [&](const std::string& name) {
        std::vector<float> values(std::size_t(recipe.hidden));
        std::normal_distribution<float> normal(1.f, 0.1f);
        for (float& value : values) value = normal(random);
        gguf.addFloats(name + ".weight", {std::uint64_t(recipe.hidden)}, values);
    };
    matrix("token_embd", recipe.embedding, kVocab, recipe.hidden);
    matrix("output", recipe.head, kVocab, recipe.hidden);
    norm("output_norm");
    for (int i = 0; i < kLayers; ++i) {
        const std::string layer = "blk." + std::to_string(i) + ".";
        norm(layer + "attn_norm");
        norm(layer + "ffn_norm");
        matrix(layer + "attn_q", recipe.q, recipe.heads * kDim, recipe.hidden);
        matrix(layer + "attn_k", recipe.k, recipe.kvHeads * kDim, recipe.hidden);
        matrix(layer + "attn_v", recipe.v, recipe.kvHeads * kDim, recipe.hidden);
        matrix(layer + "attn_output", recipe.o, recipe.hidden, recipe.heads * kDim);
        if (const int experts = recipe.experts; experts > 0) {
            matrix(layer + "ffn_gate_inp", DType::F32, experts, recipe.hidden);
            matrix(layer + "ffn_gate_exps", recipe.gate, experts * recipe.ffn, recipe.hidden, experts);
            matrix(layer + "ffn_up_exps", recipe.up, experts * recipe.ffn, recipe.hidden, experts);
            matrix(layer + "ffn_down_exps", recipe.down, experts * recipe.hidden, recipe.ffn, experts);
            continue;
        }
        matrix(layer + "ffn_gate", recipe.gate, recipe.ffn, recipe.hidden);
        matrix(layer + "ffn_up", recipe.up, recipe.ffn, recipe.hidden);
        matrix(layer + "ffn_down", recipe.down, recipe.hidden, recipe.ffn);
    }
    std::ofstream(path, std::ios::binary) << gguf.bytes();
    return path.string();
}

constexpr Recipe everywhere(const char* name, DType t, int hidden, int ffn, int heads, int kvHeads) {
    return {name, t, t, t, t, t, t, t, t, t, hidden, ffn, heads, kvHeads};
}

const Recipe kRecipes[] = {
    everywhere("q8_0", DType::Q8_0, 256, 512, 4, 2),
    everywhere("q4_0", DType::Q4_0, 192, 288, 3, 1),
    everywhere("q4_1", DType::Q4_1, 576, 1536, 9, 3),
    everywhere("q5_0", DType::Q5_0, 256, 320, 4, 4),
    everywhere("q5_1", DType::Q5_1, 128, 512, 2, 1),
    everywhere("q4_K", DType::Q4_K, 256, 768, 4, 2),
    everywhere("q5_K", DType::Q5_K, 512, 512, 8, 2),
    everywhere("q6_K", DType::Q6_K, 256, 1024, 4, 1),
    everywhere("f16", DType::F16, 128, 160, 2, 2),
    {"as_q4_K_M", DType::Q4_K, DType::Q4_K, DType::Q6_K, DType::Q4_K, DType::Q4_K, DType::Q4_K, DType::Q6_K,
     DType::Q4_K, DType::Q6_K, 256, 512, 4, 2},
    {"every_tensor_another", DType::Q8_0, DType::BF16, DType::Q5_0, DType::Q6_K, DType::Q4_K, DType::Q5_K, DType::Q5_1,
     DType::Q8_0, DType::F32, 512, 768, 8, 2},
    {"experts", DType::Q4_K, DType::Q4_K, DType::Q6_K, DType::Q4_K, DType::Q4_K, DType::Q4_K, DType::Q6_K, DType::Q4_K,
     DType::Q6_K, 256, 256, 4, 2, 6},
    {"experts_q8_0", DType::Q8_0, DType::Q8_0, DType::Q8_0, DType::Q8_0, DType::Q8_0, DType::Q8_0, DType::Q8_0,
     DType::Q8_0, DType::Q8_0, 192, 96, 3, 1, 4},
};

class GpuGguf : public GpuModels, public ::testing::WithParamInterface<Recipe> {};

TEST_P(GpuGguf, LogitsAreTheCpus) {
    const auto model = Model::load(writeGguf(folder_ / "model.gguf", GetParam()));
    ASSERT_TRUE(model->config().rope.interleaved);
    for (const auto& [batch, promptTokens] : {std::pair{1, 20}, {3, 90}, {18, 4}}) {
        SCOPED_TRACE(::testing::Message() << batch << " sequences of about " << promptTokens << " tokens");
        expectTheCpusLogits(model, batch, promptTokens);
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuGguf, ::testing::ValuesIn(kRecipes),
                         [](const auto& tested) { return std::string(tested.param.name); });

/// Methods whose own kernels rotate queries or keys. Budgets cover all but a few blocks of little weight.
TEST_F(GpuModels, MethodsThatRotateThemselvesRotateNeighboursToo) {
    const auto model = Model::load(writeGguf(folder_ / "model.gguf", everywhere("f16", DType::F16, 256, 320, 4, 2)));
    ASSERT_TRUE(model->config().rope.interleaved);
    using Settings = std::vector<std::pair<std::string, std::string>>;
    for (const auto& [method, settings] :
         {std::pair<const char*, Settings>{"infllm",
                                           {{"block_size", "16"},
                                            {"local_tokens", "64"},
                                            {"init_tokens", "16"},
                                            {"topk_blocks", "20"},
                                            {"cached_blocks", "24"}}},
          {"shadowkv", {{"block_size", "16"}, {"rank", "128"}, {"budget_tokens", "280"}, {"outlier_tokens", "32"}}},
          {"infinigen",
           {{"block_size", "16"}, {"window_blocks", "2"}, {"total_blocks", "22"}, {"partial_dims", "64"}}}}) {
        SCOPED_TRACE(method);
        SessionOptions options;
        options.method = method;
        options.settings = settings;
        expectTheCpusLogits(model, 2, 370, options);
    }
}

// ---- Families -------------------------------------------------------------------------------------------------------

struct Case {
    const char *name, *family;
    json changes;
};

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.name; }

json heads(json more) {
    json all{{"hidden_size", 256},       {"head_dim", 64},   {"num_attention_heads", 4},
             {"num_key_value_heads", 2}, {"vocab_size", 96}, {"intermediate_size", 192}};
    all.update(more);
    return all;
}

/// Latent attention as DeepSeek-V2-Lite and GLM-4.7-Flash have it: 512 latent and 64 rotated channels.
json latent(json more) {
    json all{{"hidden_size", 256},         {"num_attention_heads", 4}, {"num_key_value_heads", 4},
             {"vocab_size", 96},           {"intermediate_size", 192}, {"kv_lora_rank", 512},
             {"qk_rope_head_dim", 64},     {"head_dim", 64},           {"qk_nope_head_dim", 96},
             {"qk_head_dim", 160},         {"v_head_dim", 64},         {"q_lora_rank", nullptr},
             {"moe_intermediate_size", 64}};
    all.update(more);
    return all;
}

/// And as MiniCPM3-4B has it: 256 and 32, with 40 heads.
json smallLatent(json more) {
    json all = latent({{"num_attention_heads", 40},
                       {"num_key_value_heads", 40},
                       {"kv_lora_rank", 256},
                       {"qk_rope_head_dim", 32},
                       {"head_dim", 32},
                       {"qk_nope_head_dim", 64},
                       {"qk_head_dim", 96}});
    all.update(more);
    return all;
}

const Case kFamilies[] = {
    {"deepseek2_lite", "deepseek2-lite", latent({{"num_attention_heads", 16}, {"num_key_value_heads", 16}})},
    {"deepseek2_groups", "deepseek2-groups", latent({{"q_lora_rank", 96}})},
    {"deepseek3", "deepseek3", latent({{"q_lora_rank", 160}})},
    {"glm4_lite", "glm4-lite",
     latent({{"q_lora_rank", 64}, {"num_attention_heads", 20}, {"num_key_value_heads", 20}, {"v_head_dim", 96}})},
    {"minicpm3", "minicpm3", smallLatent({{"q_lora_rank", 96}})},
    {"minicpm3_few_heads", "minicpm3-released",
     smallLatent({{"q_lora_rank", 64}, {"num_attention_heads", 3}, {"num_key_value_heads", 3}})},
    {"mistral_window", "mistral-window", heads({{"sliding_window", 150}})},
    {"mistral_narrow_window", "mistral-window", heads({{"sliding_window", 33}, {"head_dim", 128}})},
    {"qwen2_windows", "qwen2-windows", heads({{"sliding_window", 75}})},
    {"mixtral", "mixtral", heads(json::object())},
    {"qwen2_moe", "qwen2-moe", heads({{"moe_intermediate_size", 96}, {"shared_expert_intermediate_size", 224}})},
    {"qwen3_moe", "qwen3-moe", heads({{"moe_intermediate_size", 64}})},
    {"qwen3_moe_many", "qwen3-moe-normed",
     heads({{"moe_intermediate_size", 32}, {"num_local_experts", 48}, {"num_experts_per_tok", 8}})},
};

class GpuFamily : public GpuModels, public ::testing::WithParamInterface<Case> {};

TEST_P(GpuFamily, LogitsAreTheCpus) {
    const auto config = test::familyConfig(GetParam().family, GetParam().changes);
    const auto model = Model::load(test::writeCheckpoint((folder_ / "model").string(), config, 5));
    for (const auto& [batch, promptTokens] : {std::pair{1, 40}, {3, 90}, {18, 4}}) {
        SCOPED_TRACE(::testing::Message() << batch << " sequences of about " << promptTokens << " tokens");
        expectTheCpusLogits(model, batch, promptTokens);
    }
    for (const auto& [method, prefill, offload] : {std::tuple{"quest", "full", true},
                                                   {"quest", "sparse", false},
                                                   {"infllmv2", "full", true},
                                                   {"infllmv2", "sparse", false},
                                                   {"streaming", "full", true}}) {
        SCOPED_TRACE(::testing::Message() << method << ", prefill " << prefill << (offload ? ", offloaded" : ""));
        SessionOptions sparse;
        sparse.method = method;
        sparse.offload = offload;
        sparse.settings = {{"block_size", "16"}, {"sink_blocks", "1"}, {"window_blocks", "2"}};
        for (const auto& [key, value] : {std::pair{"total_blocks", "20"},
                                         {"skip_layers", "0"},
                                         {"dense_len", "0"},
                                         {"kernel_size", "8"},
                                         {"kernel_stride", "4"},
                                         {"prefill", prefill}}) {
            const auto& known = findMethod(method).parameters;
            if (std::any_of(known.begin(), known.end(), [&](const auto& p) { return p.key == key; }))
                sparse.settings.emplace_back(key, value);
        }
        // A budget that covers all but a few blocks: which of them are left out may differ, what they hold hardly
        // counts.
        expectTheCpusLogits(model, 2, 370, sparse);
    }
    if (model->config().latent) return; // of which there is one KV head
    for (const char* bound : {"max", "product"}) {
        SCOPED_TRACE(::testing::Message() << "quest, every query head for itself, bound " << bound);
        SessionOptions apart;
        apart.method = "quest";
        apart.settings = {{"total_blocks", "20"}, {"skip_layers", "0"}, {"group", "per_query_head"}, {"bound", bound}};
        expectTheCpusLogits(model, 2, 370, apart);
    }
}

TEST_F(GpuModels, MethodsWithKernelsOfTheirOwnSayThatTheyKnowNoWindows) {
    const auto config = test::familyConfig("mistral-window", heads({{"sliding_window", 100}}));
    const auto model = Model::load(test::writeCheckpoint((folder_ / "model").string(), config, 5));
    if (!hasGpu()) GTEST_SKIP() << "no NVIDIA GPU";
    SessionOptions options;
    options.method = "h2o";
    options.backend = Backend::Cuda;
    EXPECT_NO_THROW((void)decode(model, prompts(1, 60, 96), options, 12)); // stays within
    const auto line = test::refusalOf([&] { (void)decode(model, prompts(1, 100, 96), options, 12); }, "window of 100");
    EXPECT_THAT(line, ::testing::HasSubstr("quest"));
}

/// One row of the output head is no number: the kernel that chooses tokens tells it in place of one.
TEST_F(GpuModels, EndWithASentenceWhereALogitIsNotFinite) {
    const std::string folder = (folder_ / "model").string(), path = folder + "/model.safetensors";
    test::writeCheckpoint(folder, test::familyConfig("mistral", heads(json::object())), 5);
    std::size_t offset = 0;
    {
        const MappedFile file(path);
        const SafetensorsFile tensors(file.bytes(), path);
        const TensorView* head = tensors.find("lm_head.weight");
        ASSERT_NE(head, nullptr);
        ASSERT_EQ(head->dtype, "F32");
        offset = std::size_t(head->bytes.data() - file.bytes().data()) + 7 * 256 * sizeof(float); // row 7
    }
    const float wrong = std::numeric_limits<float>::quiet_NaN();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(offset)).write(reinterpret_cast<const char*>(&wrong), sizeof(wrong));
    file.close();
    const auto model = Model::load(folder);
    if (!hasGpu()) GTEST_SKIP() << "no NVIDIA GPU";
    for (const double temperature : {0.0, 1.0}) {
        SessionOptions options;
        options.backend = Backend::Cuda;
        options.method = "full";
        options.sampling.temperature = temperature;
        const auto line = test::refusalOf([&] { (void)decode(model, prompts(2, 40, 96), options, 4); }, model->name());
        EXPECT_THAT(line, ::testing::HasSubstr("not all finite")) << temperature;
    }
}

INSTANTIATE_TEST_SUITE_P(Random, GpuFamily, ::testing::ValuesIn(kFamilies),
                         [](const auto& tested) { return std::string(tested.param.name); });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
