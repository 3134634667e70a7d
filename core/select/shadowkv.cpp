// ShadowKV (Sun et al., 2024): keys are rebuilt from a low-rank form on the device, values of the chosen chunks come
// from the host.
#include "base/indexed.h"
#include "core/math/symmetric_eigen.h"
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/prompt_states.h"
#include "core/select/shadowkv_budget.h"
#include "core/select/token_choice.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

using select::ChunkBudget;
using select::rankOf;
using select::TokenRange;

class ShadowKv final : public Selector {
public:
    ShadowKv(const SelectorContext& context, const ParameterValues& values)
        : context_(context), budget_(values), width_(context.shape.kvHeads * context.shape.dim),
          rank_(rankOf(values.integer("rank"), width_)), layerAt_(context.sequences(), context.shape.layers),
          headAt_(context.heads()), layers_(layerAt_.size()), heads_(headAt_.size()), prompts_(context) {}

    void prompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override;
    void score(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) {
            scoreChunks(of(item.layer, item.sequence, item.kvHead), item.rows.q, item.firstToken, item.windowScores,
                        item.queryAware);
        });
    }
    void choose(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) { chooseOne(item); });
    }
    Loads load(std::span<HeadStep> heads) override;
    std::int64_t storedBytes(LayerId, int tokens) const override {
        const std::int64_t chunks = std::max(0, tokens / budget_.chunk - budget_.local); // the last ones stay
        return context_.offload ? chunks * budget_.chunk * context_.shape.kvHeads * valueBytes() : 0;
    }
    bool attend(std::span<HeadStep> heads) override;

private:
    struct Prompt {
        std::vector<float> keys;      // [tokens, width] before rotation
        std::vector<float> lastQuery; // [queryHeads, dim]
    };
    struct LowRank {              // of one (sequence, layer), all KV heads side by side
        std::vector<float> u;     // [tokens, rank]
        std::vector<float> basis; // [rank, kvHeads * dim]
    };
    struct Head {
        Numbered<std::int32_t> landmarkChunks;    // chunks that have a landmark, ascending
        std::vector<float> landmarks;             // [landmarkChunks, dim]
        std::vector<std::int32_t> outliers;       // ascending
        int firstLocalToken = 0;                  // everything from here on is exact and on the device
        std::vector<std::int32_t> chosen, cached; // chunks that this step chose; chunks whose values the device holds
    };
    LowRank& of(LayerId layer, RowId sequence) { return layers_[layerAt_.offset(sequence, layer)]; }
    Head& of(LayerId layer, RowId sequence, KvHeadId kvHead) { return heads_[headAt_.offset(sequence, layer, kvHead)]; }
    std::int64_t valueBytes() const { return std::int64_t(context_.shape.valueDim) * 4; } // of a token
    void decompose(LowRank& low, const std::vector<float>& keys, int tokens) const;
    void makeLandmarks(LayerId layer, RowId sequence, KvHeadId kvHead, int tokens);
    void scoreChunks(const Head& head, const float* q, int firstToken, std::vector<float>& probabilities,
                     std::vector<float>& scores) const;
    void chooseOne(HeadStep& item);

    const SelectorContext context_;
    const ChunkBudget budget_;
    const int width_, rank_;
    const Extents<RowId, LayerId> layerAt_;
    const HeadExtents headAt_;
    std::vector<LowRank> layers_;
    std::vector<Head> heads_;
    select::PromptStates<Prompt> prompts_;
    std::vector<float> rebuilt_; // [tokens, dim] of an attention
    std::vector<std::int32_t> rebuiltRows_;
};

void ShadowKv::prompt(const PromptPiece& piece) {
    const QueryExtents queryAt = context_.queries(piece.n);
    Prompt& prompt = prompts_.of(piece);
    prompt.keys.reserve(context_.keys(piece.promptTokens).size());
    prompt.keys.insert(prompt.keys.end(), piece.rows.plainK, piece.rows.plainK + context_.keys(piece.n).size());
    const float* last = piece.rows.q + queryAt.first(piece.n - 1);
    prompt.lastQuery.assign(last, last + queryAt.under(0));
}

