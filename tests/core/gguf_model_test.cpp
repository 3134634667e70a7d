// Models as GGUF files: checkpoints of the transformers library, converted here the way llama.cpp's script converts
// them, must give the logits the library computed; a real quantised file must speak.
#include "core/model/gguf_model.h"
#include "tests/core/gguf_writer.h"
#include "tests/core/library_reference.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::GgufWriter;

const std::string kFamilies = test::source("tests/golden/families/");

std::string ggufName(const std::string& name) {
    static const std::vector<std::pair<std::string, std::string>> parts{{"model.embed_tokens.", "token_embd."},
                                                                        {"model.norm.", "output_norm."},
                                                                        {"lm_head.", "output."},
                                                                        {"model.layers.", "blk."},
                                                                        {"post_attention_layernorm.", "ffn_norm."},
                                                                        {"input_layernorm.", "attn_norm."},
                                                                        {"self_attn.q_proj.", "attn_q."},
                                                                        {"self_attn.k_proj.", "attn_k."},
                                                                        {"self_attn.v_proj.", "attn_v."},
                                                                        {"self_attn.o_proj.", "attn_output."},
                                                                        {"self_attn.q_norm.", "attn_q_norm."},
                                                                        {"self_attn.k_norm.", "attn_k_norm."},
                                                                        {"mlp.gate_proj.", "ffn_gate."},
                                                                        {"mlp.up_proj.", "ffn_up."},
                                                                        {"mlp.down_proj.", "ffn_down."}};
    std::string out = name;
    for (const auto& [from, to] : parts)
        if (const std::size_t at = out.find(from); at != std::string::npos) out.replace(at, from.size(), to);
    return out;
}

/// The script's `permute`: within each head, row (half, i) of [2, dim/2] moves to (i, half).
std::string permuted(std::string_view rows, std::size_t heads, std::size_t dim) {
    const std::size_t rowBytes = rows.size() / (heads * dim);
    std::string out;
    for (std::size_t head = 0; head < heads; ++head)
        for (std::size_t i = 0; i < dim / 2; ++i)
            for (std::size_t half = 0; half < 2; ++half)
                out += rows.substr((head * dim + half * dim / 2 + i) * rowBytes, rowBytes);
    return out;
}

/// Metadata of a checkpoint's configuration and of a tokenizer that has its ids.
void putMetadata(GgufWriter& gguf, const nlohmann::json& config, const std::string& architecture) {
    const auto number = [&](const char* key) { return config.at(key).get<std::uint32_t>(); };
    const auto key = [&](const char* name) { return architecture + "." + name; };
    const auto& rope = config.at("rope_parameters");
    const std::uint32_t dim = number("head_dim");
    gguf.put("general.architecture", architecture.c_str());
    gguf.put(key("block_count"), number("num_hidden_layers"));
    gguf.put(key("context_length"), number("max_position_embeddings"));
    gguf.put(key("embedding_length"), number("hidden_size"));
    gguf.put(key("feed_forward_length"), number("intermediate_size"));
    gguf.put(key("attention.head_count"), number("num_attention_heads"));
    gguf.put(key("attention.head_count_kv"), number("num_key_value_heads"));
    gguf.put(key("attention.key_length"), dim);
    gguf.put(key("attention.value_length"), dim);
    gguf.put(key("rope.dimension_count"), dim);
    gguf.put(key("attention.layer_norm_rms_epsilon"), config.at("rms_norm_eps").get<float>());
    gguf.put(key("rope.freq_base"), rope.at("rope_theta").get<float>());
    if (rope.at("rope_type") == "linear") {
        gguf.put(key("rope.scaling.type"), "linear");
        gguf.put(key("rope.scaling.factor"), rope.at("factor").get<float>());
    }
    std::vector<std::string> tokens;
    for (std::uint32_t id = 0; id < number("vocab_size"); ++id) tokens.push_back("t" + std::to_string(id));
    gguf.put("tokenizer.ggml.model", "gpt2");
    gguf.put("tokenizer.ggml.pre", "gpt-2");
    gguf.put("tokenizer.ggml.tokens", tokens);
    gguf.put("tokenizer.ggml.merges", std::vector<std::string>{});
    gguf.put("tokenizer.ggml.bos_token_id", 0u);
    gguf.put("tokenizer.ggml.eos_token_id", 1u);
}

