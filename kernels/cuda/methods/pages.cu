#include "kernels/cuda/methods/pages.h"

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/device/ranking.cuh"
#include "kernels/cuda/device/shared_room.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Makes one channel of a complete page's digest. The page's keys lie `stride` elements apart.
__device__ inline void closeChannel(const PageDigests& pages, const Bf16* keys, int stride, __half* digest, int c) {
    const int tokens = pages.shape.blockSize;
    float least = INFINITY, most = -INFINITY;
    for (int t = 0; t < tokens; ++t) {
        const float key = __bfloat162float(keys[t * stride]);
        least = fminf(least, key);
        most = fmaxf(most, key);
    }
    if (pages.cuboidMean) {
        const float centre = (most + least) / 2;
        float radius = 0;
        for (int t = 0; t < tokens; ++t) radius += fabsf(centre - __bfloat162float(keys[t * stride]));
        radius /= float(tokens);
        least = centre - radius;
        most = centre + radius;
    }
    digest[c] = __float2half(least);
    digest[pages.shape.dim + c] = __float2half(most);
}

/// Grid (pages with the incomplete one, kvHeads), a thread per channel.
__global__ void promptKernel(PageDigests pages, int sequence, int tokens, const Bf16* blocks, std::int64_t headStride) {
    const int page = blockIdx.x, g = blockIdx.y, c = threadIdx.x, dim = pages.shape.dim, size = pages.shape.blockSize;
    const int head = sequence * pages.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* keys = blocks + std::size_t(g) * headStride + std::size_t(page) * blockElements(size, dim);
    if ((page + 1) * size <= tokens) {
        closeChannel(pages, keys + c, dim, pages.digests + std::size_t(pages.blockFirst[head] + page) * 2 * dim, c);
        return;
    }
    Bf16* open = pages.openPage + std::size_t(head) * size * dim;
    for (int t = 0; page * size + t < tokens; ++t) open[t * dim + c] = keys[t * dim + c];
}

/// Grid (kvHeads, rows), a thread per channel.
__global__ void appendKernel(PageAppendArgs a) {
    const int g = blockIdx.x, row = blockIdx.y, c = threadIdx.x, dim = a.pages.shape.dim,
              size = a.pages.shape.blockSize;
    const int head = row * a.pages.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const int position = a.position[row], within = position % size;
    const std::size_t page = std::size_t(a.pages.blockFirst[head] + position / size);
    Bf16* open = a.pages.openPage + std::size_t(head) * size * dim + c; // a thread owns its channel
    open[within * dim] = a.newKey != nullptr ? a.newKey[std::size_t(head) * dim + c]
                                             : a.blocks[page * blockElements(size, dim) + within * dim + c];
    if (within + 1 == size) closeChannel(a.pages, open, dim, a.pages.digests + page * 2 * dim, c);
}

constexpr int kPagesPerWarp = 4; // pages whose loads are in flight together

/// Adds a lane's part of the products of a warp's pages with `parts`, for each KV head that chooses together.
__device__ void addBounds(const PageScoreArgs& a, int first, int complete, int set, int row, const float4* parts,
                          float (&sum)[kPagesPerWarp]) {
    const AttentionShape& shape = a.pages.shape;
    const int lane = threadIdx.x % kWarp, dim = shape.dim, pieces = dim / 4;
    if (first >= complete || lane >= pieces) return;
    const int head = (a.firstSequence + row) * shape.kvHeads + set * a.shared;
#pragma unroll 2
    for (int g = 0; g < a.shared; ++g) {
        const __half* digests = a.pages.digests + std::size_t(a.pages.blockFirst[head + g]) * 2 * dim + lane * 8;
        uint4 digest[kPagesPerWarp];
#pragma unroll
        for (int p = 0; p < kPagesPerWarp; ++p)
            digest[p] = loadOnce(digests + std::size_t(min(first + p, complete - 1)) * 2 * dim);
        const float4 low = parts[(g * 2) * pieces + lane], high = parts[(g * 2 + 1) * pieces + lane];
#pragma unroll
        for (int p = 0; p < kPagesPerWarp; ++p) {
            const __half2* values = reinterpret_cast<const __half2*>(&digest[p]);
            const float2 v0 = __half22float2(values[0]), v1 = __half22float2(values[1]), v2 = __half22float2(values[2]),
                         v3 = __half22float2(values[3]);
            sum[p] += low.x * v0.x + low.y * v0.y + low.z * v1.x + low.w * v1.y + high.x * v2.x + high.y * v2.y +
                      high.z * v3.x + high.w * v3.y;
        }
    }
}

