#include "core/model/model_config.h"

#include "base/utf8.h"
#include "core/model/config_reader.h"

#include "core/model/architecture.h"
#include "core/model/library_keys.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <initializer_list>

namespace kvscope {
namespace {

constexpr int kMostHeadDim = 1024, kMostGroup = 128; // what the attention kernels take

void readArchitecture(const ConfigReader& reader, ModelConfig& config) {
    config.modelType = reader.textOr("model_type", "");
    if (reader.has("architectures")) {
        const auto names = reader.texts("architectures");
        if (names.empty()) reader.refuse("'architectures' is not a list of names");
        config.architecture = names.front();
    }
    config.family = findArchitecture(reader, config.architecture, config.modelType).family;
}

/// Whether the architecture has models of this type. True for an empty type, which a file that states none has.
bool isTypeOf(const Architecture& architecture, const std::string& modelType) {
    return modelType.empty() || std::ranges::count(architecture.modelTypes, modelType) > 0;
}

void refuseForeign(const ConfigReader& reader) {
    const std::string activation = reader.text("hidden_act");
    if (activation != "silu" && activation != "swish")
        reader.refuseUnsupported(fmt::format("the activation '{}' (hidden_act) is not supported", shown(activation)),
                                 "this version runs silu (SwiGLU) models");
    for (const char* key : {"quantization_config", "compression_config"}) {
        if (!reader.has(key)) continue;
        const std::string method = reader.object(key).textOr("quant_method", "");
        reader.refuseUnsupported(
            fmt::format("{} checkpoints ({}) are not supported", method.empty() ? "quantised" : shown(method), key),
            "use bf16, f16 or f32 weights, or a GGUF file");
    }
}

/// The sizes every model has.
void readSizes(const ConfigReader& reader, ModelConfig& config) {
    config.layers = reader.integer("num_hidden_layers", 1, 1000);
    config.hidden = reader.integer("hidden_size", 1, 1 << 17);
    config.queryHeads = reader.integer("num_attention_heads", 1, 1 << 12);
    const bool likeQueries = reader.states("num_key_value_heads") && !reader.has("num_key_value_heads"); // null
    config.kvHeads = likeQueries ? config.queryHeads : reader.integer("num_key_value_heads", 1, 1 << 12);
    config.ffn = reader.integer("intermediate_size", 1, 1 << 20);
    config.vocab = reader.integer("vocab_size", 1, 1 << 24);
    config.maxPositions = reader.integer("max_position_embeddings", 1, 1 << 24);
    config.rmsNormEps = float(reader.number("rms_norm_eps", 0, 1));
    config.tiedUnlessHeadIsThere = !reader.states("tie_word_embeddings");
    config.tiedEmbeddings = !config.tiedUnlessHeadIsThere && reader.flag("tie_word_embeddings");
}

/// Where keys and values are heads of their own.
void readHeads(const ConfigReader& reader, ModelConfig& config) {
    if (config.queryHeads % config.kvHeads != 0)
        reader.refuse(fmt::format("{} query heads cannot share {} KV heads evenly", config.queryHeads, config.kvHeads));
    config.headDim = reader.integerOr("head_dim", config.hidden / config.queryHeads, 1, kMostHeadDim); // as the library
}

void readSpecialTokens(const ConfigReader& reader, ModelConfig& config) {
    // An id beyond the vocabulary can never occur, so it is left out: a model that was made smaller may keep such ids
    // of its original.
    const auto tokenId = [&](const nlohmann::json& value, const char* key) -> std::optional<std::int32_t> {
        if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > INT32_MAX)
            reader.refuse(fmt::format("'{}' is not a token id", key));
        const auto id = value.get<std::int32_t>();
        return id < config.vocab ? std::optional(id) : std::nullopt;
    };
    const nlohmann::json& json = reader.json();
    if (reader.has("bos_token_id")) config.bosId = tokenId(json.at("bos_token_id"), "bos_token_id").value_or(-1);
    if (!reader.has("eos_token_id")) return;
    const nlohmann::json& eos = json.at("eos_token_id");
    const auto add = [&](const nlohmann::json& value) {
        if (const auto id = tokenId(value, "eos_token_id")) config.eosIds.push_back(*id);
    };
    if (eos.is_array())
        for (const nlohmann::json& id : eos) add(id);
    else
        add(eos);
}

/// Adds a note of the keys of a section that nothing reads. unneeded: keys of training
void noteUnread(const ConfigReader& section, const char* name, std::initializer_list<const char*> unneeded,
                std::vector<std::string>& notes) {
    for (const char* const key : unneeded) (void)section.states(key);
    if (const std::vector<std::string> unread = section.unread(); !unread.empty())
        notes.push_back(fmt::format("this program does not read these keys of {}: {}", name, listedKeys(unread)));
}

/// Adds a note of every block count that sparse_attention states otherwise than sparse_config.
void noteOverridden(const SparseConfig& before, const SparseConfig& after, const ConfigReader& reader,
                    std::vector<std::string>& notes) {
    const struct {
        const char *key, *count;
        int SparseConfig::*value;
    } pairs[] = {{"init_blocks", "sink_blocks", &SparseConfig::sinkBlocks},
                 {"window_size", "window_blocks", &SparseConfig::windowBlocks},
                 {"select_blocks", "query_aware_blocks", &SparseConfig::queryAwareBlocks},
                 {"topk", "total_blocks", &SparseConfig::totalBlocks}};
    for (const auto& pair : pairs)
        if (reader.has(pair.key) && before.*pair.value != after.*pair.value)
            notes.push_back(
                fmt::format("sparse_config has {} {}, which is {} {}: sparse_attention has {}, which is used", pair.key,
                            reader.integer(pair.key, 0, 1 << 20), pair.count, before.*pair.value, after.*pair.value));
}

/// Reads sparse_config (`reader`), and over it sparse_attention of `model`. notes: gets a sentence for each statement
/// that is not used
SparseConfig readSparse(const ConfigReader& model, const ConfigReader& reader, std::vector<std::string>& notes) {
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
    if (reader.flagOr("use_q_future_for_topk", false))
        notes.push_back("sparse_config has use_q_future_for_topk: which queries choose blocks is the method's matter");
    noteUnread(reader, "sparse_config",
               {"create_indexer", "training_kernel_size", "training_kernel_stride", "kl_target_align_pooling"}, notes);
    if (!model.has("sparse_attention")) return sparse;
    // Resolved block counts: the window is counted with the current block in it.
    const ConfigReader resolved = model.object("sparse_attention");
    const SparseConfig before = sparse;
    sparse.windowAddsCurrent = false;
    sparse.method = resolved.textOr("method", "");
    sparse.sinkBlocks = resolved.integerOr("sink_blocks", sparse.sinkBlocks, 0, 64);
    sparse.windowBlocks = resolved.integerOr("window_blocks", sparse.windowBlocks, 0, 65536);
    sparse.queryAwareBlocks = resolved.integerOr("query_aware_blocks", sparse.queryAwareBlocks, 0, 65536);
    sparse.totalBlocks = resolved.integerOr("total_blocks", sparse.totalBlocks, 1, 65536);
    noteOverridden(before, sparse, reader, notes);
    const int agnostic = sparse.totalBlocks - sparse.sinkBlocks - sparse.windowBlocks - sparse.queryAwareBlocks;
    if (const int stated = resolved.integerOr("query_agnostic_blocks", agnostic, 0, 65536); stated != agnostic)
        notes.push_back(
            fmt::format("sparse_attention has query_agnostic_blocks {}: the other counts leave {}, which are "
                        "used",
                        stated, agnostic));
    if (resolved.has("eviction_head")) sparse.evictionHead = resolved.flag("eviction_head");
    if (resolved.has("forecast_heads")) sparse.forecastHeads = resolved.flag("forecast_heads");
    if (const std::string prefill = resolved.textOr("prefill", "full"); prefill != "full")
        notes.push_back(fmt::format(
            "sparse_attention has prefill '{}': a run is prefilled as its parameter prefill says", shown(prefill)));
    noteUnread(resolved, "sparse_attention", {}, notes);
    return sparse;
}

/// Says why a text is no JSON. Python writes NaN and Infinity, which JSON lacks, so a key with such a value is looked
/// for and named. @throws Error(BadInput)
[[noreturn]] void refuseText(std::string_view text, const std::string& origin) {
    for (const char* const word : {"NaN", "Infinity"}) {
        const std::size_t at = text.find(word), end = at == text.npos ? at : text.rfind('"', at),
                          begin = end == text.npos || end == 0 ? text.npos : text.rfind('"', end - 1);
        const bool isValue =
            begin != text.npos &&
            text.substr(end + 1, at - end - 1).find_first_not_of(" \t\r\n:-+[,.0123456789eE") == text.npos &&
            text.find(':', end) < at;
        if (isValue)
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: '{}' is {}, which is not a number in JSON", origin,
                                    shown(toValidUtf8(text.substr(begin + 1, end - begin - 1))), word),
                        "correct the value, or download the file again");
    }
    throw Error(ErrorKind::BadInput, origin + ": this is not valid JSON", "download the file again");
}

} // namespace