/// Llama 3's scaling as the script works it out: what each channel pair's frequency is divided by.
std::vector<float> llama3Factors(const nlohmann::json& rope, int dim) {
    const double pi = std::acos(-1.0), original = rope.at("original_max_position_embeddings"),
                 factor = rope.at("factor"), low = rope.at("low_freq_factor"), high = rope.at("high_freq_factor");
    std::vector<float> out;
    for (int i = 0; i < dim; i += 2) {
        const double wave = 2 * pi * std::pow(double(rope.at("rope_theta")), double(i) / dim);
        const double smooth = (original / wave - low) / (high - low);
        out.push_back(float(wave < original / high  ? 1
                            : wave > original / low ? factor
                                                    : 1 / ((1 - smooth) / factor + smooth)));
    }
    return out;
}

/// A checkpoint's folder as one GGUF file, in as many parts as asked.
std::vector<GgufWriter> convert(const std::string& folder, const std::string& architecture, std::size_t parts = 1) {
    std::ifstream configFile(folder + "/config.json");
    const auto config = nlohmann::json::parse(configFile);
    const MappedFile file(folder + "/model.safetensors");
    const SafetensorsFile source(file.bytes(), "source");
    std::vector<GgufWriter> out(parts);
    putMetadata(out[0], config, architecture);
    const auto dim = config.at("head_dim").get<std::size_t>();
    if (config.at("rope_parameters").at("rope_type") == "llama3")
        out[0].addFloats("rope_freqs.weight", {dim / 2}, llama3Factors(config.at("rope_parameters"), int(dim)));
    std::size_t next = 0;
    for (const auto& [name, tensor] : source.tensors()) {
        std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
        if (architecture == "llama" && name.find("q_proj") != name.npos)
            bytes = permuted(bytes, config.at("num_attention_heads"), dim);
        if (architecture == "llama" && name.find("k_proj") != name.npos)
            bytes = permuted(bytes, config.at("num_key_value_heads"), dim);
        GgufWriter& to = out[next++ * parts / source.tensors().size()];
        std::vector<std::uint64_t> sizes(tensor.shape.rbegin(), tensor.shape.rend());
        if (sizes.size() > 1) {
            to.add(ggufName(name), sizes, 30, bytes);
            continue;
        }
        std::vector<float> values; // the script stores vectors as F32
        for (std::size_t i = 0; i < bytes.size(); i += 2) {
            const std::uint32_t wide =
                std::uint32_t(std::uint8_t(bytes[i])) << 16 | std::uint32_t(std::uint8_t(bytes[i + 1])) << 24;
            float value;
            std::memcpy(&value, &wide, 4);
            values.push_back(value);
        }
        to.addFloats(ggufName(name), sizes, values);
    }
    if (parts > 1)
        for (std::size_t i = 0; i < parts; ++i) {
            out[i].put("split.no", std::uint32_t(i));
            out[i].put("split.count", std::uint32_t(parts));
        }
    return out;
}

void write(const std::filesystem::path& path, const GgufWriter& gguf) {
    std::ofstream(path, std::ios::binary) << gguf.bytes();
}

struct Family {
    const char *folder, *architecture;
};