/// Grid (page tiles, page sets, rows). Every lane reads a 16-byte piece of a digest; with 64 channels only half of the
/// lanes do. As lower <= upper, max(q lower, q upper) is q lower for a negative q and q upper for a positive one. The
/// sum over query heads is therefore lower times the sum of the negative queries plus upper times that of the positive.
__global__ void __launch_bounds__(kThreads) scoreKernel(PageScoreArgs a) {
    extern __shared__ float4 parts[]; // [sums of queries][2][pieces] the halves of a piece lie apart
    const AttentionShape& shape = a.pages.shape;
    const int set = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int dim = shape.dim, group = shape.queryHeads / shape.kvHeads, pieces = dim / 4; // of 8 of the 2*dim numbers
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && set == 0 && row == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const int position = a.position != nullptr ? a.position[row] : a.at;
    const int pages = position / shape.blockSize + 1, complete = (position + 1 - a.unseen) / shape.blockSize;
    const int first = (int(blockIdx.x) * kWarps + warp) * kPagesPerWarp;
    if (int(blockIdx.x) * kWarps * kPagesPerWarp >= pages) return;

    // With Mean and Sum the queries of a KV head are added up. With Largest and Each every query head stays alone.
    const float share = a.score == PageScore::Mean ? 1.f / float(a.shared * group) : 1.f;
    const bool each = a.score == PageScore::Each, alone = each || a.score == PageScore::Largest;
    const int together = alone ? 1 : group, passes = alone ? group : 1;
    for (int i = threadIdx.x; i < a.shared * passes * dim; i += kThreads) {
        const int g = i / dim, c = i % dim;
        const Bf16* q =
            a.q + (std::size_t(row) * shape.queryHeads + std::size_t(set) * a.shared * group + g * together) * dim + c;
        float negative = 0, positive = 0;
        for (int h = 0; h < together; ++h) {
            const float value = __bfloat162float(q[h * dim]);
            negative += fminf(value, 0.f);
            positive += fmaxf(value, 0.f);
        }
        const auto place = [&](int element) { // of [2*dim]
            const int piece = element / 8, within = element % 8;
            return reinterpret_cast<float*>(parts + (g * 2 + within / 4) * pieces + piece) + within % 4;
        };
        *place(c) = negative * share;
        *place(dim + c) = positive * share;
    }
    __syncthreads();
    float best[kPagesPerWarp];
    float* scores = a.scores + (std::size_t(row) * gridDim.y + set) * (each ? group : 1) * a.maxPages;
    for (int pass = 0; pass < passes; ++pass) {
        float sum[kPagesPerWarp] = {};
        addBounds(a, first, complete, set, row, parts + std::size_t(pass) * 2 * pieces, sum);
        const bool last = each || pass + 1 == passes;
#pragma unroll
        for (int p = 0; p < kPagesPerWarp; ++p) {
            const float score = warpSum(sum[p]);
            best[p] = each || pass == 0 ? score : fmaxf(best[p], score);
            const int page = first + p;
            if (last && lane == 0 && page < pages) scores[page] = page < complete ? best[p] : -INFINITY;
        }
        if (each) scores += a.maxPages;
    }
}

constexpr int kChoiceWarps = 16;
constexpr std::uint8_t kAbsent = 0xff;

