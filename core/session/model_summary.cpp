#include "core/session/model_summary.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "core/model/ids_only.h"
#include "core/plan/layer_plan.h"
#include "core/plan/model_limits.h"
#include "core/select/refusal.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <optional>

namespace kvscope {
namespace {

/// Says in words what the layers with a sliding window see, e.g. "the last 4096 tokens"; empty: every layer sees
/// everything.
std::string windowsOf(const ModelConfig& c) {
    const auto sliding = std::count_if(c.windows.begin(), c.windows.end(), [](int window) { return window > 0; });
    if (sliding == 0) return {};
    const int most = *std::max_element(c.windows.begin(), c.windows.end());
    const std::string who = sliding == c.layers ? "every layer" : fmt::format("{} of {} layers", sliding, c.layers);
    return fmt::format("{} {} only the last {} tokens", who, sliding == 1 || sliding == c.layers ? "sees" : "see",
                       most);
}

std::string attentionOf(const ModelConfig& c) {
    std::string text;
    if (c.latent) {
        text =
            fmt::format("multi-head latent attention, {} query heads on one latent of {} channels and {} rotated ones",
                        c.queryHeads, c.latent->rank, c.latent->ropeDim);
    } else {
        const char* kind = c.kvHeads == c.queryHeads ? "multi-head"
                           : c.kvHeads == 1          ? "multi-query"
                                                     : "grouped queries";
        text = fmt::format("{}, {} query head{} on {} KV head{} of {} channels", kind, c.queryHeads,
                           c.queryHeads == 1 ? "" : "s", c.kvHeads, c.kvHeads == 1 ? "" : "s", c.headDim);
    }
    if (c.indexer) {
        const LightningIndexer& i = *c.indexer;
        const auto layers = std::count(i.shared.begin(), i.shared.end(), false);
        text +=
            fmt::format(", lightning indexer of {} heads of {} channels in {} of {} layers, which chooses {} tokens",
                        i.heads, i.dim, layers, c.layers, i.tokens);
    }
    if (c.blockIndexer) {
        const BlockIndexer& i = *c.blockIndexer;
        text += fmt::format(
            ", block indexer of {} heads of {} channels in {} of {} layers, which chooses {} blocks of {} tokens",
            i.heads, i.dim, std::count(i.layers.begin(), i.layers.end(), true), c.layers, i.blocks, i.blockTokens);
    }
    if (c.queryKeyNorm) text += ", query and key norms";
    if (c.diffusion && c.diffusion->canvas)
        text +=
            fmt::format(", every token sees every other one: denoises a canvas, mask token {}", c.diffusion->maskId);
    else if (c.diffusion)
        text += fmt::format(", block diffusion: blocks of {} tokens see each other, mask token {}",
                            c.diffusion->blockLength, c.diffusion->maskId);
    if (const std::string windows = windowsOf(c); !windows.empty()) text += ", " + windows;
    return text;
}

std::string feedForwardOf(const ModelConfig& c) {
    if (!c.experts) return fmt::format("SwiGLU, {} wide", c.ffn);
    const ExpertConfig& e = *c.experts;
    const auto layers = std::count(e.layers.begin(), e.layers.end(), true);
    std::string text = fmt::format("{} of {} experts per token, {} wide, in {} of {} layers", e.used, e.count, e.width,
                                   layers, c.layers);
    if (e.groups > e.groupsUsed) text += fmt::format(", from {} of {} groups", e.groupsUsed, e.groups);
    if (e.sharedWidth > 0) text += fmt::format(", one shared by all tokens, {} wide", e.sharedWidth);
    return text;
}

std::string scalesOf(const ModelConfig& c) {
    const ResidualScales& s = c.scales;
    if (s.embedding == 1 && s.residual == 1 && s.logits == 1) return {};
    return fmt::format("muP: embeddings x{:g}, sublayers x{:.6g}, logits x{:.6g}", s.embedding, s.residual, s.logits);
}

MethodFit fitOf(const MethodEntry& method, const Model& model) {
    MethodFit fit{method.name, method.title, true, {}};
    if (!hasWeightsFor(method, model)) {
        fit.applies = false;
        fit.remark = fmt::format("needs {}, and {} has none", method.needs, model.name());
        return fit;
    }
    if (const auto& diffusion = model.config().diffusion;
        diffusion && denoisingParametersFor(method, *diffusion).empty()) {
        fit.applies = false;
        fit.remark = fmt::format("does not run on {}", deniedModels(*diffusion));
        return fit;
    }
    SelectionSpec spec;
    try {
        spec = method.make(resolveDefaults(method, model.config()), model.config());
    } catch (const Error& error) { // the model's shape is not one the method is made for
        fit.applies = false;
        fit.remark = error.what();
        return fit;
    }
    if (const std::string windows = windowsOf(model.config()); !windows.empty() && !spec.dense) {
        fit.remark = fmt::format("chooses among the blocks in sight: {}", windows);
    }
    return fit;
}

/// A Mistral whose file cannot state the sliding window, as a note; empty for others.
std::string noteOfMistral(const Model& model) {
    const ModelConfig& c = model.config();
    std::string name = model.name();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return char(std::tolower(letter)); });
    if (c.architecture != "LlamaForCausalLM" || !c.windows.empty() || name.find("mistral") == name.npos) return {};
    return "announced as a Llama, as GGUF files of Mistral are, which cannot state a sliding window: every "
           "layer sees the whole context (Mistral-7B v0.1 was made for the last 4096 tokens; use its "
           "safetensors beyond that)";
}