std::string folderOf(const ::testing::TestParamInfo<Family>& tested) {
    std::string name = tested.param.folder;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

class GgufFamily : public ::testing::TestWithParam<Family> {};

TEST_P(GgufFamily, ConvertedItGivesTheLibrarysLogitsAndIds) {
    const std::string folder = kFamilies + GetParam().folder;
    const test::Folder temporary;
    write(temporary / "model.gguf", convert(folder, GetParam().architecture).front());
    test::expectTheLibrarysLogits(folder, Model::load((temporary / "model.gguf").string()));
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufFamily,
                         ::testing::Values(Family{"llama2-mha", "llama"}, Family{"llama3-gqa-bias", "llama"},
                                           Family{"smollm2", "llama"}, Family{"llama-linear", "llama"},
                                           Family{"llama-llama3", "llama"}, Family{"qwen2", "qwen2"},
                                           Family{"qwen3", "qwen3"}),
                         folderOf);

TEST(GgufModel, ASplitFileIsOneModelAndMissingOrWrongPartsAreNamed) {
    const std::string folder = kFamilies + "qwen3";
    const test::Folder temporary;
    const auto parts = convert(folder, "qwen3", 3);
    const auto path = [&](int part) { return temporary / fmt::format("model-{:05}-of-00003.gguf", part); };
    for (int part = 1; part <= 3; ++part) write(path(part), parts[std::size_t(part - 1)]);
    test::expectTheLibrarysLogits(folder, Model::load(path(1).string()));
    const auto refusal = [&](const std::string& file, const char* says) {
        EXPECT_THAT([&] { Model::load(file); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr(says)));
    };
    refusal(path(2).string(), "not the first");
    std::filesystem::copy_file(path(1), temporary / "alone.gguf");
    refusal((temporary / "alone.gguf").string(), "part 1 of 3");
    std::filesystem::copy_file(path(2), path(3), std::filesystem::copy_options::overwrite_existing);
    refusal(path(1).string(), "part 2 of 3, where part 3");
    std::filesystem::remove(path(3));
    refusal(path(1).string(), "00003-of-00003");
}

ModelConfig configOf(const GgufWriter& gguf) {
    const std::string bytes = gguf.bytes();
    const GgufFile file(std::as_bytes(std::span(bytes)), "x.gguf");
    return ModelConfig::parse(ggufConfigJson({&file, 1}, ggufTensors({&file, 1})), "x.gguf", ConfigSource::Gguf);
}

GgufWriter headerOf(const std::string& architecture) {
    GgufWriter gguf;
    gguf.put("general.architecture", architecture.c_str());
    for (const auto& [key, value] : {std::pair{"block_count", 4u},
                                     {"context_length", 64u},
                                     {"embedding_length", 512u},
                                     {"attention.head_count", 8u},
                                     {"feed_forward_length", 32u}})
        gguf.put(architecture + "." + key, value);
    gguf.put(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
    gguf.addFloats("token_embd.weight", {512, 3}, std::vector<float>(512 * 3));
    return gguf;
}

/// Logits are divided by the file's logit scale (hidden / dim_model_base); files without scales mean MiniCPM-2B's.
TEST(GgufModel, MiniCpmsScalesAreTheFilesOrThoseOfTheFirstModel) {
    GgufWriter gguf = headerOf("minicpm");
    const ResidualScales first = configOf(gguf).scales;
    EXPECT_DOUBLE_EQ(first.embedding, 12);
    EXPECT_DOUBLE_EQ(first.residual, 1.4 / 2);
    EXPECT_DOUBLE_EQ(first.logits, 256.0 / 512);
    gguf.put("minicpm.embedding_scale", 8.f);
    gguf.put("minicpm.residual_scale", 0.25f);
    gguf.put("minicpm.logit_scale", 4.f);
    const ResidualScales stated = configOf(gguf).scales;
    EXPECT_DOUBLE_EQ(stated.embedding, 8);
    EXPECT_DOUBLE_EQ(stated.residual, 0.25);
    EXPECT_DOUBLE_EQ(stated.logits, 0.25);
}

/// As llama.cpp reads it: linear where the type is left out, under the old name too, and nothing for type none.
TEST(GgufModel, AFactorWithoutATypeIsLinear) {
    for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
        GgufWriter gguf = headerOf("llama");
        gguf.put(key, 4.f);
        const RopeConfig rope = configOf(gguf).rope;
        EXPECT_EQ(rope.type, RopeType::Linear) << key;
        EXPECT_EQ(rope.factor, 4) << key;
        EXPECT_EQ(configOf(gguf).maxPositions, 4 * 64) << key;
        gguf.put("llama.rope.scaling.type", "none");
        EXPECT_EQ(configOf(gguf).rope.type, RopeType::Default) << key;
    }
    for (const float factor : {0.f, 1.f}) {
        GgufWriter gguf = headerOf("llama");
        gguf.put("llama.rope.scaling.factor", factor);
        EXPECT_EQ(configOf(gguf).rope.type, RopeType::Default) << factor;
    }
    GgufWriter linear = headerOf("llama");
    linear.put("llama.rope.scaling.type", "linear");
    EXPECT_EQ(configOf(linear).rope.type, RopeType::Default) << "without a factor";
    for (const float wrong : {NAN, INFINITY}) { // as text of JSON they would be null, and count as left out
        GgufWriter gguf = headerOf("llama");
        gguf.put("llama.rope.scaling.type", "yarn");
        gguf.put("llama.rope.scaling.factor", wrong);
        EXPECT_THAT([&] { configOf(gguf); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("no finite number")));
    }
    linear.put("llama.rope.scaling.factor", 2.f);
    linear.addFloats("rope_freqs.weight", {32}, std::vector<float>(32, 1.f));
    EXPECT_THAT([&] { configOf(linear); },
                ::testing::ThrowsMessage<Error>(::testing::HasSubstr("rope.scaling.factor")));
}

/// Factors for each channel go with no type, with linear of factor 1, and with longrope where both lists are there.
TEST(GgufModel, FactorsForEachChannelGoWithTheirTypesAlone) {
    const auto refusal = [](const char* type, bool isLong) -> std::string {
        GgufWriter gguf = headerOf("llama");
        for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"})
            if (isLong) gguf.addFloats(name, {32}, std::vector<float>(32, 2.f));
        if (!isLong) gguf.addFloats("rope_freqs.weight", {32}, std::vector<float>(32, 2.f));
        if (type != nullptr) gguf.put("llama.rope.scaling.type", type);
        try {
            configOf(gguf);
        } catch (const Error& error) {
            return error.what();
        }
        return {};
    };
    using ::testing::HasSubstr;
    for (const bool isLong : {false, true}) {
        EXPECT_EQ(refusal(nullptr, isLong), "");
        EXPECT_EQ(refusal("none", isLong), "");
        EXPECT_EQ(refusal("linear", isLong), "");
        EXPECT_THAT(refusal("yarn", isLong), HasSubstr("'yarn' does not go with"));
        EXPECT_THAT(refusal("su", isLong), HasSubstr("the RoPE scaling 'su' is not supported"));
    }
    EXPECT_EQ(refusal("longrope", true), "");
    EXPECT_THAT(refusal("longrope", false), HasSubstr("'longrope' does not go with"));
}

TEST(GgufModel, SigmoidScoresMakeADeepseek2AThird) {
    GgufWriter gguf = headerOf("deepseek2");
    for (const auto& [key, value] : {std::pair{"rope.dimension_count", 8u},
                                     {"attention.kv_lora_rank", 16u},
                                     {"attention.key_length", 24u},
                                     {"attention.value_length", 16u},
                                     {"expert_count", 8u},
                                     {"expert_used_count", 2u},
                                     {"expert_feed_forward_length", 16u},
                                     {"expert_group_count", 4u}})
        gguf.put(std::string("deepseek2.") + key, value);
    gguf.addFloats("blk.1.ffn_gate_inp.weight", {512, 8}, std::vector<float>(512 * 8));
    const auto refused = [&](GgufWriter changed, const char* key) {
        EXPECT_THAT([&] { configOf(changed); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr(key))) << key;
    };
    refused(gguf, "deepseek2.expert_group_used_count");
    gguf.put("deepseek2.expert_group_used_count", 2u);
    GgufWriter normalised = gguf;
    normalised.put("deepseek2.expert_weights_norm", true); // llama.cpp would, the model's own code would not
    refused(normalised, "'deepseek2.expert_weights_norm' is true");
    const ModelConfig second = configOf(gguf);
    EXPECT_EQ(second.family, "deepseek2");
    EXPECT_EQ(second.experts->layers, (std::vector<bool>{false, true, false, false}));
    EXPECT_EQ(second.experts->groupScore, GroupScore::Max);
    EXPECT_EQ(second.experts->groupsUsed, 2);
    gguf.put("deepseek2.expert_gating_func", 2u);
    const ModelConfig third = configOf(gguf);
    EXPECT_EQ(third.family, "deepseek3");
    EXPECT_EQ(third.experts->score, ExpertScore::Sigmoid);
    EXPECT_FALSE(third.experts->normalise) << "absent means not";
    gguf.put("deepseek2.nextn_predict_layers", 1u);
    EXPECT_EQ(configOf(gguf).layers, 3);
}

/// What llama.cpp computes by and this program does not is refused unless it changes nothing.
TEST(GgufModel, MetadataThatChangesTheResultIsRefusedUnlessNeutral) {
    const auto refusal = [](const auto& change, const char* architecture = "llama") -> std::string {
        GgufWriter gguf = headerOf(architecture);
        change(gguf);
        try {
            configOf(gguf);
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::Unsupported) << error.what();
            return error.what();
        }
        return {};
    };
    const auto with = [&](const std::string& key, auto value, const char* architecture = "llama") {
        return refusal([&](GgufWriter& gguf) { gguf.put(std::string(architecture) + "." + key, value); }, architecture);
    };
    using ::testing::HasSubstr;
    EXPECT_THAT(with("attention.causal", false), HasSubstr("'llama.attention.causal' is false"));
    EXPECT_EQ(with("attention.causal", true), "");
    for (const char* key : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
        EXPECT_THAT(with(key, 1.5f), HasSubstr(key));
        EXPECT_EQ(with(key, 1.f), "");
    }
    for (const char* key : {"logit_scale", "residual_scale", "embedding_scale", "attention.output_scale",
                            "expert_weights_scale", "rope.scaling.alpha"}) {
        EXPECT_THAT(with(key, 1.5f), HasSubstr(std::string("'llama.") + key + "' is 1.5"));
        EXPECT_EQ(with(key, 1.f), "");
        EXPECT_EQ(with(key, 0.f), "");
    }
    for (const char* key : {"attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias",
                            "attn_logit_softcapping", "final_logit_softcapping", "attention.temperature_scale"}) {
        EXPECT_THAT(with(key, 30.f), HasSubstr(key));
        EXPECT_EQ(with(key, 0.f), "");
    }
    EXPECT_THAT(with("attention.sliding_window", 16u, "qwen2"), HasSubstr("'qwen2.attention.sliding_window' is 16"));
    EXPECT_EQ(with("attention.sliding_window", 64u, "qwen2"), "") << "as long as the context";
    EXPECT_THAT(with("use_parallel_residual", true), HasSubstr("use_parallel_residual"));
    EXPECT_THAT(with("ssm.state_size", 16u), HasSubstr("ssm.state_size"));
    EXPECT_THAT(with("attention.indexer.top_k", 16u), HasSubstr("attention.indexer.top_k"));
    EXPECT_THAT(with("expert_gating_func", 2u), HasSubstr("expert_gating_func"));
    EXPECT_THAT(with("attention.causal", "no"), HasSubstr("attention.causal")) << "of another type";
    for (const char* type : {"none", "yarn"})
        for (const float ramp : {0.f, 0.5f, 1.f, -1.f}) {
            const std::string said = refusal([&](GgufWriter& gguf) {
                gguf.put("llama.rope.scaling.type", type);
                gguf.put("llama.rope.scaling.factor", 4.f);
                gguf.put("llama.rope.scaling.yarn_ext_factor", ramp);
            });
            const bool idle = ramp < 0 || ramp == (std::string(type) == "yarn" ? 1.f : 0.f);
            EXPECT_EQ(said.empty(), idle) << type << " " << ramp << said;
        }
}