void ShadowKv::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) {
    const Prompt prompt = prompts_.take(layer, sequence);
    const QueryExtents queryAt = context_.queries(1);
    decompose(of(layer, sequence), prompt.keys, tokens);
    context_.forEachKvHead([&](KvHeadId g) {
        makeLandmarks(layer, sequence, g, tokens);
        // At first the device holds the values of the chunks that the last prompt token's query chooses.
        HeadStep item;
        item.layer = layer;
        item.sequence = sequence;
        item.kvHead = g;
        item.position = tokens - 1;
        item.firstToken = context_.rules.firstTokenOf(layer, item.position);
        Head& head = of(layer, sequence, g);
        scoreChunks(head, prompt.lastQuery.data() + queryAt.first(0, g), item.firstToken, item.windowScores,
                    item.queryAware);
        chooseOne(item);
        head.cached = head.chosen;
    });
}

/// Makes the low-rank form of the keys K = U S V': low.basis gets the first `rank` rows of V', which span the keys
/// best, and low.u the keys' coordinates along them, U S = K V. V consists of the eigenvectors of K'K, which is small.
void ShadowKv::decompose(LowRank& low, const std::vector<float>& keys, int tokens) const {
    const Extents<int, int> gramAt(width_, width_), keyAt(tokens, width_), coordinateAt(tokens, rank_),
        directionAt(rank_, width_);
    std::vector<double> gram(gramAt.size(), 0.0);
    context_.kernels.forEach(width_, [&](int i) {
        double* row = gram.data() + gramAt.first(i);
        for (int t = 0; t < tokens; ++t) {
            const float* key = keys.data() + keyAt.first(t);
            const auto left = double(key[i]);
            for (int j = 0; j < width_; ++j) row[j] += left * double(key[j]);
        }
    });
    const SymmetricEigen eigen = symmetricEigen(gram, width_);
    low.basis.assign(eigen.vectors.begin(), eigen.vectors.begin() + std::ptrdiff_t(directionAt.size()));
    low.u.resize(coordinateAt.size());
    context_.kernels.forEach(tokens, [&](int t) {
        const float* key = keys.data() + keyAt.first(t);
        for (int r = 0; r < rank_; ++r) {
            const double* direction = eigen.vectors.data() + directionAt.first(r);
            double sum = 0;
            for (int c = 0; c < width_; ++c) sum += double(key[c]) * direction[c];
            low.u[coordinateAt.offset(t, r)] = float(sum);
        }
    });
}

/// Makes the landmarks of a KV head: the mean key of every chunk before the local ones. The chunks with a key that is
/// least like the chunk's mean are outliers and have no landmark.
void ShadowKv::makeLandmarks(LayerId layer, RowId sequence, KvHeadId kvHead, int tokens) {
    const BlockLayout& layout = context_.cache.layout();
    const auto dim = std::size_t(context_.shape.dim), size = std::size_t(layout.blockSize);
    const int chunks = std::max(0, tokens / budget_.chunk - budget_.local);
    Head& head = of(layer, sequence, kvHead);
    const KvHead& cached = context_.cache.head(sequence, layer, kvHead);
    head.firstLocalToken = chunks * budget_.chunk;
    const Extents<int, int> meanAt(chunks, context_.shape.dim);
    Numbered<float> means(meanAt.size()), distance(chunks);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        float* mean = means.data() + meanAt.first(chunk);
        const auto channel = [&](int token, std::size_t c) {
            return context_.cache.storedKey(cached, token)[c * size];
        };
        const int first = chunk * budget_.chunk;
        double meanNorm = 0, least = std::numeric_limits<double>::infinity();
        for (std::size_t c = 0; c < dim; ++c) {
            float sum = 0;
            for (int t = first; t < first + budget_.chunk; ++t) sum += channel(t, c);
            mean[c] = sum / float(budget_.chunk);
            meanNorm += double(mean[c]) * double(mean[c]);
        }
        for (int t = first; t < first + budget_.chunk; ++t) {
            double product = 0, norm = 0;
            for (std::size_t c = 0; c < dim; ++c) {
                product += double(channel(t, c)) * double(mean[c]);
                norm += double(channel(t, c)) * double(channel(t, c));
            }
            least = std::min(least, product / std::max(1e-30, std::sqrt(norm * meanNorm)));
        }
        distance[chunk] = float(-least);
    }
    std::vector<std::int32_t> order;
    const TokenRange all{0, chunks};
    select::bestTokens({&all, 1}, distance, budget_.outliers, order, head.outliers);
    head.landmarkChunks.clear();
    head.landmarks.clear();
    head.landmarks.reserve((std::size_t(chunks) - head.outliers.size()) * dim);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        if (std::binary_search(head.outliers.begin(), head.outliers.end(), chunk)) continue;
        head.landmarkChunks.push_back(chunk);
        const float* mean = means.data() + meanAt.first(chunk);
        head.landmarks.insert(head.landmarks.end(), mean, mean + dim);
    }
}

