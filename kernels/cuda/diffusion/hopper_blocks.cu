#include "kernels/cuda/diffusion/hopper_blocks.h"

#include "kernels/cuda/attention/block_maps.h"
#include "kernels/cuda/attention/hopper_softmax.cuh"
#include "kernels/cuda/attention/hopper_stages.cuh"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/diffusion/active_tokens.cuh"
#include "kernels/cuda/diffusion/block_keys.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kGroupWarps = 4;
template <int kDim> constexpr int kTileBytes{kKeyTokens * kDim * 2}; // of keys; and of values
/// Warpgroups that compute, and one that loads.
constexpr int threadsOf(int groups) { return (groups + 1) * kGroupWarps * kWarp; }
/// A thread block with one warpgroup shares its multiprocessor with another one: while one takes exponentials, the
/// other's products run. Either way 192 KiB of a multiprocessor's shared memory are stages.
constexpr int blocksOf(int groups) { return groups == 1 ? 2 : 1; }
template <int kDim, int kGroups> constexpr int kStages{(96 << 10) / blocksOf(kGroups) / kTileBytes<kDim>};

template <int kDim, int kGroups> struct BlocksShared {
    alignas(1024) char keys[kStages<kDim, kGroups>][kTileBytes<kDim>];   // [dim / 64][64 tokens][64 channels]
    alignas(1024) char values[kStages<kDim, kGroups>][kTileBytes<kDim>]; // as TileMaps::valueTile says
    StageBarriers<kStages<kDim, kGroups>> keyStages, valueStages;
    float spare; // see waitAfter
    std::uint8_t tokens[kMostDenoised];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// Asks for the bulk copies of a share's tiles, the last one first. One warp runs it: the pages of a list are copied by
/// a lane each, tiles of neighbouring pages by one lane.
template <int kDim, int kPage, int kGroups>
__device__ inline void loadTiles(BlocksShared<kDim, kGroups>& shared, const BlockKeys& keys, const KeyShare& share,
                                 int firstBlock, const TileMaps& maps) {
    constexpr int kPages = kKeyTokens / kPage;
    constexpr unsigned kPageBytes = kTileBytes<kDim> / kPages;
    const int lane = int(threadIdx.x) % kWarp, entries = (keys.tokens + kPage - 1) / kPage;
    StageTurn<kStages<kDim, kGroups>> keyTurn, valueTurn;
    const auto pagesOf = [&](int tile) { return min(kPages, entries - tile * kPages); };
    const auto blockOf = [&](int entry) { return firstBlock + (keys.pages != nullptr ? keys.places[entry] : entry); };
    const auto loadKeys = [&](int tile) {
        const int here = pagesOf(tile), entry = tile * kPages + lane, block = lane < here ? blockOf(entry) : 0;
        std::uint64_t& full = shared.keyStages.full[keyTurn.stage];
        char* const to = shared.keys[keyTurn.stage];
        keyTurn.awaitEmpty(shared.keyStages);
        if (lane == 0) expectBytes(full, unsigned(here) * kPageBytes);
        __syncwarp();
        if (keys.pages == nullptr && here == kPages) {
            if (lane == 0) boxLoad(to, maps.keyTile, 0, 0, block, 0, full);
        } else if (lane < here) {
#pragma unroll
            for (int piece = 0; piece < kDim / 64; ++piece)
                boxLoad(to + (piece * kKeyTokens + lane * kPage) * 128, maps.keys, 0, 0, piece, block, full);
        }
        keyTurn.advance();
    };
    const auto loadValues = [&](int tile) {
        const int here = pagesOf(tile), entry = tile * kPages + lane, block = lane < here ? blockOf(entry) : 0;
        std::uint64_t& full = shared.valueStages.full[valueTurn.stage];
        char* const to = shared.values[valueTurn.stage];
        valueTurn.awaitEmpty(shared.valueStages);
        if (lane == 0) expectBytes(full, unsigned(here) * kPageBytes);
        __syncwarp();
        if (keys.pages == nullptr && here == kPages) {
            if (lane == 0) boxLoad(to, maps.valueTile, 0, 0, block, full);
        } else if (lane < here) {
            boxLoad(to + lane * int(kPageBytes), maps.values, 0, 0, block, full);
        }
        valueTurn.advance();
    };
    loadKeys(share.end - 1);
    for (int tile = share.end - 2; tile >= share.begin; --tile) loadKeys(tile), loadValues(tile + 1);
    loadValues(share.begin);
}

/// How many tokens of the list count: of the pages all but the last one are complete.
__device__ inline int knownOf(const BlockKeys& keys, int page) {
    if (keys.pages == nullptr) return keys.tokens;
    int entries = keys.tokens / page;
    while (entries > 0 && keys.pages[entries - 1] * page >= keys.end) --entries;
    return entries == 0 ? 0 : (entries - 1) * page + min(page, keys.end - keys.pages[entries - 1] * page);
}

/// A warpgroup's 64 queries of a (row, KV head).
struct GroupQueries {
    int row, g, item, group; // group: query heads of a KV head
    int first, count;        // first query; how many the (row, KV head) has
};

/// One of the warpgroups that compute. It asks for the products of the next keys before those of the last values.
template <int kDim, int kPage, int kGroups> class TileReader {
public:
    __device__ TileReader(BlocksShared<kDim, kGroups>& shared, const BlockAttentionArgs& a, const GroupQueries& of)
        : shared_(shared), a_(a), lane_(int(threadIdx.x) % kWarp), scaleLog2_(a.scale * kLog2e) {
        const int first = of.first + int(threadIdx.x) % kWarpgroup / kWarp * 16 + lane_ / 4;
        left_ = of.count - first;
        firstCell_ = unsigned((of.item * a.splits + int(blockIdx.x)) * a.rows.block * of.group + first);
    }

    /// Attends to the tiles of a share, the last one first. known: tokens of the list that count
    __device__ void attend(const GroupQueries& of, const KeyShare& share, int known) {
        Work work;
        float shift[2], factor[2];
        loadQueries(of, work.queries);
        work.running.clear();
        const int end = known - (share.end - 1) * kKeyTokens; // tokens of the last tile that count
        keyTurn_.awaitFull(shared_.keyStages);
        productsBegin();
        askLogits(work);
        productsAsked();
        awaitProducts<0>();
        pinRegisters(work.logits);
        releaseKeys();
        if (end < kKeyTokens) {
#pragma unroll
            for (int i = 0; i < kKeyTokens / 2; ++i)
                if (i / 4 * 8 + lane_ % 4 * 2 + i % 2 >= end) work.logits[i] = -INFINITY;
            clearValues(max(end, 0));
        }
        findMaxima<true>(work.logits, work.running, scaleLog2_, shift, factor);
        weigh<0>(work.logits, work.running, scaleLog2_, shift, factor);
        weigh<1>(work.logits, work.running, scaleLog2_, shift, factor);
        packWeights(work.logits, work.weights);
        for (int left = share.end - share.begin - 1; left > 0; --left) step(work);
        valueTurn_.awaitFull(shared_.valueStages);
        pinRegisters(work.running.out);
        productsBegin();
        askOut(work);
        productsAsked();
        awaitProducts<0>();
        pinRegisters(work.running.out);
        store(work.running);
    }

private:
    static constexpr int kParts = 64 / kPage;         // channels whose values lie in one row of 128 bytes
    static constexpr int kRows = kDim / kParts;       // such rows of a page
    static constexpr int kPages = kKeyTokens / kPage; // of a tile

    struct Work {
        std::uint32_t queries[kDim / 16][4];
        float logits[kKeyTokens / 2];
        std::uint32_t weights[kKeyTokens / 16][4];
        Running<kDim> running; // out: [kParts][kRows / 2], see askOut
    };

    /// Takes in the next key tile, and the values of the tile before, whose weights are known.
    __device__ void step(Work& work) {
        float shift[2], factor[2];
        keyTurn_.awaitFull(shared_.keyStages);
        productsBegin();
        askLogits(work);
        productsAsked();
        valueTurn_.awaitFull(shared_.valueStages);
        productsBegin();
        askOut(work);
        productsAsked();
        awaitProducts<1>();
        pinRegisters(work.logits);
        releaseKeys();
        // Only in the tile before can all keys have been masked, and here none is.
        findMaxima<false>(work.logits, work.running, scaleLog2_, shift, factor);
        waitAfter(fmaxf(work.running.maximum[0], work.running.maximum[1]), shared_.spare);
        awaitProducts<0>();
        pinRegisters(work.running.out);
        release(shared_.valueStages.empty[valueTurn_.stage]);
        valueTurn_.advance();
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
    /// The place of a query in [rows*block, queryHeads].
    __device__ std::size_t headOf(const GroupQueries& of, int query) const {
        const int token = query / of.group;
        return std::size_t(of.row * a_.rows.block + shared_.tokens[token]) * a_.rows.shape.queryHeads +
               of.g * of.group + (query - token * of.group);
    }
    __device__ void loadQueries(const GroupQueries& of, std::uint32_t (&queries)[kDim / 16][4]) const {
        const int quad = lane_ % 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool known = 8 * h < left_;
            const Bf16* const from = a_.q + (known ? headOf(of, of.count - left_ + 8 * h) * kDim : 0) + quad * 2;
#pragma unroll
            for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    queries[step][half * 2 + h] =
                        known ? *reinterpret_cast<const std::uint32_t*>(from + step * 16 + half * 8) : 0u;
        }
    }
    /// Asks for the products of the queries with a stage's keys.
    __device__ void askLogits(Work& work) {
        const std::uint64_t keys = rowsOf128Bytes(sharedAddress(shared_.keys[keyTurn_.stage]));
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step)
            multiplyRegisters(work.logits, work.queries[step],
                              keys + std::uint64_t(step / 4 * kKeyTokens * 8 + step % 4 * 2), step > 0);
    }
    /// Asks for the products of a tile's weights with its values. A row of a stage has the tokens of kParts
    /// neighbouring channels, so a product gives every kParts-th channel: out[part][column] is channel column * kParts
    /// + part.
    __device__ void askOut(Work& work) {
        const std::uint64_t values = rowsOf128Bytes(sharedAddress(shared_.values[valueTurn_.stage]));
#pragma unroll
        for (int page = 0; page < kPages; ++page)
#pragma unroll
            for (int step = 0; step < kPage / 16; ++step)
#pragma unroll
                for (int part = 0; part < kParts; ++part)
                    multiplyRegisters(outOf(work.running, part), work.weights[page * (kPage / 16) + step],
                                      values + std::uint64_t(page * kRows * 8 + part * kPage / 8 + step * 2), true);
    }
    static __device__ float (&outOf(Running<kDim>& running, int part))[kRows / 2] {
        return reinterpret_cast<float(&)[kRows / 2]>(running.out[part * kRows / 2]);
    }

    /// What lies behind the last token that counts may be anything, also not a number, which no weight of zero would
    /// hide. Every warpgroup writes zeros there before its own products. known: tokens of the tile that count
    __device__ void clearValues(int known) {
        valueTurn_.awaitFull(shared_.valueStages);
        char* const values = shared_.values[valueTurn_.stage];
        for (int token = known / 8 * 8; token < kKeyTokens; token += 8)
            for (int channel = int(threadIdx.x) % kWarpgroup; channel < kDim; channel += kWarpgroup) {
                const int page = token / kPage, row = channel / kParts,
                          piece = (channel % kParts * kPage + token % kPage) / 8 ^ row % 8; // as bulk copies permute
                clearBehind(*reinterpret_cast<uint4*>(values + (page * kRows + row) * 128 + piece * 16), known - token);
            }
        showToProducts();
        int(threadIdx.x) < 2 * kWarpgroup ? joinNamed<1>(kWarpgroup) : joinNamed<2>(kWarpgroup);
    }

    __device__ void store(Running<kDim>& running) {
        const int quad = lane_ % 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = quadSum(running.sum[h]);
            const std::size_t cell = firstCell_ + 8u * unsigned(h);
            if (a_.halves) {
                storeHalves(running, h, sum, cell);
                continue;
            }
            if (8 * h >= left_) continue;
            if (quad == 0) a_.states[cell] = make_float2(running.maximum[h] * a_.scale, sum);
            float* const to = a_.partial + cell * kDim;
#pragma unroll
            for (int j = 0; j < kRows / 8; ++j) {
                float mine[2 * kParts]; // neighbouring channels
#pragma unroll
                for (int i = 0; i < 2 * kParts; ++i)
                    mine[i] = running.out[i % kParts * kRows / 2 + 4 * j + 2 * h + i / kParts];
                float* const here = to + (8 * j + 2 * quad) * kParts;
                if constexpr (kParts == 1)
                    *reinterpret_cast<float2*>(here) = make_float2(mine[0], mine[1]);
                else
#pragma unroll
                    for (int i = 0; i < 2 * kParts; i += 4)
                        *reinterpret_cast<float4*>(here + i) =
                            make_float4(mine[i], mine[i + 1], mine[i + 2], mine[i + 3]);
            }
        }
    }

    /// Stores one of the thread's rows as numbers of 2 bytes. All lanes of the warp call this. sum: of all columns
    __device__ void storeHalves(const Running<kDim>& running, int h, float sum, std::size_t cell) {
        const int quad = lane_ % 4;
        float largest = 0;
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i)
            if (i / 2 % 2 == h) largest = fmaxf(largest, fabsf(running.out[i]));
        const Halving halving(quadMax(largest));
        if (8 * h >= left_) return;
        if (quad == 0)
            a_.states[cell] = make_float2(running.maximum[h] * a_.scale + halving.logit, sum * halving.factor);
        std::uint32_t* const to = reinterpret_cast<std::uint32_t*>(a_.partial) + cell * (kDim / 2);
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
            const auto channel = [&](int i) {
                return running.out[i % kParts * kRows / 2 + 4 * j + 2 * h + i / kParts];
            };
            std::uint32_t mine[kParts]; // neighbouring channels
