#include "profiler/roofline/cost_model.h"

#include "base/error.h"
#include "core/plan/kv_format.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

constexpr double kGib = 1073741824.0, kGiga = 1e9, kTera = 1e12;
// Memory that a program needs besides weights and KV: the driver's context, workspaces, activations, fragmentation.
constexpr double kReservedGib = 0.5, kReservedShare = 0.05;
constexpr int kScoreBytes = 4; // pooled eviction scores are float32 on every device

/// Device bytes and operations of one part of a step; the larger of its two times is its floor.
struct Work {
    double bytes = 0, operations = 0;
};

void require(bool condition, const std::string& message, const std::string& hint) {
    if (!condition) throw Error(ErrorKind::BadInput, message, hint);
}

void checkScenario(const DecodeScenario& s) {
    const ModelShape& m = s.model;
    require(m.layers > 0 && m.hidden > 0 && m.queryHeads > 0 && m.kvHeads > 0 && m.headDim > 0 && m.ffn > 0 &&
                m.vocab > 0,
            fmt::format("the model shape '{}' is incomplete", m.name), "every dimension is at least 1");
    require(s.gpu.readGbps > 0 && s.gpu.tflops > 0 && s.gpu.memoryGib > 0 && s.gpu.linkGbps > 0,
            fmt::format("the GPU '{}' is incomplete", s.gpu.name), "its rates and its memory are above 0");
    require(s.context >= 1 && s.context <= (1 << 28), fmt::format("a context of {} tokens", s.context),
            "give 1 to 268435456");
    require(s.batch >= 1, fmt::format("a batch of {} sequences", s.batch), "give at least 1");
    require(s.hitRate >= 0 && s.hitRate <= 1, fmt::format("a hit rate of {:g}", s.hitRate), "give 0 to 1");
    require(s.kvGib >= 0, fmt::format("{:g} GiB for the KV cache", s.kvGib), "give 0 (all that is free) or more");
    require(s.deviceSlots == 0 || s.method.dense || s.deviceSlots >= s.method.budgetBlocks(),
            fmt::format("{} block slots are fewer than the {} blocks attended at a time", s.deviceSlots,
                        s.method.budgetBlocks()),
            "give at least as many, or 0");
}

/// How a step of the scenario divides; everything that needs the method's budgets is worked out once, here.
struct Parts {
    explicit Parts(const DecodeScenario& scenario) : s(scenario) {
        const ModelShape& m = s.model;
        const SelectionSpec& method = s.method;
        blocks = (s.context + method.blockSize - 1) / method.blockSize;
        denseLayers = method.denseOf(m.layers);
        sparseLayers = m.layers - denseLayers;
        const bool all = method.dense || s.context < method.denseBelowTokens;
        attendedBlocks = all ? blocks : std::min(method.budgetBlocks(), blocks);
        const int newest = s.context - (blocks - 1) * method.blockSize; // tokens in the block that is being filled
        attended = attendedBlocks == blocks ? s.context : (attendedBlocks - 1) * method.blockSize + newest;
        slots = std::min(std::max(s.deviceSlots, std::max(method.budgetBlocks(), attendedBlocks)), blocks);
        blockBytes = s.blockBytes > 0 ? double(s.blockBytes) : double(format().numbers()) * s.bytesPerElement;
        offloaded = !method.dense && s.placement != Placement::Resident;
        PoolingGrid grid = method.grid;
        grid.blockSize = method.blockSize;
        const double windows = grid.windows(s.context);
        if (method.queryScore == QueryScore::PooledSoftmax) {
            indexBytesPerHead += windows * m.headDim * s.bytesPerElement;
            scoreOperationsPerQueryHead = 2 * windows * m.headDim;
        } else if (method.queryScore == QueryScore::RangeBound) {
            indexBytesPerHead += 2.0 * blocks * m.headDim * s.bytesPerElement;
            scoreOperationsPerQueryHead = 4.0 * blocks * m.headDim; // two products, a maximum and a sum per channel
        }
        if (method.agnosticScore != AgnosticScore::None) indexBytesPerHead += windows * kScoreBytes;
    }

