#include "core/cuda/diffusion/cuda_canvas_tiles.h"

#include "core/cuda/device_copy.h"
#include "core/diffusion/tile_mask.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvscope {
namespace {

constexpr std::size_t kWeightBytes = std::size_t(64) << 20; // that one choice takes, unless a row of tiles needs more

/// The shape with which the attention runs where every query head has lists of its own.
cuda::AttentionShape shapeOfQueryHeads(cuda::AttentionShape shape) {
    shape.kvHeads = shape.queryHeads;
    return shape;
}

} // namespace

int CudaCanvasTiles::rowTokens(int tile) {
    int rows = (tile + cuda::kMostDenoised - 1) / cuda::kMostDenoised;
    while (tile % rows != 0) ++rows;
    return tile / rows;
}

CudaCanvasTiles::CudaCanvasTiles(const Parts& parts, const PerRow<int>& prompts, const PerRow<int>& tokens)
    : p_(parts), prompts_(prompts), tokens_(tokens), rowTokens_(rowTokens(parts.options.tile)) {
    int longest = 0;
    for (const RowId s : tokens_.ids()) {
        firstRow_.push_back(rowsOfAll_);
        rowsOfAll_ += rowsOf(s);
        longest = std::max(longest, rowsOf(s));
        tiles_ = std::max(tiles_, tilesOf(s));
        pieces_ = std::max(pieces_, (tokens_[s] + 15) / 16);
        capacity_ = std::max(capacity_, std::min(tilesOf(s), keptOf(s) + keptGeneratedOf(s)));
    }
    cuda::checkCanvasTiles(p_.launch, tiles_);
    const int ofTile = p_.options.tile / rowTokens_;
    const std::size_t ofRow = Elements(p_.config.queryHeads, rowTokens_, pieces_) * sizeof(float2);
    const int fit = int(std::min<std::size_t>(kWeightBytes / ofRow, std::size_t(longest)));
    rowsAtOnce_ = std::max(1, fit / ofTile) * ofTile;
    layers_.resize(p_.config.layers);
}

int CudaCanvasTiles::tilesOf(RowId sequence) const {
    return (tokens_[sequence] + p_.options.tile - 1) / p_.options.tile;
}
int CudaCanvasTiles::rowsOf(RowId sequence) const { return (tokens_[sequence] + rowTokens_ - 1) / rowTokens_; }
int CudaCanvasTiles::keptOf(RowId sequence) const { return tilesOfShare(tilesOf(sequence), p_.options.select); }
int CudaCanvasTiles::generatedOf(RowId sequence) const {
    return firstGeneratedTile(prompts_[sequence], tokens_[sequence], p_.options.tile);
}
int CudaCanvasTiles::keptGeneratedOf(RowId sequence) const {
    return tilesOfShare(tilesOf(sequence) - generatedOf(sequence), p_.options.select);
}

std::size_t CudaCanvasTiles::unitedFirst(LayerId layer, RowId sequence) const {
    return Elements(int(layer) * tokens_.count() + int(sequence), p_.config.kvHeads, (tiles_ + 31) / 32);
}

std::size_t CudaCanvasTiles::densitiesFirst(LayerId layer, RowId sequence) const {
    return Elements(int(layer) * tokens_.count() + int(sequence), p_.config.queryHeads, tiles_);
}

void CudaCanvasTiles::plan(DeviceArena& arena) {
    constexpr MemoryKind kMasks("tile_masks", "masks of tiles", Holds::Index);
    const Elements lists(rowsOfAll_, p_.config.queryHeads);
    for (Layer& layer : layers_) {
        arena.plan(layer.tiles, {lists, capacity_}, kMasks);
        arena.plan(layer.count, lists, kMasks);
    }
    const std::size_t words = unitedFirst(LayerId{p_.config.layers}, RowId{0}),
                      shares = densitiesFirst(LayerId{p_.config.layers}, RowId{0});
    arena.plan(weights_, {rowsAtOnce_, p_.config.queryHeads, rowTokens_, pieces_}, "activations");
    arena.plan(headFirst_, {tokens_.count(), p_.config.queryHeads}, "session state");
    arena.plan(united_, words, "reports");
    arena.plan(densities_, shares, "reports");
    arena.planHost(unitedHost_, words, "reports on the host");
    arena.planHost(densitiesHost_, shares, "reports on the host");
}

void CudaCanvasTiles::open(std::span<const std::int64_t> headFirst, const std::int64_t* onDevice) {
    kvHeadFirst_ = onDevice;
    std::vector<std::int64_t> first;
    for (int head = 0; head < tokens_.count() * p_.config.queryHeads; ++head)
        first.push_back(headFirst[std::size_t(head / p_.config.group())]);
    cuda::check(cudaMemcpy(headFirst_, first.data(), first.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice),
                "preparing the session");
}

