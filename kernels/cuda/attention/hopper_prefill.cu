#include "kernels/cuda/attention/hopper_prefill.h"

#include "kernels/cuda/attention/block_maps.h"
#include "kernels/cuda/attention/hopper_softmax.cuh"
#include "kernels/cuda/attention/hopper_stages.cuh"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kBlock = 64; // tokens of a KV block
constexpr int kTileBlocks = kTileKeys / kBlock;
constexpr int kStages = 2;
/// Warpgroups that compute, beside the one that loads. Heads of 64 have half the products for as many exponentials, and
/// leave registers for a third.
template <int kDim> constexpr int kGroups = kDim == 64 ? 3 : 2;
template <int kDim> constexpr int kTileRows{kGroupRows * kGroups<kDim>}; // query tokens of a tile
template <int kDim> constexpr int kThreads = (kGroups<kDim> + 1) * 4 * kWarp;
constexpr int kPieceChannels = 64; // channels that fit a row of 128 bytes

/// In which order thread blocks take the tiles of query tokens.
struct TileOrder {
    int tiles = 0, heads = 0; // tiles of a head, query heads
    int together = 1; // query heads whose tiles are taken by turns, so that their keys and values stay in the cache
    __host__ __device__ int count() const { return tiles * heads; }
};

/// A tile of query tokens of one query head.
struct QueryTile {
    int head, number; // query head, tile of its query tokens
    /// Tile number `item`. Groups of heads that are taken together come one after another; in a group the tiles with
    /// most keys come first, and tiles with as many keys by head.
    __device__ QueryTile(const TileOrder& order, int item) {
        const int section = item / (order.tiles * order.together),
                  within = item - section * order.tiles * order.together;
        const int heads = min(order.together, order.heads - section * order.together);
        head = section * order.together + within % heads;
        number = order.tiles - 1 - within / heads;
    }
};

/// Thread block b of g takes the tiles b, 2g-1-b, 2g+b, ..: after a tile with many keys it takes one with few.
__device__ inline int itemOf(int round) {
    const int blocks = int(gridDim.x), mine = int(blockIdx.x);
    return round * blocks + (round % 2 == 0 ? mine : blocks - 1 - mine);
}

template <int kDim> struct PrefillShared {
    alignas(1024) char queries[kDim / kPieceChannels][kTileRows<kDim>][128];
    alignas(1024) char keys[kStages][kDim / kPieceChannels][kTileKeys][128];
    alignas(1024) char values[kStages][kTileBlocks][kDim][128];
    alignas(128) float bias[kStages][kTileKeys]; // comes with the keys
    float spare;                                 // see waitAfter
    std::uint64_t queriesFull, queriesEmpty;
    StageBarriers<kStages> keyStages, valueStages;
};

/// Which keys a tile of queries sees: key tiles [first, last].
struct KeyTiles {
    int first, last, known; // known: tokens whose keys exist
    /// rows: query tokens of a tile
    __device__ KeyTiles(const PrefillAttentionArgs& a, const QueryTile& tile, int rows)
        : first(a.window > 0 ? max(0, a.firstPosition + tile.number * rows + 1 - a.window) / kTileKeys : 0),
          last((a.firstPosition + min(a.n, (tile.number + 1) * rows) - 1) / kTileKeys), known(a.firstPosition + a.n) {}
};