/// A mask token that texts are made of, or that the tokenizer does not have, as a note; empty for others.
std::string noteOfMask(const Model& model) {
    const auto& diffusion = model.config().diffusion;
    if (!diffusion || (!model.embedded() && !hasTokenizer(model.folder()))) return {};
    const Tokenizer& tokenizer = model.tokenizer();
    const std::int32_t mask = diffusion->maskId;
    if (tokenizer.isSpecial(mask)) return {};
    if (tokenizer.written(mask).empty())
        return fmt::format("mask_token_id {} of config.json is none of the tokenizer's tokens", mask);
    return fmt::format("mask_token_id {} of config.json is the token '{}', which texts are made of: where a prompt has "
                       "it, the model sees a masked place",
                       mask, shown(tokenizer.written(mask)));
}

/// Where sparse_attention disagrees with the tensors or names no method of this program.
void addSparseNotes(const Model& model, std::vector<std::string>& notes) {
    if (!model.config().sparse) return;
    const SparseConfig& sparse = *model.config().sparse;
    if (!sparse.method.empty() && knownMethod(sparse.method) == nullptr)
        notes.push_back(fmt::format("sparse_attention has the method '{}', which this program does not have: a run "
                                    "uses the method that it is given",
                                    shown(sparse.method)));
    const auto compare = [&](const char* key, std::optional<bool> stated, bool there) {
        if (stated && *stated != there)
            notes.push_back(
                fmt::format("sparse_attention has {} {}, and the model {}: {}", key, *stated,
                            there ? "has their tensors" : "has no such tensors",
                            there ? "methods that need them use them" : "methods that need them do not run"));
    };
    compare("eviction_head", sparse.evictionHead, model.hasEvictionHead());
    compare("forecast_heads", sparse.forecastHeads, model.hasForecastHeads());
}

/// Types of the matrices, the one with the most bytes first: "q4_K, q6_K".
std::string weightTypes(const Model& model) {
    std::map<DType, std::size_t> bytes;
    const auto add = [&](const WeightMatrix& matrix) { bytes[matrix.type] += matrix.bytes(); };
    const auto addBlock = [&](const FeedForwardWeights& block) {
        for (const WeightMatrix* matrix : {&block.gate, &block.up, &block.down}) add(*matrix);
    };
    add(model.embedding());
    if (!model.config().tiedEmbeddings) add(model.lmHead());
    for (int i = 0; i < model.config().layers; ++i) {
        const LayerWeights& layer = model.layer(i);
        for (const WeightMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.queryDown}) add(*matrix);
        addBlock(layer.mlp);
        for (const FeedForwardWeights& expert : layer.moe.experts) addBlock(expert);
        addBlock(layer.moe.shared);
    }
    std::vector<std::pair<std::size_t, DType>> order;
    for (const auto& [type, size] : bytes)
        if (size > 0) order.emplace_back(size, type);
    std::sort(order.rbegin(), order.rend());
    std::vector<std::string> names;
    for (const auto& [size, type] : order) names.push_back(nameOf(type));
    return fmt::format("{}", fmt::join(names, ", "));
}