/// Writes to `scores` the largest probability that a query head of the group gives to each landmark; 0 for chunks
/// outside of a sliding window.
void ShadowKv::scoreChunks(const Head& head, const float* q, int firstToken, std::vector<float>& probabilities,
                           std::vector<float>& scores) const {
    const auto dim = std::size_t(context_.shape.dim), count = head.landmarkChunks.size();
    probabilities.resize(count);
    scores.assign(count, 0.f);
    for (std::size_t h = 0; h < std::size_t(context_.group()); ++h) {
        for (std::size_t i = 0; i < count; ++i) {
            float sum = 0;
            for (std::size_t c = 0; c < dim; ++c) sum += q[h * dim + c] * head.landmarks[i * dim + c];
            const bool visible = (head.landmarkChunks[i] + 1) * budget_.chunk > firstToken;
            probabilities[i] = visible ? context_.rules.scale * sum : -std::numeric_limits<float>::infinity();
        }
        select::softmax(probabilities);
        for (std::size_t i = 0; i < count; ++i) scores[i] = std::max(scores[i], probabilities[i]);
    }
}

void ShadowKv::chooseOne(HeadStep& item) {
    Head& head = of(item.layer, item.sequence, item.kvHead);
    const TokenRange all{0, int(head.landmarkChunks.size())};
    std::vector<std::int32_t>& best = item.tokens;
    select::bestTokens({&all, 1}, item.queryAware, budget_.chosen, item.order, best);
    item.selected.clear();
    head.chosen.clear();
    const auto visible = [&](std::int32_t chunk) { return (chunk + 1) * budget_.chunk > item.firstToken; };
    for (const std::int32_t index : best) {
        const std::int32_t chunk = head.landmarkChunks[index];
        if (!visible(chunk)) continue;
        head.chosen.push_back(chunk);
        item.selected.push_back({chunk, Origin::QueryAware, item.queryAware[index]});
    }
    const float none = std::numeric_limits<float>::quiet_NaN();
    for (const std::int32_t chunk : head.outliers)
        if (visible(chunk)) item.selected.push_back({chunk, Origin::QueryAgnostic, none});
    for (int chunk = std::max(head.firstLocalToken, item.firstToken) / budget_.chunk;
         chunk <= item.position / budget_.chunk; ++chunk)
        item.selected.push_back({chunk, Origin::Window, none});
    std::sort(item.selected.begin(), item.selected.end(),
              [](const SelectedBlock& a, const SelectedBlock& b) { return a.block < b.block; });
    item.byToken = true;
    item.tokens.clear();
    item.wanted.clear();
    for (const SelectedBlock& chunk : item.selected) {
        item.wanted.push_back(chunk.block);
        const int begin = std::max(item.firstToken, chunk.block * budget_.chunk);
        const int end = std::min(item.position + 1, (chunk.block + 1) * budget_.chunk);
        for (int token = begin; token < end; ++token) item.tokens.push_back(token);
    }
}

/// Loads the values of the chosen chunks that the step before did not choose. Keys are never loaded.
Selector::Loads ShadowKv::load(std::span<HeadStep> heads) {
    Loads loads;
    if (!context_.offload) return loads;
    for (HeadStep& item : heads) {
        Head& head = of(item.layer, item.sequence, item.kvHead);
        for (std::size_t i = 0; i < item.wanted.size(); ++i) {
            const std::int32_t chunk = item.wanted[i];
            const bool chosen = std::binary_search(head.chosen.begin(), head.chosen.end(), chunk);
            item.loads.hit[i] = !chosen || std::binary_search(head.cached.begin(), head.cached.end(), chunk) ? 1 : 0;
            loads.units += item.loads.hit[i] == 0 ? 1 : 0;
        }
        head.cached = head.chosen;
    }
    loads.bytes = loads.units * budget_.chunk * valueBytes();
    return loads;
}

