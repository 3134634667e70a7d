// InfiniGen by block on the GPU. Guesses the next layer's queries (GuessedQueries), takes them along the directions in
// which that layer's queries vary most, and scores every key along the same directions.
#include "base/extents.h"
#include "core/cuda/device_copy.h"
#include "core/cuda/select/guessed_queries.h"
#include "core/math/symmetric_eigen.h"
#include "kernels/cuda/methods/partial_keys.h"

#include <algorithm>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace kvscope {
namespace {

class InfinigenOnDevice final : public DeviceSelector {
public:
    InfinigenOnDevice(const DeviceSelectorContext& context, int dims, int warmUp)
        : context_(context), dims_(dims), width_(cuda::partialWidth(dims)), warmUp_(warmUp), guess_(context_) {}

    void plan(DeviceArena& arena) override;
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep&, cuda::SelectArgs&) override {
    } // dense_layers is at least 1, so all layers are chosen ahead
    void lookAhead(const DeviceStep& step, LayerId target, cuda::SelectArgs& args) override;

private:
    cuda::PartialKeys partialOf(LayerId layer) const {
        const Layer& kept = layers_[layer];
        return {kept.directions, kept.keys, context_.tables.tokenFirst, 0, width_};
    }
    /// Sets the directions [dim, width_] of each head: the right singular vectors of the head's sampled queries,
    /// strongest first. They are the eigenvectors of the Gram matrix of these queries.
    void setDirections(LayerId layer, RowId sequence, bool sampled);

    struct Layer {
        float* directions = nullptr;
        __nv_bfloat16* keys = nullptr;
    };
    const DeviceSelectorContext context_;
    const int dims_, width_, warmUp_;
    GuessedQueries guess_;
    PerLayer<Layer> layers_;
    double* gram_ = nullptr; // [kvHeads, dim, dim] of the prompt and layer that are being read
    std::optional<std::pair<LayerId, RowId>> sampledOf_;
    float* scores_ = nullptr;
};

void InfinigenOnDevice::plan(DeviceArena& arena) {
    constexpr MemoryKind kPartial("partial_keys", "partial keys", Holds::Index);
    constexpr const char* kWhat = "guesses";
    const int heads = context_.heads(), kvHeads = context_.shape.kvHeads;
    layers_.resize(context_.config.layers);
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].sparse) continue;
        arena.plan(layers_[i].directions, {heads, context_.shape.dim, width_}, kPartial);
        arena.plan(layers_[i].keys, {context_.allBlocks(), context_.spec.blockSize, width_}, kPartial);
    }
    arena.plan(gram_, kvHeads * context_.shape.dim * context_.shape.dim, kWhat);
    guess_.plan(arena, kWhat);
    arena.plan(scores_, {heads, context_.maxBlocks}, kWhat);
}

void InfinigenOnDevice::prompt(const DevicePromptPiece& piece) {
    if (!context_.layers[piece.layer].sparse) return;
    if (piece.first == 0) {
        clearOnStream(gram_, {context_.shape.kvHeads, context_.shape.dim, context_.shape.dim}, context_.launch.stream,
                      "preparing partial keys");
        sampledOf_ = {piece.layer, piece.sequence};
    }
    cuda::addQueryGram(context_.launch,
                       {context_.shape, piece.q, std::clamp(warmUp_ - piece.first, 0, piece.n), gram_});
}

void InfinigenOnDevice::setDirections(LayerId layer, RowId sequence, bool sampled) {
    const int kvHeads = context_.shape.kvHeads, dim = context_.shape.dim;
    const Extents<int, int> vectorAt(dim, dim);
    const Extents<int, int, int> gramAt(kvHeads, dim, dim), directionAt(kvHeads, dim, width_);
    std::vector<double> gram(gramAt.size());
    std::vector<float> directions(directionAt.size(), 0.f);
    if (sampled) {
        copyOnStream(gram.data(), gram_, gram.size(), cudaMemcpyDeviceToHost, context_.launch.stream,
                     "reading the prompt's queries");
        cuda::check(cudaStreamSynchronize(context_.launch.stream), "reading the prompt's queries");
    }
    const auto describe = [&](int g) {
        const SymmetricEigen eigen = symmetricEigen(gramAt.part(std::span(gram), g), dim);
        for (int i = 0; i < dims_; ++i)
            for (int c = 0; c < dim; ++c)
                directions[directionAt.offset(g, c, i)] = float(eigen.vectors[vectorAt.offset(i, c)]);
    };
    if (sampled) {
        std::vector<std::jthread> team;
        for (int g = 0; g < kvHeads; ++g) team.emplace_back(describe, g);
    } else { // a filled context has no queries; it gets the first channels
        for (int g = 0; g < kvHeads; ++g)
            for (int i = 0; i < dims_; ++i) directions[directionAt.offset(g, i, i)] = 1;
    }
    copyOnStream(RowsOf(layers_[layer].directions, directions.size())[int(sequence)], directions.data(),
                 directions.size(), cudaMemcpyHostToDevice, context_.launch.stream, "keeping directions");
    cuda::check(cudaStreamSynchronize(context_.launch.stream), "keeping directions");
}

void InfinigenOnDevice::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                                   std::int64_t headStride) {
    if (!context_.layers[layer].sparse) return;
    setDirections(layer, sequence, sampledOf_ == std::pair(layer, sequence));
    cuda::keepPartialPrompt(context_.launch,
                            {context_.shape, int(sequence), tokens, blocks, headStride, partialOf(layer)});
}

void InfinigenOnDevice::append(const DeviceStep& step) {
    cuda::appendPartialKey(context_.launch, {context_.shape, context_.rows(), step.position, step.active, step.newKey,
                                             partialOf(step.layer)});
}

void InfinigenOnDevice::lookAhead(const DeviceStep& step, LayerId target, cuda::SelectArgs& select) {
    const __nv_bfloat16* query = guess_.make(step, target);
    cuda::scorePartialKeys(context_.launch, {context_.shape, context_.rows(), step.position, step.active, query,
                                             partialOf(target), context_.maxBlocks, scores_});
    select.score = cuda::SelectArgs::Score::Given;
    select.givenScores = scores_;
    select.marks.pooling = step.poolingMark;
}

} // namespace

std::unique_ptr<DeviceSelector> infinigenOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<InfinigenOnDevice>(context, values.integer("partial_dims"),
                                               values.integer("warmup_tokens"));
}

} // namespace kvscope