/// Grid (page sets, rows). Shared memory: ordered keys [maxPages], origins [maxPages].
__global__ void __launch_bounds__(kChoiceWarps* kWarp) choiceKernel(PageChoiceArgs a) {
    extern __shared__ std::uint32_t keys[];
    __shared__ BlockCounter<kChoiceWarps>::Shared counts;
    constexpr int kAll = kChoiceWarps * kWarp;
    std::uint8_t* origins = reinterpret_cast<std::uint8_t*>(keys + a.maxPages);
    const int set = blockIdx.x, row = blockIdx.y;
    letNextKernelStart();
    waitForEarlierKernels();
    if (set == 0 && row == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const int position = a.position != nullptr ? a.position[row] : a.at, pages = position / a.pageTokens + 1;
    const std::size_t list = (std::size_t(row) * gridDim.x + set) * a.maxPages;
    const float* scores = a.scores + list;
    std::uint8_t* resident = a.resident + list;
    BlockCounter<kChoiceWarps> counter(counts);

    for (int p = threadIdx.x; p < pages; p += kAll) {
        origins[p] = p < a.sink              ? std::uint8_t(Origin::Sink)
                     : p >= pages - a.window ? std::uint8_t(Origin::Window)
                                             : kAbsent;
        keys[p] = p >= a.sink && p < pages - a.window + 1 ? rankingKey(scores[p]) : 0;
    }
    __syncthreads();
    takeLargest(keys, pages, a.dynamic, counter, [&](int p) {
        if (origins[p] == kAbsent) origins[p] = std::uint8_t(Origin::QueryAware);
    });
    __syncthreads();
    int pinned = 0;
    for (int p = threadIdx.x; p < pages; p += kAll) {
        pinned += origins[p] != kAbsent ? 1 : 0;
        keys[p] = origins[p] == kAbsent && resident[p] != 0 ? rankingKey(scores[p]) : 0;
    }
    pinned = counter.sum(pinned); // a barrier too
    // The pages of the lowest scores leave, of equal ones the lower page first. So the best ones stay, and of equal
    // ones the higher page.
    takeLargest<kChoiceWarps, true>(keys, pages, a.budget - pinned, counter,
                                    [&](int p) { origins[p] = std::uint8_t(Origin::QueryAgnostic); });
    __syncthreads();
    const int perThread = (pages + kAll - 1) / kAll, begin = min(int(threadIdx.x) * perThread, pages),
              end = min(begin + perThread, pages);
    int mine = 0, count = 0;
    for (int p = begin; p < end; ++p) mine += origins[p] != kAbsent ? 1 : 0;
    int at = counter.prefix(mine, count);
    const std::size_t firstItem = std::size_t(row) * a.kvHeads + std::size_t(set) * a.shared;
    for (int p = begin; p < end; ++p) {
        resident[p] = origins[p] != kAbsent ? 1 : 0;
        if (origins[p] == kAbsent || at >= a.capacity) continue;
        const float score = isinf(scores[p]) ? __uint_as_float(0x7fc00000u) : scores[p];
        for (int g = 0; g < a.shared; ++g) {
            const std::size_t to = (firstItem + g) * a.capacity + at;
            a.chosen[to] = PackedBlock(p, Origin(origins[p]), false);
            a.chosenScores[to] = score;
        }
        ++at;
    }
    if (int(threadIdx.x) < a.shared) a.chosenCount[firstItem + threadIdx.x] = min(count, a.capacity);
}

/// Grid (capacity, kvHeads).
__global__ void __launch_bounds__(kThreads) seedKernel(PageSeedArgs a) {
    const int i = blockIdx.x, g = blockIdx.y, head = a.sequence * a.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    if (i >= a.chosenCount[g]) return;
    const int size = a.shape.blockSize, page = a.chosen[std::size_t(g) * a.capacity + i].id();
    const bool open = a.tokens % size != 0; // the last page is not complete and has slot 0
    const int slot = i + (open ? 1 : 0);
    if ((page + 1) * size > a.tokens || slot >= a.slots) return;
    const std::size_t elements = blockElements(size, a.shape.dim), at = std::size_t(head) * a.slots + slot;
    const uint4* from = reinterpret_cast<const uint4*>(a.blocks + std::size_t(g) * a.headStride + page * elements);
    uint4* to = reinterpret_cast<uint4*>(a.pool + at * elements);
    for (std::size_t c = threadIdx.x; c < elements / 8; c += kThreads) to[c] = from[c];
    if (threadIdx.x != 0) return;
    a.map[at] = page;
    if (a.lastUse != nullptr) a.lastUse[at] = 0;
}

} // namespace

void digestPrompt(const Launch& how, const PageDigests& pages, int sequence, int tokens, const Bf16* blocks,
                  std::int64_t headStride) {
    if (tokens == 0) return;
    const unsigned count = unsigned((tokens + pages.shape.blockSize - 1) / pages.shape.blockSize);
    launch(how, {dim3(count, unsigned(pages.shape.kvHeads)), dim3(unsigned(pages.shape.dim))}, promptKernel,
           "digesting the prompt", pages, sequence, tokens, blocks, headStride);
}

void appendToPages(const Launch& how, const PageAppendArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.pages.shape.kvHeads), unsigned(args.rows)), dim3(unsigned(args.pages.shape.dim))},
           appendKernel, "digesting a page", args);
}

void scorePages(const Launch& how, const PageScoreArgs& args) {
    if (args.rows == 0) return;
    constexpr int kTile = kWarps * kPagesPerWarp;
    const AttentionShape& shape = args.pages.shape;
    const bool alone = args.score == PageScore::Largest || args.score == PageScore::Each;
    const int lists = alone ? shape.group() : args.shared;
    const std::size_t shared = std::size_t(lists) * 2 * std::size_t(shape.dim) * sizeof(float);
    allowShared(scoreKernel, shared, "preparing the pages' scores");
    launch(how,
           {dim3(unsigned((args.maxPages + kTile - 1) / kTile), unsigned(shape.kvHeads / args.shared),
                 unsigned(args.rows)),
            dim3(kThreads), shared},
           scoreKernel, "scoring pages", args);
}

void choosePages(const Launch& how, const PageChoiceArgs& args) {
    if (args.rows == 0) return;
    const std::size_t shared = std::size_t(args.maxPages) * (sizeof(std::uint32_t) + 1);
    if (shared > sharedRoom(how, choiceKernel)) refuseContext(args.maxPages, args.pageTokens);
    allowShared(choiceKernel, shared, "preparing the choice of pages");
    launch(how, {dim3(unsigned(args.kvHeads / args.shared), unsigned(args.rows)), dim3(kChoiceWarps * kWarp), shared},
           choiceKernel, "choosing pages", args);
}

void seedSlots(const Launch& how, const PageSeedArgs& args) {
    if (args.capacity == 0) return;
    launch(how, {dim3(unsigned(args.capacity), unsigned(args.shape.kvHeads)), dim3(kThreads)}, seedKernel,
           "seeding the slots", args);
}

} // namespace kvscope::cuda