struct PrefillMaps {
    CUtensorMap queries; // (64 channels, pieces of all heads' rows, query tokens)
    BlockMaps blocks;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// Asks for the bulk copies of all tiles of this thread block. One thread runs it.
template <int kDim, bool kBiased>
__device__ inline void loadTiles(PrefillShared<kDim>& shared, const PrefillAttentionArgs& a, const TileOrder& order,
                                 const PrefillMaps& maps) {
    constexpr int kPieces = kDim / kPieceChannels;
    const int group = a.shape.queryHeads / a.shape.kvHeads;
    const int headBlocks = int(a.headStride / std::int64_t(blockElements(kBlock, kDim)));
    StageTurn<kStages> keyTurn, valueTurn;
    for (int round = 0; itemOf(round) < order.count(); ++round) {
        const QueryTile tile(order, itemOf(round));
        const KeyTiles keys(a, tile, kTileRows<kDim>);
        const int g = tile.head / group, firstBlock = g * headBlocks, lastBlock = (keys.known - 1) / kBlock;
        const auto loadKeys = [&](int at) {
            const int stage = keyTurn.stage;
            keyTurn.awaitEmpty(shared.keyStages);
            const int biases = kBiased ? min(kTileBlocks, lastBlock + 1 - at * kTileBlocks) : 0;
            expectBytes(shared.keyStages.full[stage], kTileKeys * kDim * 2 + unsigned(biases) * kBlock * 4);
#pragma unroll
            for (int b = 0; b < kTileBlocks; ++b) {
                const int block = min(at * kTileBlocks + b, lastBlock); // keys past the last token are masked
#pragma unroll
                for (int piece = 0; piece < kPieces; ++piece)
                    boxLoad(shared.keys[stage][piece][b * kBlock], maps.blocks.keys, 0, 0, piece, firstBlock + block,
                            shared.keyStages.full[stage]);
            }
            if (biases > 0)
                bulkLoad(shared.bias[stage], a.tokenBias + g * a.biasStride + at * kTileKeys,
                         unsigned(biases) * kBlock * 4, shared.keyStages.full[stage]);
            keyTurn.advance();
        };
        const auto loadValues = [&](int at) {
            const int stage = valueTurn.stage;
            valueTurn.awaitEmpty(shared.valueStages);
            expectBytes(shared.valueStages.full[stage], kTileKeys * kDim * 2);
#pragma unroll
            for (int b = 0; b < kTileBlocks; ++b)
                boxLoad(shared.values[stage][b], maps.blocks.values, 0, 0,
                        firstBlock + min(at * kTileBlocks + b, lastBlock), shared.valueStages.full[stage]);
            valueTurn.advance();
        };
        waitFor(shared.queriesEmpty, ~unsigned(round) & 1);
        expectBytes(shared.queriesFull, kTileRows<kDim> * kDim * 2);
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
            boxLoad(shared.queries[piece], maps.queries, 0, tile.head * kPieces + piece, tile.number * kTileRows<kDim>,
                    shared.queriesFull);
        loadKeys(keys.last);
        for (int at = keys.last - 1; at >= keys.first; --at) loadKeys(at), loadValues(at + 1);
        loadValues(keys.first);
    }
}

/// One of the warpgroups that compute. It asks for the products of the next keys before those of the last values, and
/// takes exponentials while the tensor cores work for it and for the others. Nothing puts the warpgroups in order:
/// taking turns by barriers cost 3 % on an H200.
template <int kDim, bool kBiased> class TileReader {
public:
    __device__ TileReader(PrefillShared<kDim>& shared, const PrefillAttentionArgs& a, int group)
        : shared_(shared), a_(a), group_(group), lane_(threadIdx.x % kWarp), scaleLog2_(a.scale * kLog2e),
          biasOverScale_(kBiased ? a.biasScale / a.scale : 0.f),
          reach_(a.window > 0 ? unsigned(a.window) : 0x80000000u),
          queries_(rowsOf128Bytes(sharedAddress(shared.queries) + unsigned(group) * kGroupRows * 128)) {}

    /// Attends with the queries of a tile, the thread block's number `round`.
    __device__ void attend(const QueryTile& tile, int round) {
        const KeyTiles keys(a_, tile, kTileRows<kDim>);
        // Position of the warpgroup's first query.
        const int firstRow = a_.firstPosition + tile.number * kTileRows<kDim> + group_ * kGroupRows;
        row_ = firstRow + int(threadIdx.x) % kWarpgroup / kWarp * 16 + lane_ / 4;
        Work work;
        float shift[2], factor[2];
        work.running.clear();
        waitFor(shared_.queriesFull, unsigned(round) & 1);
        if constexpr (kHoldsQueries) holdQueries(work.queries);
        keyTurn_.awaitFull(shared_.keyStages);
        beginLogits(work.logits);
        productsBegin();
        askLogits(work);
        productsAsked();
        awaitProducts<0>();
        pinRegisters(work.logits);
        releaseKeys();
        maskLogits(work.logits, row_, keys.last * kTileKeys + lane_ % 4 * 2, reach_);
        findMaxima<true>(work.logits, work.running, scaleLog2_, shift, factor);
        weigh<0>(work.logits, work.running, scaleLog2_, shift, factor);
        weigh<1>(work.logits, work.running, scaleLog2_, shift, factor);
        packWeights(work.logits, work.weights);
        if ((keys.last + 1) * kTileKeys > keys.known) clearValues(keys.known - keys.last * kTileKeys);

        int at = keys.last - 1;
        // First the key tiles that end behind the first query, with masks; then those that all queries see whole,
        // without masks; then those in which the window of some query begins, with masks.
        const int seen = a_.window > 0 ? (max(0, firstRow + kGroupRows - a_.window) + kTileKeys - 1) / kTileKeys : 0;
        for (; at >= keys.first && (at + 1) * kTileKeys - 1 > firstRow; --at) step<true>(at, work);
        for (; at >= max(keys.first, seen); --at) step<false>(at, work);
        for (; at >= keys.first; --at) step<true>(at, work);

        if constexpr (!kHoldsQueries) release(shared_.queriesEmpty);
        valueTurn_.awaitFull(shared_.valueStages);
        pinRegisters(work.running.out);
        productsBegin();
        askOut(work.running.out, work.weights);
        productsAsked();
        awaitProducts<0>();
        pinRegisters(work.running.out);
        releaseValues();
        store(tile, work.running);
    }

private:
    /// With heads of 128 a thread has registers left for the queries. Products read queries from registers faster than
    /// from shared memory, which they then read for keys and values alone.
    static constexpr bool kHoldsQueries = kDim == 128;

    struct Work {
        std::uint32_t queries[kHoldsQueries ? kDim / 16 : 1][4];
        float logits[64];
        std::uint32_t weights[kTileKeys / 16][4];
        Running<kDim> running;
    };

    /// Takes in key tile `at`, and the values of the tile before, whose weights are known.
    template <bool kMasked> __device__ void step(int at, Work& work) {
        float shift[2], factor[2];
        keyTurn_.awaitFull(shared_.keyStages);
        beginLogits(work.logits);
        productsBegin();
        askLogits(work);
        productsAsked();
        valueTurn_.awaitFull(shared_.valueStages);
        productsBegin();
        askOut(work.running.out, work.weights);
        productsAsked();
        awaitProducts<1>();
        pinRegisters(work.logits);
        releaseKeys();
        if constexpr (kMasked) maskLogits(work.logits, row_, at * kTileKeys + lane_ % 4 * 2, reach_);
        findMaxima<kMasked>(work.logits, work.running, scaleLog2_, shift, factor);
        // Heads of 128 wait here: the exponentials that follow hide what the tensor cores have left to do.
        if constexpr (kDim == 128) waitAfter(fmaxf(work.running.maximum[0], work.running.maximum[1]), shared_.spare);
        awaitProducts<0>();
        pinRegisters(work.running.out);
        releaseValues();
        weigh<0>(work.logits, work.running, scaleLog2_, shift, factor);
        weigh<1>(work.logits, work.running, scaleLog2_, shift, factor);
        work.running.scale(factor);
        packWeights(work.logits, work.weights);
    }

    __device__ void release(std::uint64_t& barrier) {
        if (lane_ == 0) arrive(barrier);
    }
    __device__ void releaseKeys() {
        release(shared_.keyStages.empty[keyTurn_.stage]);
        keyTurn_.advance();
    }
    __device__ void releaseValues() {
        release(shared_.valueStages.empty[valueTurn_.stage]);
        valueTurn_.advance();
    }

    /// The products are added to the keys' biases over the scale, so that bias costs nothing for each query.
    __device__ void beginLogits(float (&logits)[64]) {
        if constexpr (kBiased) {
            pinRegisters(logits);
#pragma unroll
            for (int j = 0; j < kTileKeys / 8; ++j) {
                const float2 bias =
                    *reinterpret_cast<const float2*>(&shared_.bias[keyTurn_.stage][8 * j + lane_ % 4 * 2]);
                logits[4 * j] = logits[4 * j + 2] = bias.x * biasOverScale_;
                logits[4 * j + 1] = logits[4 * j + 3] = bias.y * biasOverScale_;
            }
            pinRegisters(logits);
        }
    }
    /// Reads this thread's parts of the warpgroup's queries, and lets the next ones come.
    __device__ void holdQueries(std::uint32_t (&queries)[kDim / 16][4]) {
        const int row = group_ * kGroupRows + int(threadIdx.x) % kWarpgroup / kWarp * 16 + lane_ % 16;
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step) {
            const int piece = step % 4 * 2 + lane_ / 16 ^ row % 8; // the place that the bulk copy gave it
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(queries[step][0]), "=r"(queries[step][1]), "=r"(queries[step][2]),
                           "=r"(queries[step][3])
                         : "r"(sharedAddress(&shared_.queries[step / 4][row][piece * 16]))
                         : "memory");
        }
        __syncwarp(); // all lanes have read
        release(shared_.queriesEmpty);
    }
    /// Asks for the products of the queries with a stage's keys.
    __device__ void askLogits(Work& work) {
        const std::uint64_t keys = rowsOf128Bytes(sharedAddress(shared_.keys[keyTurn_.stage]));
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step) {
            const int piece = step / 4, within = step % 4 * 2; // in units of 16 bytes
            const std::uint64_t ours = keys + std::uint64_t(piece * kTileKeys * 8 + within);
            if constexpr (kHoldsQueries)
                multiplyRegisters(work.logits, work.queries[step], ours, kBiased || step > 0);
            else
                multiplyShared(work.logits, queries_ + std::uint64_t(piece * kTileRows<kDim> * 8 + within), ours,
                               kBiased || step > 0);
        }
    }
    /// Asks for the products of a key tile's weights with the values.
    __device__ void askOut(float (&out)[kDim / 2], const std::uint32_t (&weights)[kTileKeys / 16][4]) {
        const std::uint64_t values = rowsOf128Bytes(sharedAddress(shared_.values[valueTurn_.stage]));
#pragma unroll
        for (int step = 0; step < kTileKeys / 16; ++step)
            multiplyRegisters(out, weights[step], values + std::uint64_t(step / 4 * kDim * 8 + step % 4 * 2), true);
    }

    /// Values behind the last token may be anything, also not a number, which no weight of zero would hide. Every
    /// warpgroup writes zeros there before its own products.
    __device__ void clearValues(int known) {
        valueTurn_.awaitFull(shared_.valueStages);
        auto& values = shared_.values[valueTurn_.stage];
        for (int token = known / 8 * 8; token < kTileKeys; token += 8)
            for (int channel = int(threadIdx.x) % kWarpgroup; channel < kDim; channel += kWarpgroup) {
                const int piece = token % kBlock / 8 ^ channel % 8; // the place that the bulk copy gave it
                clearBehind(*reinterpret_cast<uint4*>(&values[token / kBlock][channel][piece * 16]), known - token);
            }
        showToProducts();
        group_ == 0 ? joinNamed<1>(kWarpgroup) : group_ == 1 ? joinNamed<2>(kWarpgroup) : joinNamed<3>(kWarpgroup);
    }

    __device__ void store(const QueryTile& tile, Running<kDim>& running) {
        const int heads = a_.shape.queryHeads, quad = lane_ % 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = quadSum(running.sum[h]);
            const int token = row_ - a_.firstPosition + 8 * h;
            const float inverse = sum > 0 ? 1.f / sum : 0.f;
            const std::size_t place = std::size_t(token) * std::size_t(heads) + std::size_t(tile.head);
            if (token < a_.n && quad == 0 && a_.logSums != nullptr)
                a_.logSums[place] = fmaf(running.maximum[h], a_.scale, logf(sum));
            Bf16* out = a_.out + place * kDim;
#pragma unroll
            for (int i = 0; i < kDim / 32; ++i) {
                std::uint32_t words[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int at = 16 * i + 4 * j + 2 * h;
                    words[j] = packBf16(running.out[at] * inverse, running.out[at + 1] * inverse);
                }
                turnWords(words, quad);
                if (token < a_.n)
                    *reinterpret_cast<uint4*>(out + i * 32 + quad * 8) =
                        make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
    }

    PrefillShared<kDim>& shared_;
    const PrefillAttentionArgs& a_;
    const int group_, lane_;
    const float scaleLog2_, biasOverScale_;
    const unsigned reach_;
    const std::uint64_t queries_;
    StageTurn<kStages> keyTurn_, valueTurn_;
    int row_ = 0; // position of this thread's first query
};