/// Rebuilds the keys of the chosen chunks from the low-rank form, and puts them in the place of the keys that were
/// gathered with the values. The engine then attends.
bool ShadowKv::attend(std::span<HeadStep> heads) {
    const int dim = context_.shape.dim;
    const BlockLayout& layout = context_.cache.layout();
    const RopeConfig& rope = context_.model.config().rope;
    for (HeadStep& item : heads) {
        const Head& head = of(item.layer, item.sequence, item.kvHead);
        const LowRank& low = of(item.layer, item.sequence);
        std::vector<std::int32_t>& at = item.order; // of the tokens to rebuild, in item.tokens
        at.clear();
        rebuiltRows_.clear();
        for (std::size_t i = 0; i < item.tokens.size(); ++i)
            if (std::binary_search(head.chosen.begin(), head.chosen.end(), item.tokens[i] / budget_.chunk)) {
                at.push_back(std::int32_t(i));
                rebuiltRows_.push_back(context_.rope.first(int(item.sequence)) + item.tokens[i]);
            }
        const Extents<int, int> rebuiltAt(int(at.size()), dim);
        const Extents<int, KvHeadId, int> basisAt(rank_, context_.shape.kvHeads, dim);
        rebuilt_.resize(rebuiltAt.size());
        context_.kernels.forEach(int(at.size()), [&](int i) {
            const std::int32_t token = item.tokens[std::size_t(at[std::size_t(i)])];
            const float* weights = low.u.data() + Extents<int, int>(token + 1, rank_).first(token);
            float* key = rebuilt_.data() + rebuiltAt.first(i);
            std::fill_n(key, dim, 0.f);
            for (int r = 0; r < rank_; ++r) {
                const float weight = weights[r];
                const float* row = low.basis.data() + basisAt.first(r, item.kvHead);
                for (int c = 0; c < dim; ++c) key[c] += weight * row[c];
            }
        });
        RopeArgs args;
        args.x = rebuilt_.data();
        args.n = int(at.size());
        args.heads = 1;
        args.dim = args.stride = dim;
        args.positions = rebuiltRows_.data();
        args.cos = context_.rope.cos();
        args.sin = context_.rope.sin();
        args.rotary = rope.dim;
        args.interleaved = rope.interleaved;
        context_.kernels.rope(args);
        const auto size = std::size_t(layout.blockSize);
        const Extents<int, int> channelAt(dim, layout.blockSize); // of the keys of a block
        for (std::size_t i = 0; i < at.size(); ++i) {
            const auto token = std::size_t(at[i]);
            float* block = item.gathered.data() + token / size * layout.floats();
            const float* key = rebuilt_.data() + rebuiltAt.first(int(i));
            for (int c = 0; c < dim; ++c) block[channelAt.offset(c, int(token % size))] = key[c];
        }
    }
    return false;
}

std::vector<Parameter> shadowKvParameters() {
    return {
        select::blockSize(),
        {"chunk_tokens", ParameterType::Integer, "8", 1, 256, "tokens", "Tokens of a chunk; divides block_size.", {}},
        {"rank",
         ParameterType::Integer,
         "0",
         0,
         65536,
         "",
         "Rank of the keys of all KV heads side by side, at most their width; 0: 5/32 of it, which is the paper's 160 "
         "of "
         "1024.",
         {}},
        {"budget_tokens",
         ParameterType::Integer,
         "2048",
         1,
         1 << 24,
         "tokens",
         "Tokens of the chosen chunks.",
         {},
         [](const SparseConfig& c) { return select::shareOfDynamicTokens(c, 1, 1); }},
        {"outlier_tokens",
         ParameterType::Integer,
         "384",
         0,
         1 << 24,
         "tokens",
         "Tokens of outlier chunks, kept exactly on top of the budget.",
         {},
         [](const SparseConfig& c) { return select::shareOfDynamicTokens(c, 3, 16); }},
        {"local_chunks",
         ParameterType::Integer,
         "4",
         0,
         65536,
         "chunks",
         "Last chunks of the prompt, kept exactly on top of the budget, with what fills no chunk.",
         {}},
        select::bias(),
        select::biasScale()};
}

} // namespace

