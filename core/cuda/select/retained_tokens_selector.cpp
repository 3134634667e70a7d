#include "core/cuda/select/retained_tokens_selector.h"

#include "kernels/cuda/choice/token_choice.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>

namespace kvscope {

RetainedTokensSelector::RetainedTokensSelector(const DeviceSelectorContext& context, int capacity, bool countsMass)
    : context_(context), capacity_(capacity),
      mostTokens_(*std::max_element(context.maxTokens.begin(), context.maxTokens.end())), countsMass_(countsMass),
      blocks_((capacity + context.shape.blockSize - 1) / context.shape.blockSize), report_(context, capacity),
      retained_(context.config.layers) {}

void RetainedTokensSelector::plan(DeviceArena& arena) {
    const int heads = context_.heads(), kvHeads = context_.shape.kvHeads;
    const Elements places(heads, capacity_);
    constexpr MemoryKind kLists("retained_tokens", "lists of retained tokens", Holds::Index);
    for (const LayerId i : retained_.ids()) {
        if (!context_.layers[i].ownTier) continue;
        cuda::RetainedTokens& retained = retained_[i];
        retained.capacity = capacity_;
        retained.blocks = blocks_;
        arena.plan(retained.packed, {heads, blocks_, cuda::blockElements(context_.shape.blockSize, context_.shape.dim)},
                   {"retained_kv", "retained tokens", Holds::Kv});
        arena.plan(retained.tokens, places, kLists);
        arena.plan(retained.scores, places, kLists);
        if (countsMass_) arena.plan(retained.mass, places, kLists);
        if (context_.spec.bias.scale != 0.f)
            arena.plan(retained.bias, {heads, blocks_, context_.shape.blockSize}, kLists);
        arena.plan(retained.count, heads, kLists);
        arena.plan(retained.freePlace, heads, kLists);
        arena.plan(retained.attended, heads, kLists);
    }
    arena.plan(promptScores_, {kvHeads, mostTokens_}, "prompt scores");
    if (countsMass_) arena.plan(promptMass_, {kvHeads, mostTokens_}, "prompt scores");
    arena.plan(packedFirst_, heads, "session state");
    arena.plan(placeFirst_, heads, "session state");
    chosen_.lists = context_.shape.kvHeads;
    chosen_.capacity = capacity_;
    arena.plan(chosen_.tokens, {kvHeads, capacity_}, "prompt scores");
    arena.plan(chosen_.count, kvHeads, "prompt scores");
    arena.plan(partial_, cuda::attentionPartialFloats(context_.launch, context_.shape, context_.rows(), blocks_),
               "activations");
}

void RetainedTokensSelector::begin() {
    std::vector<std::int64_t> blocks, places;
    for (std::int64_t head = 0; head < context_.heads(); ++head) {
        blocks.push_back(head * blocks_);
        places.push_back(head * blocks_ * context_.shape.blockSize);
    }
    const auto upload = [](std::int64_t* to, const std::vector<std::int64_t>& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    upload(packedFirst_, blocks);
    upload(placeFirst_, places);
}

std::int64_t RetainedTokensSelector::tokenStride(RowId sequence) const {
    return std::int64_t(context_.spec.grid.blocks(context_.maxTokens[sequence])) * context_.shape.blockSize;
}

std::int64_t RetainedTokensSelector::firstToken(RowId sequence) const {
    std::int64_t first = 0;
    for (const RowId s : idsUpTo<RowId>(int(sequence))) first += tokenStride(s) * context_.shape.kvHeads;
    return first;
}

void RetainedTokensSelector::retainFromPrompt(int length, int wanted) {
    cuda::TokenChoiceArgs args;
    args.rows = 1;
    args.kvHeads = context_.shape.kvHeads;
    args.scores = promptScores_;
    args.stride = mostTokens_;
    args.maxLength = length;
    args.wanted = wanted;
    args.tokens = chosen_.tokens;
    args.count = chosen_.count;
    args.capacity = capacity_;
    cuda::chooseTokens(context_.launch, args);
}

void RetainedTokensSelector::retain(const Prompt& prompt, const cuda::TokenLists* listed, bool scored, int tailFirst,
                                    int tailEnd) {
    const cuda::RetainedTokens& retained = retained_[prompt.layer];
    cuda::RetainPromptArgs args;
    args.kvHeads = context_.shape.kvHeads;
    args.sequence = int(prompt.sequence);
    if (listed != nullptr) args.chosen = *listed;
    if (scored) args.scores = promptScores_, args.scoreStride = mostTokens_;
    args.mass = promptMass_;
    args.massStride = mostTokens_;
    args.tailFirst = tailFirst;
    args.tailEnd = tailEnd;
    args.retained = retained;
    cuda::retainPrompt(context_.launch, args);

    const int head = int(prompt.sequence) * context_.shape.kvHeads;
    const std::size_t element = cuda::blockElements(context_.shape.blockSize, context_.shape.dim);
    cuda::PackArgs pack;
    pack.shape = context_.shape;
    pack.rows = 1;
    pack.tokens = RowsOf(retained.tokens, capacity_)[head];
    pack.count = retained.count + head;
    pack.capacity = capacity_;
    pack.blocks = prompt.blocks;
    pack.stride = prompt.headStride / std::int64_t(element);
    pack.packed = RowsOf(retained.packed, {blocks_, element})[head];
    pack.packedBlocks = blocks_;
    if (retained.bias != nullptr) {
        pack.bias = biases(prompt.layer);
        pack.biasFirst = context_.tables.tokenFirst + head;
        pack.packedBias = RowsOf(retained.bias, {blocks_, context_.shape.blockSize})[head];
    }
    cuda::packTokens(context_.launch, pack);
}

void RetainedTokensSelector::choose(const DeviceStep& step, cuda::SelectArgs&) {
    cuda::RetainTokenArgs args;
    args.shape = context_.shape;
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.newKey = step.newKey;
    args.newValue = step.newValue;
    args.tokenScores = evictionScores(step.layer);
    args.tokenFirst = context_.tables.tokenFirst;
    args.retained = retained_[step.layer];
    args.record = report_.at(step);
    comes(args);
    cuda::retainToken(context_.launch, args);
}

bool RetainedTokensSelector::attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) {
    const cuda::RetainedTokens& retained = retained_[step.layer];
    args.blocks = retained.packed;
    args.headFirst = packedFirst_;
    args.packedTokens = retained.count;
    args.maxBlocks = std::min(blocks_, context_.maxBlocks);
    args.bias.scores = retained.bias;
    args.bias.first = placeFirst_;
    args.scratch.partial = partial_;
    return false;
}

} // namespace kvscope
