// Locret on the GPU (core/select/locret.cpp). While a prompt is read, the retained tokens of earlier chunks and the
// tokens of the present chunk lie packed in blocks like one short prompt, so that the attention kernel for prompts
// attends to both.
#include "base/error.h"
#include "core/cuda/select/retained_tokens_selector.h"
#include "core/select/retaining_heads.h"
#include "kernels/cuda/choice/token_choice.h"
#include "kernels/cuda/methods/retaining.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>

namespace kvscope {
namespace {

select::RetainingHeads weightsOf(const Model* model) {
    if (model != nullptr)
        if (auto heads = select::findRetainingHeads(*model)) return *std::move(heads);
    throw Error(ErrorKind::Unsupported, "locret needs retaining heads, and this model has none",
                "make them with kvscope-cli calibrate");
}

class Locret final : public RetainedTokensSelector {
public:
    Locret(const ParameterValues& values, const DeviceSelectorContext& context)
        : RetainedTokensSelector(context, budgetOf(values, context), false), weights_(weightsOf(context.model)),
          chunk_(values.integer("prefill_chunk")), budget_(values.integer("budget_tokens")),
          stabilizers_(values.integer("stabilizers")), local_(values.integer("local_len")),
          listed_(std::min(mostTokens_, budget_ + std::min(chunk_, mostTokens_))),
          listedBlocks_((listed_ + context.shape.blockSize - 1) / context.shape.blockSize) {
        if (stabilizers_ + 1 < local_)
            throw Error(ErrorKind::Unsupported, "on the GPU, locret needs as many stabilizers as local_len",
                        "raise stabilizers, lower local_len, or use --backend cpu");
    }

    void plan(DeviceArena& arena) override;
    void begin() override;
    bool attendPrompt(const DevicePromptPiece& piece, const cuda::PrefillAttentionArgs& args) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;
    void append(const DeviceStep& step) override {
        if (!context_.layers[step.layer].ownTier) return;
        cuda::RetainingArgs args = scoring(step.layer, context_.rows(), step.qkv, stepHidden_);
        args.scores = stepScores_;
        args.tokenStride = context_.shape.kvHeads;
        args.headStride = 1;
        cuda::scoreRetaining(context_.launch, args);
    }

private:
    static int budgetOf(const ParameterValues& values, const DeviceSelectorContext& context) {
        return std::min(values.integer("budget_tokens"),
                        *std::max_element(context.maxTokens.begin(), context.maxTokens.end()));
    }
    std::int32_t firstRecent(RowId, std::int32_t newest) const override { return newest - local_ + 1; }
    void comes(cuda::RetainTokenArgs& args) const override {
        args.newScores = stepScores_;
        args.stays = local_;
    }
    cuda::RetainingArgs scoring(LayerId layer, int n, const float* rows, float* hidden) const {
        cuda::RetainingArgs args;
        args.n = n;
        args.inputs = weights_.inputs;
        args.width = weights_.width;
        args.kvHeads = context_.shape.kvHeads;
        args.rows = rows;
        args.in = RowsOf(in_, weights_.inOf(LayerId{0}).size())[int(layer)];
        args.out = RowsOf(out_, weights_.outOf(LayerId{0}).size())[int(layer)];
        args.hidden = hidden;
        return args;
    }
    void evict();

