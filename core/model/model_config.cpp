#include "core/model/model_config.h"

#include "core/model/json_text.h"
#include "kernels/base/error.h"

#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

using Json = nlohmann::json;

/// Typed, checked access to one JSON object; every complaint names the file and the key.
class Reader {
public:
    Reader(const Json& object, std::string origin) : object_(object), origin_(std::move(origin)) {}

    [[noreturn]] void refuse(const std::string& what,
                             const std::string& hint = "check the checkpoint's config.json") const {
        throw Error(ErrorKind::BadInput, origin_ + ": " + what, hint);
    }
    bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

    int integer(const char* key, int low, int high) const {
        if (!has(key)) refuse(fmt::format("the key '{}' is missing", key));
        const Json& value = object_.at(key);
        if (!value.is_number_integer()) refuse(fmt::format("'{}' is no whole number", key));
        const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t(INT32_MAX)
                                                     : value.get<std::int64_t>() >= INT32_MIN;
        if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
            refuse(fmt::format("'{}' is {}, not between {} and {}", key, value.dump(), low, high));
        return value.get<int>();
    }
    int integerOr(const char* key, int fallback, int low, int high) const {
        return has(key) ? integer(key, low, high) : fallback;
    }

    double number(const char* key, double low, double high) const {
        if (!has(key)) refuse(fmt::format("the key '{}' is missing", key));
        const Json& value = object_.at(key);
        if (!value.is_number()) refuse(fmt::format("'{}' is no number", key));
        const double result = value.get<double>();
        if (!(result >= low && result <= high))
            refuse(fmt::format("'{}' is {}, not between {:g} and {:g}", key, value.dump(), low, high));
        return result;
    }
    bool flagOr(const char* key, bool fallback) const {
        if (!has(key)) return fallback;
        if (!object_.at(key).is_boolean()) refuse(fmt::format("'{}' is neither true nor false", key));
        return object_.at(key).get<bool>();
    }
    std::string textOr(const char* key, const std::string& fallback) const {
        if (!has(key)) return fallback;
        if (!object_.at(key).is_string()) refuse(fmt::format("'{}' is no text", key));
        return object_.at(key).get<std::string>();
    }
    Reader object(const char* key) const {
        if (!object_.at(key).is_object()) refuse(fmt::format("'{}' is no object", key));
        return Reader(object_.at(key), origin_ + ", " + key);
    }
    const Json& json() const { return object_; }
    const std::string& origin() const { return origin_; }

private:
    const Json& object_;
    std::string origin_;
};

void readArchitecture(const Reader& reader, ModelConfig& config) {
    config.modelType = reader.textOr("model_type", "");
    const Json& json = reader.json();
    if (reader.has("architectures")) {
        const Json& list = json.at("architectures");
        if (!list.is_array() || list.empty() || !list.front().is_string())
            reader.refuse("'architectures' is no list of names");
        config.architecture = list.front().get<std::string>();
    }
    const bool llama =
        config.architecture == "LlamaForCausalLM" || (config.architecture.empty() && config.modelType == "llama");
    if (!llama)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("the architecture '{}' is not supported",
                                shown(config.architecture.empty() ? config.modelType : config.architecture)),
                    "this version runs LlamaForCausalLM checkpoints");
}

void refuseUnsupported(const Reader& reader) {
    const std::string activation = reader.textOr("hidden_act", "silu");
    if (activation != "silu")
        throw Error(ErrorKind::Unsupported,
                    fmt::format("the activation '{}' (hidden_act) is not supported", shown(activation)),
                    "this version runs silu (SwiGLU) models");
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        if (!reader.has(key)) continue;
        const Reader rope = reader.object(key);
        const std::string type = rope.textOr("rope_type", rope.textOr("type", "default"));
        if (type != "default")
            throw Error(ErrorKind::Unsupported,
                        fmt::format("the RoPE type '{}' ({}) is not supported", shown(type), key),
                        "this version runs models without RoPE scaling");
    }
    for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"})
        if (reader.has(key))
            throw Error(ErrorKind::Unsupported, fmt::format("muP scales ('{}') are not supported", key),
                        "use a checkpoint with the scales folded into its weights");
    if (reader.has("quantization_config"))
        throw Error(ErrorKind::Unsupported, "quantised checkpoints (quantization_config) are not supported",
                    "use bf16, f16 or f32 weights");
}