MethodEntry shadowKvMethod() {
    MethodEntry entry;
    entry.name = "shadowkv";
    entry.title = "ShadowKV";
    entry.source = "ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference";
    entry.summary =
        "Keeps a low-rank form of the prompt's keys on the device, scores small chunks by their mean key, fetches the "
        "values of the best and rebuilds their keys. Chunks that their mean describes badly, the last ones and all "
        "that "
        "is generated stay exact on the device.";
    entry.parameters = shadowKvParameters();
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (config.latent)
            throw Error(ErrorKind::Unsupported, "shadowkv cannot rebuild keys that hold the values (latent attention)",
                        "choose another method for this checkpoint");
        SelectionSpec spec = select::commonSpec(values, config);
        const ChunkBudget budget(values);
        if (spec.blockSize % budget.chunk != 0)
            throw Error(ErrorKind::BadInput,
                        fmt::format("chunk_tokens {} does not divide block_size {}", budget.chunk, spec.blockSize),
                        "use a chunk that does, e.g. 8, or a larger block_size");
        select::setTokenBudget(spec, (budget.chosen + budget.outliers + budget.local) * budget.chunk);
        spec.traceUnit = budget.chunk;
        spec.traceBudget = -1;
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<ShadowKv>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(shadowKvOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.plain = a.prompt = a.scores = a.ownKeys = true;
        a.latent = false; // latent keys hold the values, and ShadowKV rebuilds keys only nearly
        return a;
    };
    entry.attendsAtMost = [](const MethodUse& use, ContextLength length) { // and what fills no chunk
        const ChunkBudget budget(use.values);
        return std::int64_t(budget.chosen + budget.outliers + budget.local) * budget.chunk +
               length.prompt % budget.chunk + length.added;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const ChunkBudget budget(use.values);
        const std::int64_t width = use.config.kvHeads * s.dim;
        std::int64_t rank = select::rankOf(use.values.integer("rank"), int(width));
        if (s.gpu) rank = (rank + 15) / 16 * 16;
        // A GPU cuts only the prompt into chunks, and keeps a byte for each landmark that says whether it is an
        // outlier.
        const std::int64_t cut = s.gpu ? length.prompt : s.tokens,
                           chunks = std::max<std::int64_t>(0, cut / budget.chunk - budget.local);
        std::vector<MemoryNeed> needs{
            select::indexOf("low_rank", "low-rank keys", Per::Row, (cut + width) * rank * s.number),
            select::indexOf("landmarks", "landmarks", Per::KvHead, chunks * (s.dim * s.number + (s.gpu ? 1 : 0)))};
        if (!s.gpu) {
            needs.push_back(select::scratchOf("prompt_keys", "the prompt's keys", Lifetime::Prompt, Per::One,
                                              length.prompt * width * s.number));
            needs.push_back(select::scratchOf("key_products", "products of keys", Lifetime::Prompt, Per::One,
                                              3 * width * width * 8));
            const std::int64_t most =
                s.atMost(std::int64_t(budget.chosen + budget.outliers + budget.local) * budget.chunk +
                         length.prompt % budget.chunk + length.added);
            needs.push_back(select::chosenTokens(s, most, 0));
            needs.push_back(select::scratchOf("rebuilt_keys", "rebuilt keys", Lifetime::Step, Per::One,
                                              std::int64_t(budget.chosen) * budget.chunk * s.dim * s.number));
            return needs;
        }
        const std::int64_t outliers = std::min<std::int64_t>(budget.outliers, chunks),
                           chosen = std::min<std::int64_t>(budget.chosen, chunks - outliers),
                           pool = (chosen + outliers) * budget.chunk + s.tokens - chunks * budget.chunk;
        needs.push_back(select::kvOf("chunk_pool", "KV slots", MemoryTier::Device, s.kvBytes(pool)));
        needs.push_back(select::storeOf("chunk_values", use, chunks * budget.chunk * s.dim * s.number));
        needs.push_back(select::asLongest(s, select::indexOf("outlier_chunks", "outlier chunks", Per::KvHead,
                                                             std::max<std::int64_t>(outliers, 1) * 4)));
        return needs;
    };
    return entry;
}

} // namespace kvscope