#endif

/// Grid: a thread block for each multiprocessor, which takes tiles of query tokens of a head by itemOf. The first
/// warpgroup loads, with few registers; the others compute, 64 query tokens each.
template <int kDim, bool kBiased>
__global__ void __launch_bounds__(kThreads<kDim>, 1)
    hopperPrefillKernel(const __grid_constant__ PrefillAttentionArgs a, const TileOrder order,
                        const __grid_constant__ PrefillMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char raw[];
    auto& shared = *reinterpret_cast<PrefillShared<kDim>*>(raw);
    constexpr unsigned kReaders = kGroups<kDim> * 4; // a lane of each warp that computes says what has been read
    letNextKernelStart();
    if (threadIdx.x == 0) {
        prefetchMap(maps.queries), prefetchMap(maps.blocks.keys), prefetchMap(maps.blocks.values);
        initBarrier(shared.queriesFull, 1), initBarrier(shared.queriesEmpty, kReaders);
        initStages(shared.keyStages, shared.valueStages, kReaders);
    }
    __syncthreads();
    waitForEarlierKernels();
    const int warpgroup = int(threadIdx.x) / kWarpgroup;
    if (warpgroup == 0) {
        keepRegisters<kDim == 64 ? 32 : 24>();
        if (threadIdx.x == 0) {
            // Earlier kernels wrote blocks with ordinary stores, which bulk copies would not see without a fence.
            asm volatile("fence.proxy.async;" ::: "memory");
            loadTiles<kDim, kBiased>(shared, a, order, maps);
        }
    } else {
        takeRegisters<kDim == 64 ? 160 : 240>();
        TileReader<kDim, kBiased> reader(shared, a, warpgroup - 1);
        for (int round = 0; itemOf(round) < order.count(); ++round)
            reader.attend(QueryTile(order, itemOf(round)), round);
    }
#endif
}