/// Bytes of the GPU's copy of the weights: quantised and 16-bit weights have the size they have in the file, float32
/// becomes bf16.
std::int64_t gpuWeightBytes(const Model& model) {
    return std::int64_t(model.fileBytes()) / (model.weightType() == DType::F32 ? 2 : 1);
}

} // namespace

std::vector<std::string> notesOf(const Model& model) {
    std::vector<std::string> notes = model.notes();
    for (const std::string& note : {noteOfMistral(model), noteOfMask(model)})
        if (!note.empty()) notes.push_back(note);
    addSparseNotes(model, notes);
    return notes;
}

ModelSummary summarize(const Model& model) {
    const ModelConfig& c = model.config();
    ModelSummary s;
    s.name = model.name();
    s.architecture = c.architecture.empty() ? c.modelType : c.architecture;
    s.family = architectureOf(c).title;
    s.layers = c.layers;
    s.hidden = c.hidden;
    s.queryHeads = c.queryHeads;
    s.kvHeads = c.kvHeads;
    s.headDim = c.headDim;
    s.ffn = c.ffn;
    s.vocabulary = c.vocab;
    s.context = c.maxPositions;
    s.attention = attentionOf(c);
    s.feedForward = feedForwardOf(c);
    s.rope = c.rope.describe();
    s.scales = scalesOf(c);
    s.notes = notesOf(model);
    s.gpuProblem = gpuProblem(model);
    s.weights = weightTypes(model);
    s.tiedEmbeddings = c.tiedEmbeddings;
    s.evictionHead = model.hasEvictionHead();
    s.forecastHeads = model.hasForecastHeads();
    s.fileBytes = std::int64_t(model.fileBytes());
    s.weightBytesPerToken = std::int64_t(model.weightBytes());
    s.kvBytesPerTokenCpu = c.kvNumbersPerToken() * 4;
    s.kvBytesPerTokenGpu = c.kvNumbersPerToken() * 2;
    for (const MethodEntry& method : methods()) s.methods.push_back(fitOf(method, model));
    return s;
}

std::vector<SessionMemory> memoryNeeds(const Model& model, int context, int batch) {
    const ModelConfig& c = model.config();
    if (context < 1 || context > c.maxPositions)
        throw Error(ErrorKind::BadInput,
                    fmt::format("a context of {} tokens is outside the model's {}", context, c.maxPositions),
                    "choose 1 to the model's own context");
    if (batch < 1 || batch > 256)
        throw Error(ErrorKind::BadInput, fmt::format("a batch of {} sequences is out of range", batch),
                    "use 1 to 256 sequences");
    std::vector<SessionMemory> needs;
    const bool gpuToo = gpuProblem(model).empty();
    for (const MethodEntry& method : methods()) {
        if (!fitOf(method, model).applies) continue;
        const ParameterValues values = resolveDefaults(method, c);
        SelectionSpec spec = method.make(values, c);
        if (!model.hasEvictionHead()) spec.bias.scale = 0.f;
        for (const Backend backend : {Backend::Cpu, Backend::Cuda}) {
            const bool gpu = backend == Backend::Cuda;
            if (gpu && (!gpuToo || !couldRun(method, c, backend, context))) continue;
            const bool offloads = !c.diffusion; // the prefix of a block-diffusion model stays on the device
            const KvEstimate kv = estimateKv(model, method, {values, spec, c, backend, offloads}, {context, 0}, batch);
            SessionMemory need;
            need.method = method.name;
            need.backend = backend;
            need.hostKvBytes = kv.hostBytes;
            need.deviceKvBytes = kv.deviceBytes;
            need.indexBytes = kv.indexBytes;
            // on the CPU such a method reads the store of all blocks
            need.blockSlots = gpu || !spec.ownDeviceTier ? kv.blockSlots : 0;
            need.hostWeightBytes = backend == Backend::Cpu ? std::int64_t(model.fileBytes()) : 0;
            need.deviceWeightBytes = backend == Backend::Cuda ? gpuWeightBytes(model) : 0;
            needs.push_back(std::move(need));
        }
    }
    return needs;
}

} // namespace kvscope