    /// Bytes of the keys and values of one token in one layer.
    double tokenBytes() const {
        return double(format().numbers()) / s.method.blockSize * s.model.kvHeads * s.bytesPerElement;
    }
    /// Bytes of one attended token where blocks lie in slots, which may be quantised.
    double slotTokenBytes() const {
        return offloaded ? std::min(tokenBytes(), blockBytes / s.method.blockSize * s.model.kvHeads) : tokenBytes();
    }
    /// The format of a block of one KV head; bytesPerElement stands in for the type of its numbers.
    KvFormat format() const { return {KvType::BF16, s.method.blockSize, s.model.headDim, s.model.headDim, false}; }
    Work projections() const {
        const double weights = double(s.model.layerWeights());
        return {weights * s.model.bytesPerWeight, 2 * weights * batch};
    }
    Work head() const {
        const double weights = double(s.model.vocab) * s.model.hidden;
        return {weights * s.model.bytesPerWeight, 2 * weights * batch};
    }
    /// Reads the tokens, each of so many bytes, and writes the new one; q.k and the weighted sum of v.
    Work attention(int tokens, double bytes) const {
        return {(tokens * bytes + tokenBytes()) * batch,
                4.0 * s.model.queryHeads * s.model.headDim * double(tokens) * batch};
    }
    Work selection() const {
        return {indexBytesPerHead * s.model.kvHeads * batch, scoreOperationsPerQueryHead * s.model.queryHeads * batch};
    }
    /// Missed blocks of one layer, expected. A pool that holds every block misses none.
    double misses() const {
        if (!offloaded || slots >= blocks) return 0;
        return double(batch) * s.model.kvHeads * attendedBlocks * (1 - s.hitRate);
    }
    /// Full blocks of one layer that go back to the host, on average: each sequence fills one per blockSize steps.
    double writeBacks() const { return offloaded ? double(batch) * s.model.kvHeads / s.method.blockSize : 0; }

    const DecodeScenario& s;
    int blocks = 0, denseLayers = 0, sparseLayers = 0, attendedBlocks = 0, attended = 0, slots = 0;
    int batch = 1;
    bool offloaded = false;
    double blockBytes = 0, indexBytesPerHead = 0, scoreOperationsPerQueryHead = 0;
};

/// Bytes of the whole blocks of one sequence on the host, every offloaded layer.
double hostBytes(const Parts& p) {
    return p.offloaded ? double(p.sparseLayers) * p.s.model.kvHeads * p.blocks * p.blockBytes : 0;
}

/// Bytes per second at which a step reads its bytes, if as many of them as fit come from the last-level cache.
double readRate(const GpuSpec& gpu, double bytes) {
    const double memory = gpu.readGbps * kGiga;
    const double cached = std::min(bytes, gpu.cacheMib * 1048576.0);
    if (cached <= 0 || gpu.cacheReadGbps <= gpu.readGbps) return memory;
    return bytes / (cached / (gpu.cacheReadGbps * kGiga) + (bytes - cached) / memory);
}

/// The resource that keeps more sequences out. fits: becomes the number of sequences that fit
Resource capacityLimit(const DecodeScenario& s, const Parts& p, std::int64_t& fits) {
    const double device = bytesForSequences(s) / double(sequenceBytes(s)); // a sequence takes at least one block
    double most = std::max(0.0, std::floor(device));
    Resource limit = Resource::MemoryCapacity;
    const double host = hostBytes(p);
    if (s.gpu.hostGib > 0 && host > 0) {
        const double held = std::floor(s.gpu.hostGib * kGib / host);
        if (held < most) most = held, limit = Resource::HostCapacity;
    }
    fits = std::int64_t(std::min(most, 1e9));
    return limit;
}

} // namespace

const char* nameOf(Placement placement) {
    constexpr const char* names[] = {"resident", "offloaded", "lookahead"};
    return names[int(placement)];
}

const char* nameOf(Resource resource) {
    constexpr const char* names[] = {"HBM bandwidth", "compute", "PCIe", "HBM capacity", "host memory"};
    return names[int(resource)];
}

std::int64_t sequenceBytes(const DecodeScenario& s) {
    const Parts p(s);
    const double whole = double(p.blocks) * p.s.method.blockSize * p.tokenBytes(); // of one layer
    const double pool = double(p.slots) * p.s.model.kvHeads * p.blockBytes;
    return std::int64_t(p.denseLayers * whole + p.sparseLayers * (p.offloaded ? pool : whole) +
                        p.sparseLayers * p.indexBytesPerHead * p.s.model.kvHeads);
}

double bytesForSequences(const DecodeScenario& s) {
    const double free = s.gpu.memoryGib * kGib * (1 - kReservedShare) - kReservedGib * kGib -
                        double(s.model.storedWeights()) * s.model.bytesPerWeight;
    return s.kvGib > 0 ? std::min(free, s.kvGib * kGib) : free;
}

double queryShare(const SelectionSpec& method) {
    return method.dense || method.budgetBlocks() == 0 ? 0 : double(method.budget.queryAware) / method.budgetBlocks();
}

double localityBound(const SelectionSpec& method) { return 1 - queryShare(method); }

