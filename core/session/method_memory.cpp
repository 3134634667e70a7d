#include "core/session/method_memory.h"

#include "core/plan/layer_plan.h"
#include "core/select/infllm_budget.h"
#include "core/select/shadowkv_budget.h"
#include "core/session/engine.h"

#include <algorithm>

namespace kvscope {
namespace {

/// One sequence in one layer in which the method chooses.
struct Place {
    const ParameterValues& values;
    const SelectionSpec& spec;
    const ModelConfig& config;
    std::int64_t tokens;
    bool gpu;

    std::int64_t kvHeads() const { return config.kvHeads; }
    std::int64_t dim() const { return config.headDim; }
    std::int64_t number() const { return gpu ? 2 : 4; } // bytes of a channel: bf16, float32
    std::int64_t blocks() const { return spec.grid.blocks(int(tokens)); }
    std::int64_t blocksOf(std::int64_t some) const { return (some + spec.blockSize - 1) / spec.blockSize; }
    std::int64_t tokenBytes() const { return 2 * dim() * number(); } // key and value of a KV head
    /// KV of so many tokens of every head, in whole blocks.
    std::int64_t kvBytes(std::int64_t some) const { return kvHeads() * blocksOf(some) * spec.blockSize * tokenBytes(); }
    std::int64_t atMost(std::int64_t wanted) const { return std::clamp<std::int64_t>(wanted, 1, tokens); }
};

/// Two vectors for every page, and the keys of the page that is not full.
std::int64_t digests(const Place& p) {
    return p.kvHeads() * (p.blocks() * 2 + p.spec.blockSize) * p.dim() * p.number();
}

/// Labels of `channels` channels: codes with step and minimum (4 bits), or the numbers themselves.
std::int64_t labels(const Place& p, std::int64_t channels) {
    const bool codes = p.values.text("label_bits") == "4";
    const std::int64_t stored = codes ? (p.gpu ? (channels + 7) / 8 * 4 : (channels + 1) / 2) + 8
                                      : (p.gpu ? (channels + 1) / 2 * 4 : channels * 4);
    return p.kvHeads() * (p.gpu ? (p.tokens + 31) / 32 * 32 : p.tokens) * stored;
}

MethodMemory remembered(std::int64_t bytes) { return {bytes, false, 0, 0, 0}; }

/// Tokens of each head that are kept, the others forgotten. listBytes: of what is known about one.
MethodMemory kept(const Place& p, std::int64_t count, std::int64_t listBytes) {
    return {p.kvHeads() * count * listBytes, true, p.kvBytes(count), 0, int(p.blocksOf(count))};
}

MethodMemory arkvale(const Place& p) { return remembered(digests(p) + (p.gpu ? p.kvHeads() * p.blocks() : 0)); }

/// Its digests are key ranges, which the spec states.
MethodMemory asynctls(const Place& p) {
    return remembered(labels(p, std::min<std::int64_t>(p.values.integer("d_c"), p.dim())));
}

MethodMemory doubleSparsity(const Place& p) {
    const std::int64_t channels = std::clamp<std::int64_t>(p.dim() / p.values.integer("group_factor"), 1, p.dim());
    const std::int64_t heavy = p.atMost(p.values.integer("heavy_tokens"));
    return {labels(p, channels), true, p.kvBytes(heavy), p.kvBytes(p.tokens), int(p.blocksOf(heavy))};
}

/// Heavy hitters, recent tokens and the newest one.
std::int64_t h2oTokens(const ParameterValues& values, int promptTokens) {
    const auto share = [&](const char* count, const char* ratio) {
        const int asked = values.integer(count);
        return std::max<std::int64_t>(1, asked > 0 ? asked : std::int64_t(values.number(ratio) * promptTokens));
    };
    return share("heavy_tokens", "heavy_ratio") + share("recent_tokens", "recent_ratio") + 1;
}

MethodMemory h2o(const Place& p) { return kept(p, p.atMost(h2oTokens(p.values, int(p.tokens))), p.gpu ? 16 : 12); }

MethodMemory snapkv(const Place& p) { return kept(p, p.atMost(p.values.integer("capacity_tokens")), 8); }

MethodMemory budgeted(const Place& p) { return kept(p, p.atMost(p.values.integer("budget_tokens")), 8); }

MethodMemory dmaToken(const Place& p) {
    MethodMemory memory = budgeted(p);
    memory.indexBytes += p.kvHeads() * p.tokens * 4; // every token's score
    return memory;
}

MethodMemory infllm(const Place& p) {
    const select::ContextBudget budget(p.values);
    const std::int64_t heads = p.config.queryHeads, representatives = p.blocks() * heads * p.dim() * p.number();
    if (!p.gpu) return remembered(representatives + heads * p.tokens * 8);
    const std::int64_t ring = std::min<std::int64_t>(budget.localBlocks, p.blocks()) * p.spec.blockSize;
    return remembered(representatives + ring * (p.kvHeads() * p.dim() * 2 + heads * 4));
}

MethodMemory shadowkv(const Place& p) {
    const select::ChunkBudget budget(p.values);
    const int width = int(p.kvHeads() * p.dim());
    std::int64_t rank = select::rankOf(p.values.integer("rank"), width);
    if (p.gpu) rank = (rank + 15) / 16 * 16;
    const std::int64_t chunks = std::max<std::int64_t>(0, p.tokens / budget.chunk - budget.local),
                       outliers = std::min<std::int64_t>(budget.outliers, chunks),
                       chosen = std::min<std::int64_t>(budget.chosen, chunks - outliers),
                       pool = (chosen + outliers) * budget.chunk + p.tokens - chunks * budget.chunk;
    return {(p.tokens + width) * rank * p.number() + p.kvHeads() * chunks * p.dim() * p.number(), true, p.kvBytes(pool),
            p.kvHeads() * chunks * budget.chunk * p.dim() * p.number(), int(p.blocksOf(pool))};
}

MethodMemory infinigen(const Place& p) {
    const std::int64_t dims = p.values.integer("partial_dims");
    const std::int64_t tokens = p.gpu ? p.blocks() * p.spec.blockSize : p.tokens;
    return remembered(p.kvHeads() * (tokens + p.dim()) * dims * p.number());
}

MethodMemory infinigenToken(const Place& p) {
    auto columns = std::max<std::int64_t>(1, std::int64_t(p.values.number("partial_ratio") * double(p.dim())));
    if (p.gpu) columns = (columns + 7) / 8 * 8;
    return remembered(p.config.queryHeads * (p.tokens + p.dim()) * columns * p.number());
}

constexpr struct {
    const char* method;
    MethodMemory (*of)(const Place&);
} kMethods[] = {{"arkvale", arkvale},
                {"asynctls", asynctls},
                {"dma-token", dmaToken},
                {"double-sparsity", doubleSparsity},
                {"h2o", h2o},
                {"infinigen", infinigen},
                {"infinigen-token", infinigenToken},
                {"infllm", infllm},
                {"locret", budgeted},
                {"shadowkv", shadowkv},
                {"snapkv", snapkv}};

auto rowOf(const MethodEntry& method) {
    return std::find_if(std::begin(kMethods), std::end(kMethods),
                        [&](const auto& row) { return method.name == row.method; });
}

} // namespace

MethodMemory methodMemory(const MethodEntry& method, const ParameterValues& values, const SelectionSpec& spec,
                          const ModelConfig& config, int tokens, int sequences, bool gpu) {
    const auto row = rowOf(method);
    if (row == std::end(kMethods)) return {};
    MethodMemory memory = row->of(Place{values, spec, config, tokens, gpu});
    const std::int64_t places = std::int64_t(sequences) * LayerPlans(config, spec, {}).sparse();
    memory.ownTiers = spec.ownDeviceTier;
    if (!gpu) memory.deviceKvBytes = memory.hostKvBytes = memory.blockSlots = 0;
    for (std::int64_t* bytes : {&memory.indexBytes, &memory.deviceKvBytes, &memory.hostKvBytes}) *bytes *= places;
    return memory;
}

int mostAttended(const MethodEntry& method, const ParameterValues& values, const SelectionSpec& spec, int promptTokens,
                 int newTokens) {
    if (spec.dense) return 0;
    const auto all = std::int64_t(promptTokens) + newTokens;
    std::int64_t most = spec.traceUnit == 1 && spec.traceBudget > 0
                            ? spec.traceBudget
                            : std::int64_t(spec.budgetBlocks()) * spec.blockSize;
    if (method.name == "asynctls") most = std::min<std::int64_t>(most, values.integer("k_t")); // inside its blocks
    if (method.name == "h2o") most = h2oTokens(values, promptTokens);
    if (method.name == "snapkv") most = std::min(values.integer("capacity_tokens"), promptTokens) + newTokens;
    if (method.name == "shadowkv") { // and what fills no chunk
        const select::ChunkBudget budget(values);
        most = std::int64_t(budget.chosen + budget.outliers + budget.local) * budget.chunk +
               promptTokens % budget.chunk + newTokens;
    }
    if (promptTokens + 1 < spec.denseBelowTokens) // the first step, and those up to there; the last token is never read
        most = std::max<std::int64_t>(most, all <= spec.denseBelowTokens ? all : spec.denseBelowTokens - 1);
    return most >= all ? 0 : int(most);
}

bool gpuTakes(const MethodEntry& method, const ModelConfig& config, int tokens) {
    if (!runsOnCuda(method)) return false;
    const auto row = rowOf(method);
    if (row == std::end(kMethods) && method.name != "sparda") return true; // data, for whatever form of attention
    const bool pastWindow = std::any_of(config.windows.begin(), config.windows.end(),
                                        [&](int window) { return window > 0 && tokens > window; });
    if (config.latent || pastWindow) return false;
    return method.name != "locret" || !config.queryKeyNorm;
}

} // namespace kvscope