cuda::CanvasTileArgs CudaCanvasTiles::argsOf(LayerId layer, const Row& row) const {
    cuda::CanvasTileArgs args;
    args.scale =
        p_.options.scaledByHeads ? float(1 / std::sqrt(double(p_.config.queryHeads))) : p_.config.attentionScale();
    args.tokens = tokens_[row.sequence];
    args.generated = generatedOf(row.sequence);
    args.kept = keptOf(row.sequence);
    args.keptGenerated = keptGeneratedOf(row.sequence);
    args.capacity = capacity_;
    args.weights = weights_;
    args.united = united_ + unitedFirst(layer, row.sequence);
    args.densities = densities_ + densitiesFirst(layer, row.sequence);
    return args;
}

void CudaCanvasTiles::make(LayerId layer, const CanvasTokens& tokens, const __nv_bfloat16* blocks, const Marks& marks,
                           cudaStream_t stream) const {
    if (layer == LayerId{0})
        cuda::check(cudaMemsetAsync(united_, 0,
                                    unitedFirst(LayerId{p_.config.layers}, RowId{0}) * sizeof(std::uint32_t), stream),
                    "forgetting masks");
    const Elements numbers(rowTokens_, p_.config.queryHeads, p_.config.headDim);
    bool first = true; // the marks take the times at which the first choice begins
    for (const Row& row : rows_)
        for (int begin = 0; begin < rowsOf(row.sequence); begin += rowsAtOnce_) {
            cuda::CanvasTileArgs args = argsOf(layer, row);
            args.rows = tokens.tiles(p_.shape, kvHeadFirst_, row.tile + begin,
                                     std::min(rowsAtOnce_, rowsOf(row.sequence) - begin));
            args.q = p_.buffers.q + Elements(row.place, p_.config.queryHeads, p_.config.headDim) +
                     std::size_t(begin) * numbers;
            args.blocks = blocks;
            args.firstTileRow = begin * rowTokens_ / p_.options.tile;
            const std::size_t lists = Elements(firstRow_[row.sequence] + begin, p_.config.queryHeads);
            args.tiles = layers_[layer].tiles + lists * std::size_t(capacity_);
            args.count = layers_[layer].count + lists;
            if (first) args.scoreMark = marks.score, args.chooseMark = marks.choose;
            first = false;
            cuda::weighCanvasTiles(p_.launch, args);
            cuda::chooseCanvasTiles(p_.launch, args);
        }
}

void CudaCanvasTiles::collect(cudaStream_t stream) const {
    copyOnStream(unitedHost_, united_, Elements(unitedFirst(LayerId{p_.config.layers}, RowId{0})),
                 cudaMemcpyDeviceToHost, stream, "reading the masks");
    copyOnStream(densitiesHost_, densities_, Elements(densitiesFirst(LayerId{p_.config.layers}, RowId{0})),
                 cudaMemcpyDeviceToHost, stream, "reading the masks");
}

void CudaCanvasTiles::attend(LayerId layer, const CanvasTokens& tokens, const __nv_bfloat16* blocks,
                             std::uint64_t* mark) const {
    for (const Row& row : rows_) {
        const std::size_t lists = Elements(firstRow_[row.sequence], p_.config.queryHeads),
                          numbers = Elements(row.place, p_.config.queryHeads, p_.config.headDim);
        cuda::BlockAttentionArgs args;
        args.rows = tokens.tiles(shapeOfQueryHeads(p_.shape), headFirst_, row.tile, rowsOf(row.sequence));
        args.q = p_.buffers.q + numbers;
        args.blocks = blocks;
        args.pages = layers_[layer].tiles + lists * std::size_t(capacity_);
        args.pageCount = layers_[layer].count + lists;
        args.capacity = capacity_;
        args.scale = p_.config.attentionScale();
        args.out = p_.buffers.attended + numbers;
        if (&row == &rows_.front()) args.mark = mark;
        cuda::blockAttention(p_.launch, args);
    }
}

std::vector<std::int32_t> CudaCanvasTiles::united(LayerId layer, RowId sequence, KvHeadId kvHead) const {
    const std::uint32_t* const words = unitedHost_ + unitedFirst(layer, sequence) + index(kvHead) * wordsOf(sequence);
    std::vector<std::int32_t> tiles;
    for (std::size_t w = 0; w < wordsOf(sequence); ++w)
        for (std::uint32_t bits = words[w]; bits != 0; bits &= bits - 1)
            tiles.push_back(std::int32_t(w) * 32 + std::countr_zero(bits));
    return tiles;
}

std::span<const float> CudaCanvasTiles::densities(LayerId layer, RowId sequence, KvHeadId kvHead) const {
    const std::size_t count = Elements(p_.config.group(), tilesOf(sequence));
    return {densitiesHost_ + densitiesFirst(layer, sequence) + index(kvHead) * count, count};
}

} // namespace kvscope