#pragma unroll
            for (int i = 0; i < kParts; ++i) mine[i] = halving.pack(channel(2 * i), channel(2 * i + 1));
            std::uint32_t* const here = to + (8 * j + 2 * quad) * kParts / 2;
            if constexpr (kParts == 1)
                *here = mine[0];
            else if constexpr (kParts == 2)
                *reinterpret_cast<uint2*>(here) = make_uint2(mine[0], mine[1]);
            else
                *reinterpret_cast<uint4*>(here) = make_uint4(mine[0], mine[1], mine[2], mine[3]);
        }
    }

    BlocksShared<kDim, kGroups>& shared_;
    const BlockAttentionArgs& a_;
    const int lane_;
    const float scaleLog2_;
    int left_;           // queries from this thread's first one on; its other one comes 8 behind
    unsigned firstCell_; // of `states` for the first one
    StageTurn<kStages<kDim, kGroups>> keyTurn_, valueTurn_;
};

#endif

/// Grid (splits, kvHeads, rows * query tiles). A thread block takes 64 queries for each of its warpgroups, of a (row,
/// KV head), and one share of its keys. The first warpgroup loads, with few registers.
template <int kDim, int kPage, int kGroups>
__global__ void __launch_bounds__(threadsOf(kGroups), blocksOf(kGroups))
    hopperBlocksKernel(const __grid_constant__ BlockAttentionArgs a, int queryTiles,
                       const __grid_constant__ TileMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char raw[];
    auto& shared = *reinterpret_cast<BlocksShared<kDim, kGroups>*>(raw);
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), row = int(blockIdx.z) / queryTiles, queryTile = int(blockIdx.z) - row * queryTiles,
              group = shape.queryHeads / shape.kvHeads, item = row * shape.kvHeads + g, warp = int(threadIdx.x) / kWarp;
    if (threadIdx.x == 0)
        prefetchMap(maps.keyTile), prefetchMap(maps.valueTile), prefetchMap(maps.keys), prefetchMap(maps.values);
    if (!a.settled) waitForEarlierKernels();
    const BlockRow of = a.rows.table[row];
    const int firstBlock = int(a.rows.headFirst[of.sequence * shape.kvHeads + g]);
    const bool sparse = a.pageCount != nullptr && of.is(BlockRow::kSparse);
    // Whether the keys can be asked for while earlier kernels still make the queries.
    const bool early = a.settled && !sparse;
    const auto begin = [&] {
        waitForEarlierKernels();
        letNextKernelStart(); // after the wait: see mergeKernel
        if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == kWarpgroup) stamp(a.mark);
    };
    if (!early) begin();
    // Earlier kernels wrote blocks with ordinary stores, which bulk copies would not see without a fence.
    if (warp == 0) asm volatile("fence.proxy.async;" ::: "memory");
    const std::uint64_t active = early ? allOf(a.rows.block) : activeOf(a.rows, row, g);
    const int queries = __popcll(active) * group, firstQuery = queryTile * kGroups * kGroupRows;
    const int groups = min(kGroups, (queries - firstQuery + kGroupRows - 1) / kGroupRows);
    const BlockKeys keys = keysOf(of, a.pages, a.places, a.pageCount, item, a.capacity, kPage);
    const int used = filledSplits(keys.tiles(), a.splits);
    if (!of.is(BlockRow::kTaken) || firstQuery >= queries || int(blockIdx.x) >= used) {
        if (early) begin();
        return;
    }
    const KeyShare share(keys.tiles(), int(blockIdx.x), used);
    if (threadIdx.x == 0) {
        const unsigned readers = unsigned(groups * kGroupWarps); // a lane of each warp that computes says what was read
        initStages(shared.keyStages, shared.valueStages, readers);
    }
    listActive(active, shared.tokens); // with a barrier
    if (warp < kGroupWarps) {
        keepRegisters<24>();
        if (warp > 0) return;
        loadTiles<kDim, kPage, kGroups>(shared, keys, share, firstBlock, maps);
    } else {
        takeRegisters<kGroups == 1 ? 232 : 240>();
        const int mine = warp / kGroupWarps - 1; // warpgroup
        if (early) begin();
        if (mine >= groups) return;
        const GroupQueries its{row, g, item, group, firstQuery + mine * kGroupRows, queries};
        TileReader<kDim, kPage, kGroups> reader(shared, a, its);
        reader.attend(its, share, share.end == keys.tiles() ? knownOf(keys, kPage) : share.end * kKeyTokens);
    }