TEST(GgufModel, MetadataThatNobodyReadsIsNoted) {
    const test::Folder temporary;
    const std::string path = (temporary / "model.gguf").string();
    GgufWriter gguf = convert(kFamilies + "smollm2", "llama").front();
    gguf.put("llama.vocab_size", 48u); // the tensors say it
    gguf.put("general.name", "small");
    write(path, gguf);
    EXPECT_TRUE(Model::load(path)->notes().empty());
    gguf.put("llama.colour_of_layers", "red");
    gguf.put("qwen2.attention.causal", false);
    write(path, gguf);
    const std::vector<std::string> notes = Model::load(path)->notes();
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_THAT(notes.front(), ::testing::HasSubstr("llama.colour_of_layers, qwen2.attention.causal"));
}

TEST(GgufModel, AbsurdSizesAreRefusedBeforeTheyAreCalculatedWith) {
    for (const char* key : {"nextn_predict_layers", "attention.key_length", "attention.key_length_mla"}) {
        GgufWriter gguf = headerOf("deepseek2");
        gguf.put("deepseek2.attention.kv_lora_rank", 16u);
        gguf.put("deepseek2.rope.dimension_count", 8u);
        gguf.raw(std::string("deepseek2.") + key, GgufWriter::I64, GgufWriter::number(INT64_MIN));
        EXPECT_THAT([&] { configOf(gguf); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("not between 0 and")))
            << key;
    }
}