float ModelConfig::attentionScale() const {
    const double mscale = latent ? rope.scoreMscale : 1;
    return float(mscale * mscale / std::sqrt(double(queryDim())));
}

void ModelConfig::check(const std::string& origin) const {
    const auto refuse = [&](const std::string& what, const std::string& hint) {
        throw Error(ErrorKind::BadInput, origin + ": " + what, hint);
    };
    const char* const hint = "check the checkpoint's config.json";
    if (group() > kMostGroup)
        refuse(fmt::format("{} query heads to a KV head are more than the {} supported", group(), kMostGroup), hint);
    if (headDim < 1)
        refuse(fmt::format("hidden_size {} is too small for {} heads (num_attention_heads)", hidden, queryHeads), hint);
    if (headDim > kMostHeadDim)
        refuse(fmt::format("a cached key of {} channels is too long", headDim),
               fmt::format("heads have at most {} channels", kMostHeadDim));
    if (rope.dim % 2 != 0)
        refuse(fmt::format("a head_dim of {} cannot be rotated", rope.dim), "rotary positions pair channels");
    if (experts && (experts->count % experts->groups != 0 ||
                    experts->used > experts->count / experts->groups * experts->groupsUsed))
        refuse(fmt::format("{} experts in {} groups, {} of them used, do not allow {} experts per token",
                           experts->count, experts->groups, experts->groupsUsed, experts->used),
               hint);
}