#endif
}

template <int kDim, int kPage, int kGroups> void launchBlocks(const Launch& how, const BlockAttentionArgs& args) {
    constexpr std::size_t kShared = sizeof(BlocksShared<kDim, kGroups>);
    constexpr int kQueries = kGroups * kGroupRows;
    const int tiles = (args.rows.queries() + kQueries - 1) / kQueries;
    raiseShared(hopperBlocksKernel<kDim, kPage, kGroups>, kShared, "preparing the attention of blocks");
    launch(how,
           {dim3(unsigned(args.splits), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows * tiles)),
            dim3(unsigned(threadsOf(kGroups))), kShared},
           hopperBlocksKernel<kDim, kPage, kGroups>, "attending with blocks", args, tiles,
           tileMaps(args.rows.shape, args.blocks));
}

template <int kDim, int kPage> void launchPages(const Launch& how, const BlockAttentionArgs& args) {
    const int tiles = (args.rows.queries() + kGroupRows - 1) / kGroupRows;
    tiles % 2 == 0 ? launchBlocks<kDim, kPage, 2>(how, args) : launchBlocks<kDim, kPage, 1>(how, args);
}

template <int kDim> void launchDim(const Launch& how, const BlockAttentionArgs& args) {
    const int page = args.rows.shape.blockSize;
    page == 16   ? launchPages<kDim, 16>(how, args)
    : page == 32 ? launchPages<kDim, 32>(how, args)
                 : launchPages<kDim, 64>(how, args);
}

} // namespace

bool hopperBlocksFit(const Launch& how, const BlockAttentionArgs& args) {
    const AttentionShape& shape = args.rows.shape;
    const std::size_t shared = shape.dim == 64 ? sizeof(BlocksShared<64, 2>) : sizeof(BlocksShared<128, 2>);
    return how.clusters && shared <= how.blockShared && shape.latentValue == 0 &&
           (shape.blockSize == 16 || shape.blockSize == 32 || shape.blockSize == 64) && args.listTokens == 0 &&
           args.partial != nullptr && args.scale > 0 && onSixteenBytes(args.blocks) && onSixteenBytes(args.q) &&
           runsHere(hopperBlocksKernel<128, 16, 1>);
}

void hopperBlocks(const Launch& how, const BlockAttentionArgs& args) {
    args.rows.shape.dim == 64 ? launchDim<64>(how, args) : launchDim<128>(how, args);
}

} // namespace kvscope::cuda