SparseConfig readSparse(const Reader& model, const Reader& reader) {
    SparseConfig sparse;
    sparse.kernelSize = reader.integerOr("kernel_size", 32, 1, 256);
    sparse.kernelStride = reader.integerOr("kernel_stride", 16, 1, 256);
    sparse.blockSize = reader.integerOr("block_size", 64, 16, 256);
    if (sparse.blockSize % 16 != 0 || sparse.blockSize % sparse.kernelStride != 0 ||
        sparse.kernelStride > sparse.kernelSize)
        reader.refuse(fmt::format("block_size {}, kernel_size {} and kernel_stride {} do not fit together",
                                  sparse.blockSize, sparse.kernelSize, sparse.kernelStride),
                      "the block is a multiple of 16 and of the stride, the stride at most the kernel");
    sparse.sinkBlocks = reader.integerOr("init_blocks", 1, 0, 64);
    sparse.windowBlocks = reader.integerOr("window_size", 1024, 0, 1 << 20) / sparse.blockSize;
    sparse.queryAwareBlocks = reader.integerOr("select_blocks", 0, 0, 65536);
    sparse.totalBlocks = reader.integerOr("topk", 64, 1, 65536) + sparse.windowBlocks;
    sparse.denseLen = std::max(0, reader.integerOr("dense_len", 0, -1, 1 << 24)); // -1: never dense, as 0 here
    if (reader.flagOr("use_nope", false))
        throw Error(ErrorKind::Unsupported, reader.origin() + ": use_nope (pooling of unrotated keys) is not supported",
                    "use a checkpoint that pools rotated keys");
    if (!model.has("sparse_attention")) return sparse;
    // Resolved block counts: the window is counted with the current block in it.
    const Reader resolved = model.object("sparse_attention");
    sparse.windowAddsCurrent = false;
    sparse.method = resolved.textOr("method", "");
    sparse.sinkBlocks = resolved.integerOr("sink_blocks", sparse.sinkBlocks, 0, 64);
    sparse.windowBlocks = resolved.integerOr("window_blocks", sparse.windowBlocks, 0, 65536);
    sparse.queryAwareBlocks = resolved.integerOr("query_aware_blocks", sparse.queryAwareBlocks, 0, 65536);
    sparse.totalBlocks = resolved.integerOr("total_blocks", sparse.totalBlocks, 1, 65536);
    return sparse;
}

} // namespace

ModelConfig ModelConfig::parse(std::string_view text, const std::string& origin) {
    const Json json = parseJson(text);
    if (json.is_discarded())
        throw Error(ErrorKind::BadInput, origin + ": this is not valid JSON", "download the file again");
    if (!json.is_object())
        throw Error(ErrorKind::BadInput, origin + ": this is no JSON object", "check the checkpoint's config.json");
    const Reader reader(json, origin);
    ModelConfig config;
    try {
        readArchitecture(reader, config);
        refuseUnsupported(reader);
    } catch (Error& error) {
        if (error.kind == ErrorKind::Unsupported) error.during(origin);
        throw;
    }
    config.layers = reader.integer("num_hidden_layers", 1, 1000);
    config.hidden = reader.integer("hidden_size", 1, 1 << 17);
    config.queryHeads = reader.integer("num_attention_heads", 1, 1 << 12);
    config.kvHeads = reader.integerOr("num_key_value_heads", config.queryHeads, 1, 1 << 12);
    if (config.queryHeads % config.kvHeads != 0)
        reader.refuse(fmt::format("{} query heads cannot share {} KV heads evenly", config.queryHeads, config.kvHeads));
    if (config.group() > 64)
        reader.refuse(fmt::format("{} query heads to a KV head are more than the 64 supported", config.group()));
    if (!reader.has("head_dim") && config.hidden % config.queryHeads != 0)
        reader.refuse(fmt::format("hidden_size {} is not divisible by num_attention_heads {} and head_dim is missing",
                                  config.hidden, config.queryHeads));
    config.headDim = reader.integerOr("head_dim", config.hidden / config.queryHeads, 1, 1 << 12);
    if (config.headDim % 16 != 0 || config.headDim > 256)
        reader.refuse(fmt::format("head_dim {} is not supported", config.headDim),
                      "it must be a multiple of 16, at most 256");
    config.ffn = reader.integer("intermediate_size", 1, 1 << 20);
    config.vocab = reader.integer("vocab_size", 1, 1 << 24);
    config.maxPositions = reader.integer("max_position_embeddings", 1, 1 << 21);
    config.rmsNormEps = float(reader.number("rms_norm_eps", 0, 1));
    const char* ropeKey = "rope_theta";
    if (!reader.has(ropeKey) && reader.has("rope_parameters"))
        config.ropeTheta = reader.object("rope_parameters").number(ropeKey, 1, 1e12);
    else
        config.ropeTheta = reader.has(ropeKey) ? reader.number(ropeKey, 1, 1e12) : 10000.0;
    config.tiedEmbeddings = reader.flagOr("tie_word_embeddings", false);
    config.ropeInterleaved = reader.flagOr("rope_interleave", false);
    const auto tokenId = [&](const Json& value, const char* key) {
        if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= config.vocab)
            reader.refuse(fmt::format("'{}' is no token id below vocab_size", key));
        return value.get<std::int32_t>();
    };
    if (reader.has("bos_token_id")) config.bosId = tokenId(json.at("bos_token_id"), "bos_token_id");
    if (reader.has("eos_token_id")) {
        const Json& eos = json.at("eos_token_id");
        if (eos.is_array())
            for (const Json& id : eos) config.eosIds.push_back(tokenId(id, "eos_token_id"));
        else
            config.eosIds.push_back(tokenId(eos, "eos_token_id"));
    }
    if (reader.has("sparse_config")) config.sparse = readSparse(reader, reader.object("sparse_config"));
    return config;
}

} // namespace kvscope