/// Bytes that were put into the data of a file shift the tensors behind them: only their number is left to see.
TEST(GgufModel, BytesBehindTheLastTensorAreNoted) {
    const test::Folder temporary;
    const std::string path = (temporary / "model.gguf").string();
    GgufWriter gguf = convert(kFamilies + "smollm2", "llama").front();
    gguf.data.resize((gguf.data.size() + gguf.alignment - 1) / gguf.alignment * gguf.alignment);
    write(path, gguf);
    EXPECT_TRUE(Model::load(path)->notes().empty()) << "padding of the last tensor";
    gguf.data.insert(100, "seven b");
    write(path, gguf);
    EXPECT_THAT(
        Model::load(path)->notes(),
        ::testing::ElementsAre("7 bytes of model.gguf behind its last tensor belong to none: it may be damaged"));
}

TEST(GgufModel, TensorsThatNothingUsesAreRefused) {
    const test::Folder temporary;
    const std::string path = (temporary / "model.gguf").string();
    for (const char* name : {"blk.0.attn_q_norm.weight", "blk.1.attn_gate.weight", "output.bias", "output_norm.bias"}) {
        GgufWriter gguf = convert(kFamilies + "smollm2", "llama").front();
        gguf.addFloats(name, {4}, std::vector<float>(4, 1.f));
        write(path, gguf);
        EXPECT_THAT([&] { Model::load(path); },
                    ::testing::ThrowsMessage<Error>(::testing::HasSubstr("nothing uses the tensor")))
            << name;
    }
    GgufWriter behind = convert(kFamilies + "smollm2", "llama").front();
    behind.addFloats("blk.7.attn_q.weight", {4}, std::vector<float>(4, 1.f));
    write(path, behind);
    ASSERT_EQ(Model::load(path)->notes().size(), 1u);
    EXPECT_THAT(Model::load(path)->notes().front(), ::testing::HasSubstr("behind the last one"));
}