StepCost predictStep(const DecodeScenario& s) {
    checkScenario(s);
    Parts p(s);
    StepCost cost;
    const Resource limit = capacityLimit(s, p, cost.fits);
    cost.attendedTokens = p.attended;
    if (cost.fits == 0) {
        cost.stepNs = std::numeric_limits<double>::quiet_NaN();
        cost.binding = limit;
        return cost;
    }
    p.batch = cost.batch = int(std::min<std::int64_t>(s.batch, cost.fits));

    const Work projections = p.projections(), head = p.head(), selection = p.selection();
    const Work sparse = p.attention(p.attended, p.slotTokenBytes()), dense = p.attention(s.context, p.tokenBytes());
    const double layers = s.model.layers, sparseLayers = p.sparseLayers, denseLayers = p.denseLayers;
    cost.weightBytes = layers * projections.bytes + head.bytes;
    cost.kvBytes = sparseLayers * sparse.bytes + denseLayers * dense.bytes;
    cost.indexBytes = sparseLayers * selection.bytes;
    cost.operations = layers * projections.operations + head.operations + sparseLayers * sparse.operations +
                      denseLayers * dense.operations + sparseLayers * selection.operations;
    const double loaded = p.misses() * p.blockBytes, returned = p.writeBacks() * p.blockBytes; // of one layer
    cost.linkBytes = sparseLayers * loaded;
    cost.writeBackBytes = sparseLayers * returned;

    const double hbmBytes = cost.weightBytes + cost.kvBytes + cost.indexBytes;
    const double bytesPerNs = readRate(s.gpu, hbmBytes) / 1e9, operationsPerNs = s.gpu.tflops * kTera / 1e9;
    cost.hbmNs = hbmBytes / bytesPerNs;
    cost.computeNs = cost.operations / operationsPerNs;
    // Parts follow each other: each is bound by memory or by compute on its own.
    const auto run = [&](const Work& work, double times) { // @return the time of one `work`
        const double memory = work.bytes / bytesPerNs, compute = work.operations / operationsPerNs;
        (memory >= compute ? cost.hbmBoundNs : cost.computeBoundNs) += times * std::max(memory, compute);
        return std::max(memory, compute);
    };
    const auto floorOf = [&](StageId stage, const Work& work, double ns) {
        const bool memory = work.bytes / bytesPerNs >= work.operations / operationsPerNs;
        cost.stages[std::size_t(stage.number())] = {ns, memory ? Resource::MemoryBandwidth : Resource::Compute};
    };
    const double projectionNs = run(projections, layers), headNs = run(head, 1);
    const double selectionNs = run(selection, sparseLayers), sparseNs = run(sparse, sparseLayers);
    const double denseNs = run(dense, denseLayers);
    // The projections' bytes and operations are those of their weights, so their time divides as the weights do.
    const double weights = double(s.model.layerWeights()), query = double(s.model.queryHeads) * s.model.headDim,
                 keyValue = double(s.model.kvHeads) * s.model.headDim;
    const double qkvShare = s.model.hidden * (query + 2 * keyValue) / weights,
                 outputShare = s.model.hidden * query / weights;
    floorOf(Stage::QkvLinear, projections, layers * projectionNs * qkvShare);
    floorOf(Stage::OLinear, projections, layers * projectionNs * outputShare);
    floorOf(Stage::Ffn, projections, layers * projectionNs * (1 - qkvShare - outputShare));
    floorOf(StepStage::LmHead, head, headNs);
    floorOf(Stage::Stage1, selection, sparseLayers * selectionNs);
    floorOf(Stage::Stage2, sparse, sparseLayers * sparseNs);
    floorOf(Stage::Attention, dense, denseLayers * denseNs);
    const double layerNs = projectionNs + selectionNs + sparseNs;

    bool linkLonger = false; // blocks are loaded ahead, and still take longer than the work beside them
    if (p.offloaded && p.sparseLayers > 0) {
        const double moves = std::min(1.0, p.misses() + p.writeBacks()); // less than one block a step: not every step
        const double transferNs =
            moves * s.gpu.latencyUs * 1e3 + (loaded + returned) / s.gpu.linkGbps; // GB/s = bytes/ns
        cost.linkNs = sparseLayers * transferNs;
        cost.linkLatencyNs = sparseLayers * moves * s.gpu.latencyUs * 1e3;
        cost.linkLoadNs = sparseLayers * loaded / s.gpu.linkGbps;
        cost.linkReturnNs = sparseLayers * returned / s.gpu.linkGbps;
        linkLonger = s.placement == Placement::Lookahead && transferNs > layerNs;
        // The first layer's blocks have nothing to travel behind.
        cost.exposedNs = s.placement == Placement::OnDemand
                             ? cost.linkNs
                             : transferNs + (sparseLayers - 1) * std::max(0.0, transferNs - layerNs);
    }
    cost.parts = {layers * projectionNs + headNs, sparseLayers * selectionNs,
                  sparseLayers * sparseNs + denseLayers * denseNs, cost.exposedNs, 0};
    cost.stepNs = cost.hbmBoundNs + cost.computeBoundNs + cost.exposedNs;
    cost.tokensPerSecond = cost.batch / cost.stepNs * 1e9;
    if (s.batch > cost.fits)
        cost.binding = limit;
    else if (linkLonger || cost.exposedNs >= std::max(cost.hbmBoundNs, cost.computeBoundNs))
        cost.binding = Resource::Link;
    else
        cost.binding = cost.hbmBoundNs >= cost.computeBoundNs ? Resource::MemoryBandwidth : Resource::Compute;
    return cost;
}

} // namespace kvscope