namespace {

/// The values that the file states, under the names of the family's keys.
nlohmann::json withoutAliases(nlohmann::json stated, const Architecture& architecture, const ConfigReader& reader) {
    for (const auto& [alias, key] : architecture.aliases) {
        if (!stated.contains(alias)) continue;
        if (stated.contains(key) && stated.at(key) != stated.at(alias))
            reader.refuse(fmt::format("'{}' and '{}' are two names of one key and differ", key, alias));
        stated[key] = stated.at(alias);
        stated.erase(alias);
    }
    return stated;
}

} // namespace

std::string listedKeys(const std::vector<std::string>& keys) {
    constexpr std::size_t most = 12;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::min(keys.size(), most); ++i) names.push_back(shown(keys[i]));
    return keys.size() > most ? fmt::format("{} and {} more", fmt::join(names, ", "), keys.size() - most)
                              : fmt::format("{}", fmt::join(names, ", "));
}

namespace {

/// The name of a class in the checkpoint's own code, such as "modeling_x.XForCausalLM"; empty: it needs no such code.
std::string ownCode(const ConfigReader& reader) {
    if (!reader.has("auto_map")) return {};
    const nlohmann::json& map = reader.json().at("auto_map");
    for (const char* key : {"AutoModelForCausalLM", "AutoModel", "AutoConfig"})
        if (const auto& name = member(map, key); name.is_string()) return shown(name.get<std::string>());
    return "auto_map";
}

/// Channels of a head that are rotated.
int rotatedChannels(const ConfigReader& reader, const Architecture& architecture, const ModelConfig& config) {
    if (config.latent) return config.latent->ropeDim;
    if (!architecture.rotatesPart) return config.headDim;
    const int rotated = int(config.headDim * RopeConfig::rotatedShare(reader)); // rounded down, as in the library
    if (rotated < 1)
        reader.refuse(
            fmt::format("'partial_rotary_factor' leaves none of a head's {} channels to be rotated", config.headDim));
    return rotated;
}

} // namespace