    const select::RetainingHeads weights_;
    const int chunk_, budget_, stabilizers_, local_;
    const int listed_, listedBlocks_;      // most tokens that a prompt token sees, and how many blocks hold them
    float *in_ = nullptr, *out_ = nullptr; // of all layers
    float *promptHidden_ = nullptr, *stepHidden_ = nullptr, *stepScores_ = nullptr, *listScores_ = nullptr;
    // For the layer and sequence whose prompt is being read: the retained tokens of earlier chunks, followed by the
    // tokens of the present chunk.
    cuda::TokenLists list_, next_;
    int listCount_ = 0;
    __nv_bfloat16* packed_ = nullptr; // [kvHeads, listedBlocks_]
    float* packedBias_ = nullptr;
};

void Locret::plan(DeviceArena& arena) {
    RetainedTokensSelector::plan(arena);
    const int kvHeads = context_.shape.kvHeads, rows = context_.rows();
    const Elements lists(kvHeads, listed_), blocks(kvHeads, listedBlocks_);
    arena.plan(in_, weights_.in.size(), "retaining heads");
    arena.plan(out_, weights_.out.size(), "retaining heads");
    arena.plan(promptHidden_, {context_.pieceTokens, weights_.width}, "retaining heads");
    arena.plan(stepHidden_, {rows, weights_.width}, "retaining heads");
    arena.plan(stepScores_, {rows, kvHeads}, "retaining heads");
    arena.plan(listScores_, lists, "prompt scores");
    for (cuda::TokenLists* list : {&list_, &next_}) {
        list->lists = context_.shape.kvHeads;
        list->capacity = listed_;
        arena.plan(list->tokens, lists, "prompt scores");
        arena.plan(list->count, kvHeads, "prompt scores");
    }
    arena.plan(packed_, blocks * cuda::blockElements(context_.shape.blockSize, context_.shape.dim), "prompt KV");
    if (context_.spec.bias.scale != 0.f) arena.plan(packedBias_, {blocks, context_.shape.blockSize}, "prompt KV");
}

void Locret::begin() {
    RetainedTokensSelector::begin();
    const auto upload = [](float* to, const std::vector<float>& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    upload(in_, weights_.in);
    upload(out_, weights_.out);
}

/// Retains the stabilizers, which are the last tokens, and of the others those with the highest scores.
void Locret::evict() {
    if (listCount_ <= budget_) return;
    const int others = listCount_ - stabilizers_, best = budget_ - stabilizers_;
    cuda::gatherScores(context_.launch, list_, others, promptScores_, mostTokens_, listScores_);
    cuda::TokenChoiceArgs args;
    args.rows = 1;
    args.kvHeads = context_.shape.kvHeads;
    args.scores = listScores_;
    args.ids = list_.tokens;
    args.stride = listed_;
    args.maxLength = others;
    args.wanted = best;
    args.tokens = next_.tokens;
    args.count = next_.count;
    args.capacity = listed_;
    cuda::chooseTokens(context_.launch, args);
    cuda::appendPlaces(context_.launch, next_, best, list_, others, stabilizers_);
    std::swap(list_, next_);
    listCount_ = budget_;
}

/// A prompt token attends to the retained tokens of earlier chunks and to the tokens of its own chunk.
bool Locret::attendPrompt(const DevicePromptPiece& piece, const cuda::PrefillAttentionArgs& args) {
    if (!context_.layers[piece.layer].ownTier) return false;
    if (piece.first == 0) listCount_ = 0;
    cuda::RetainingArgs scores = scoring(piece.layer, piece.n, piece.qkv, promptHidden_);
    scores.scores = promptScores_ + piece.first;
    scores.headStride = mostTokens_;
    cuda::scoreRetaining(context_.launch, scores);

    const std::size_t element = cuda::blockElements(context_.shape.blockSize, context_.shape.dim);
    const RowsOf queries(args.q, context_.queryWidth());
    const RowsOf attended(args.out, context_.queryWidth());
    cuda::PackArgs pack;
    pack.shape = context_.shape;
    pack.rows = 1;
    pack.capacity = listed_;
    pack.blocks = piece.blocks;
    pack.stride = piece.headStride / std::int64_t(element);
    pack.packed = packed_;
    pack.packedBlocks = listedBlocks_;
    if (packedBias_ != nullptr) {
        pack.bias = biases(piece.layer);
        pack.biasFirst = context_.tables.tokenFirst + int(piece.sequence) * context_.shape.kvHeads;
        pack.packedBias = packedBias_;
    }
    cuda::PrefillAttentionArgs part = args;
    part.blocks = packed_;
    part.headStride = std::int64_t(listedBlocks_) * std::int64_t(element);
    part.tokenBias = packedBias_;
    part.biasStride = std::int64_t(listedBlocks_) * context_.shape.blockSize;
    for (int begin = piece.first; begin < piece.first + piece.n; begin += part.n) {
        part.n = std::min(piece.first + piece.n, (begin / chunk_ + 1) * chunk_) - begin;
        if (begin > 0 && begin % chunk_ == 0) evict();
        cuda::appendTokens(context_.launch, list_, listCount_, begin, part.n);
        pack.tokens = list_.tokens;
        pack.count = list_.count;
        cuda::packTokens(context_.launch, pack);
        part.firstPosition = listCount_;
        part.q = queries[begin - piece.first];
        part.out = attended[begin - piece.first];
        cuda::prefillAttention(context_.launch, part);
        listCount_ += part.n;
    }
    return true;
}

void Locret::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                        std::int64_t headStride) {
    if (!context_.layers[layer].ownTier) return;
    const Prompt prompt{layer, sequence, blocks, headStride};
    if (listCount_ == 0) { // a filled context: no prompt was read, so no token has a score
        retain(prompt, nullptr, false, std::max(0, tokens - capacity_), tokens);
        return;
    }
    evict();
    retain(prompt, &list_, true, 0, 0);
    listCount_ = 0;
}

} // namespace

std::unique_ptr<DeviceSelector> locretOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<Locret>(values, context);
}

} // namespace kvscope