template <int kDim, bool kBiased> void launchPrefill(const Launch& how, const PrefillAttentionArgs& args) {
    constexpr std::size_t kShared = sizeof(PrefillShared<kDim>);
    constexpr std::size_t kCache = std::size_t(24) << 20; // keys and values at work at once; half of an H200's L2 cache
    TileOrder order;
    order.tiles = (args.n + kTileRows<kDim> - 1) / kTileRows<kDim>;
    order.heads = args.shape.queryHeads;
    const std::size_t headBytes = std::size_t(args.firstPosition + args.n) * kDim * 4;
    const int together = int(std::clamp<std::size_t>(kCache / headBytes, 1, std::size_t(args.shape.kvHeads)));
    order.together = together * args.shape.group();
    const PrefillMaps maps{queryMap(args.shape, args.q, args.n, kTileRows<kDim>), blockMaps(args.shape, args.blocks)};
    allowShared(hopperPrefillKernel<kDim, kBiased>, kShared, "preparing the prompt's attention");
    launch(how, {dim3(unsigned(std::min(how.multiprocessors, order.count()))), dim3(kThreads<kDim>), kShared},
           hopperPrefillKernel<kDim, kBiased>, "attending to the prompt", args, order, maps);
}

} // namespace

bool hopperPrefillFits(const Launch& how, const PrefillAttentionArgs& args) {
    const AttentionShape& shape = args.shape;
    const std::size_t shared = shape.dim == 64 ? sizeof(PrefillShared<64>) : sizeof(PrefillShared<128>);
    return how.clusters && shared <= how.blockShared && shape.latentValue == 0 && shape.blockSize == kBlock &&
           args.headStride % std::int64_t(blockElements(kBlock, shape.dim)) == 0 && onSixteenBytes(args.blocks) &&
           onSixteenBytes(args.q) && onSixteenBytes(args.tokenBias) && args.biasStride % 4 == 0 && args.scale > 0 &&
           runsHere(hopperPrefillKernel<128, false>);
}

void hopperPrefill(const Launch& how, const PrefillAttentionArgs& args) {
    const bool biased = args.tokenBias != nullptr && args.biasScale != 0.f;
    if (args.shape.dim == 64)
        biased ? launchPrefill<64, true>(how, args) : launchPrefill<64, false>(how, args);
    else
        biased ? launchPrefill<128, true>(how, args) : launchPrefill<128, false>(how, args);
}

} // namespace kvscope::cuda