ModelConfig ModelConfig::parse(std::string_view text, const std::string& origin, ConfigSource source) {
    const nlohmann::json file = parseJson(text);
    if (file.is_discarded()) refuseText(text, origin);
    if (!file.is_object())
        throw Error(ErrorKind::BadInput, origin + ": this is not a JSON object", "check the checkpoint's config.json");
    const bool converted = source == ConfigSource::Gguf;
    ModelConfig config;
    const ConfigReader fileReader(file, origin);
    readArchitecture(fileReader, config);
    const Architecture& architecture = architectureOf(config);
    const nlohmann::json json =
        architecture.textPart != nullptr ? nlohmann::json::parse(architecture.textPart(fileReader)) : file;
    const nlohmann::json stated = withoutAliases(json, architecture, ConfigReader(json, origin));
    nlohmann::json whole = stated;
    const nlohmann::json defaults = nlohmann::json::parse(converted ? "{}" : architecture.defaults);
    for (const auto& item : defaults.items())
        if (!whole.contains(item.key())) whole[item.key()] = item.value();
    const ConfigReader reader(whole, origin, converted);
    refuseForeign(reader);
    readSizes(reader, config);
    architecture.read(reader, config);
    if (config.latent) {
        config.kvHeads = 1;
        config.headDim = config.latent->rank + config.latent->ropeDim;
    } else {
        readHeads(reader, config);
    }
    if (converted) // a GGUF file's tensors say which biases there are
        config.attentionBias = config.outputBias = config.feedForwardBias = config.expertBias = Bias::WherePresent;
    config.check(origin); // before anything is computed from the sizes
    const bool interleaved =
        converted ? reader.flagOr("rope_interleave", config.rope.interleaved) : config.rope.interleaved;
    std::vector<std::string> unusedScaling;
    config.rope = RopeConfig::parse(reader, rotatedChannels(reader, architecture, config), config.maxPositions,
                                    unusedScaling, architecture.rotatesPart);
    config.rope.interleaved = interleaved;
    config.maxPositions = config.rope.context(config.maxPositions);
    readSpecialTokens(reader, config);
    config.eosByDefault = !stated.contains("eos_token_id");
    if (reader.has("sparse_config")) config.sparse = readSparse(reader, reader.object("sparse_config"), config.notes);
    if (reader.has("sparse_attention") && !config.sparse)
        config.notes.push_back("config.json has sparse_attention without sparse_config: none of it is used");
    config.check(origin);
    if (converted) return config;
    for (const char* const key : {"num_nextn_predict_layers", "num_mtp_layers"})
        if (const nlohmann::json& more = member(stated, key); more.is_number() && more > 0)
            config.notes.push_back(fmt::format(
                "config.json has {} {}: layers that predict tokens further ahead are not run", key, more.dump()));
    std::vector<std::string> unread = judgeUnreadKeys(reader, stated, architecture, config);
    if (architecture.textPart != nullptr)
        for (std::string& key : judgeUnreadKeys(fileReader, file, architecture, config))
            unread.push_back(std::move(key));
    if (const std::string code = ownCode(reader); !code.empty())
        config.notes.push_back(
            fmt::format("config.json names code of the checkpoint's own ({}), which is not run: it is "
                        "computed as {}",
                        code, architecture.title));
    else if (!isTypeOf(architecture, config.modelType))
        config.notes.push_back(
            fmt::format("config.json has the model type '{}', by which transformers chooses its class: "
                        "it is computed as {}, as the class it states says",
                        shown(config.modelType), architecture.title));
    if (!unread.empty())
        config.notes.push_back(
            architecture.inLibrary
                ? fmt::format("neither transformers nor this program reads these keys of config.json for {}: {}",
                              architecture.title, listedKeys(unread))
                : fmt::format("this program does not read these keys of config.json: {}", listedKeys(unread)));
    if (!unusedScaling.empty())
        config.notes.push_back(fmt::format("RoPE scaling of type {} has no use for these keys of config.json: {}",
                                           nameOf(config.rope.type), listedKeys(unusedScaling)));
    return config;
}

} // namespace kvscope