TEST(GgufModel, WhatItCannotRunIsRefusedByName) {
    const test::Folder temporary;
    const std::string path = (temporary / "model.gguf").string();
    const auto refusal = [&](const GgufWriter& gguf, const char* says) {
        write(path, gguf);
        EXPECT_THAT([&] { Model::load(path); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr(says)));
    };
    GgufWriter empty;
    refusal(empty, "general.architecture");
    empty.put("general.architecture", "mamba");
    refusal(empty, "'mamba'");
    GgufWriter noTokenizer;
    noTokenizer.put("general.architecture", "llama");
    refusal(noTokenizer, "llama.attention.head_count");
    GgufWriter quantisedNorm = convert(kFamilies + "smollm2", "llama").front();
    for (auto& tensor : quantisedNorm.tensors)
        if (tensor.name == "output_norm.weight") tensor.type = 1, tensor.sizes = {36, 2};
    refusal(quantisedNorm, "model.norm.weight");
    EXPECT_THAT([&] { Model::load((temporary / "absent.gguf").string()); },
                ::testing::ThrowsMessage<Error>(::testing::HasSubstr("absent.gguf")));
}

/// SmolLM2-135M-Instruct (tools/fetch_smollm2.py): Q4_1 blocks, its own tokenizer, a question with one answer.
TEST(GgufModel, SmolLM2AnswersFluently) {
    const char* path = std::getenv("KVSCOPE_SMOLLM2");
    if (path == nullptr || *path == '\0') GTEST_SKIP() << "KVSCOPE_SMOLLM2 names no SmolLM2-135M-Instruct GGUF file";
    const auto model = Model::load(path);
    EXPECT_EQ(model->weightType(), DType::Q4_1);
    EXPECT_EQ(model->config().layers, 30);
    const auto prompt = model->tokenizer().encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
                                                  "<|im_start|>assistant\n");
    EXPECT_EQ(prompt.front(), 1); // <|im_start|> is one token
    const test::Decoded out = test::decodeFully(model, prompt, 12);
    EXPECT_THAT(model->tokenizer().decode(out.ids), ::testing::HasSubstr("capital of France is Paris"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
