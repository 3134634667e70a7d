#include "core/cuda/row_places.h"

#include "base/elements.h"
#include "kernels/cuda/device/check.h"

#include <algorithm>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

/// The bulk-copy engine takes the numbers of blocks as 31 bits, counted from the origin.
constexpr std::int64_t kMostBlocks = std::int64_t(1) << 31;
/// How many bytes the origin lies before the tables; less where the tables' address is smaller than that.
constexpr std::uintptr_t kBefore = std::uintptr_t(1) << 40;

} // namespace

RowPlaces::RowPlaces(const CudaEngineOptions& options, const DeviceModel& model, const cuda::AttentionShape& shape,
                     int rows)
    : options_(options), model_(model), shape_(shape), rows_(rows), heads_(rows * shape.kvHeads) {}

RowPlaces::States RowPlaces::statesAt(std::byte* base) const {
    States states;
    std::size_t bytes = 0;
    const auto take = [&](auto*& pointer, Elements count) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + bytes);
        bytes += (count * sizeof(*pointer) + 63) / 64 * 64;
    };
    const Elements rows(rows_);
    take(states.next, rows);
    take(states.position, rows);
    take(states.active, rows);
    states.inputBytes = bytes;
    take(states.slots, rows);
    take(states.cosFirst, rows);
    take(states.sinFirst, rows);
    take(states.sampling, rows);
    take(states.planted, {options_.planted.size(), rows});
    take(states.tables, {options_.plans.size(), kTables, heads_});
    states.bytes = bytes;
    return states;
}

LayerPlaces RowPlaces::placesOf(const States& states, LayerId layer) const {
    std::int64_t* next = RowsOf(states.tables, {kTables, heads_})[int(layer)];
    LayerPlaces places;
    for (std::int64_t** table : {&places.blocks, &places.store, &places.ranges, &places.windows, &places.pooledScores,
                                 &places.tokens, &places.recentKeys, &places.recentScores, &places.map, &places.lastUse,
                                 &places.previous, &places.hasPrevious}) {
        *table = next;
        next += heads_;
    }
    return places;
}

void RowPlaces::plan(DeviceArena& arena) {
    const std::size_t bytes = statesAt(nullptr).bytes;
    arena.plan(region_, bytes, "rows' tables");
    arena.planHost(hostRegion_, bytes, "the rows' tables");
}

void RowPlaces::open(CudaSequences& steps) {
    device_ = statesAt(region_);
    host_ = statesAt(hostRegion_);
    // A multiple of a block's bytes, of which all other units are divisors.
    const std::uintptr_t unit = cuda::blockBytes(shape_), here = reinterpret_cast<std::uintptr_t>(region_);
    origin_ = std::max<std::uintptr_t>((here > kBefore ? here - kBefore : 0) / unit, 1) * unit;
    steps.rows.next = device_.next;
    steps.rows.position = device_.position;
    steps.rows.active = device_.active;
    steps.rows.slotsOf = device_.slots;
    steps.rows.cosFirst = device_.cosFirst;
    steps.rows.sinFirst = device_.sinFirst;
    steps.rows.ropeCos = steps.rows.ropeSin = origin<float>();
    for (const LayerId i : steps.layers.ids()) {
        DeviceLayerState& layer = steps.layers[i];
        const LayerArrays has(layer, options_, model_);
        layer.places = placesOf(device_, i);
        layer.blocks = origin<Bf16>();
        if (!options_.planted.empty()) layer.planted = RowsOf(device_.planted, rows_)[int(i)];
        if (layer.offloaded) layer.map = origin<std::int32_t>();
        if (has.lastUse) layer.lastUse = origin<std::int32_t>();
        if (has.previous) layer.previous = layer.hasPrevious = origin<std::uint8_t>();
        cuda::DeviceIndex& index = layer.index;
        if (has.pooledKeys) index.recentKeys = index.pooledKeys = origin<Bf16>();
        if (has.pooledScores) index.recentScores = index.pooledScores = origin<float>();
        if (has.ranges) index.ranges = origin<Bf16>();
        if (has.tokenScores) index.tokenScores = origin<float>();
        index.windowFirst = layer.places.windows;
        index.pooledScoreFirst = layer.places.pooledScores;
        index.blockFirst = layer.places.ranges;
        index.tokenFirst = layer.places.tokens;
        index.recentKeyFirst = layer.places.recentKeys;
        index.recentScoreFirst = layer.places.recentScores;
    }
}

/// How many units an address lies behind the origin; 0 for an array that the row does not have.
std::int64_t RowPlaces::far(const void* at, std::size_t unit) const {
    return at == nullptr
               ? 0
               : (std::int64_t(reinterpret_cast<std::uintptr_t>(at)) - std::int64_t(origin_)) / std::int64_t(unit);
}

bool RowPlaces::reaches(const CudaSequences& row) const {
    const std::int64_t spare = kMostBlocks / 4; // for the blocks of one layer
    return std::all_of(row.layers.begin(), row.layers.end(), [&](const DeviceLayerState& layer) {
        const std::int64_t first = far(layer.blocks, cuda::blockBytes(shape_));
        return first >= 0 && first < kMostBlocks - spare;
    });
}

void RowPlaces::put(int place, const CudaSequences& row, const BatchLayout& layout, const CudaEngineOptions& options) {
    const Elements dim(shape_.dim);
    const NumberedSpan<const PlantedStream> planted(options.planted);
    const std::int64_t recent = options_.spec.grid.kernel;
    host_.slots[place] = options.slots;
    const std::int64_t angles = std::int64_t(row.rows.rope.first(0)) * tableAngles(model_.config);
    host_.cosFirst[place] = far(row.rows.ropeCos, sizeof(float)) + angles;
    host_.sinFirst[place] = far(row.rows.ropeSin, sizeof(float)) + angles;
    host_.sampling[place] = {options.sampling.temperature, options.sampling.topP, options.sampling.topK, row.rows.draws,
                             row.rows.firstSampled,        row.rows.drawsPerRow};
    for (int i = 0; i < int(options_.planted.size()); ++i) RowsOf(host_.planted, rows_)[i][place] = planted[i];
    for (const LayerId i : row.layers.ids()) {
        const DeviceLayerState& layer = row.layers[i];
        const LayerPlaces to = placesOf(host_, i);
        // The kernels count the host store from address 0: host memory may lie anywhere.
        const auto store = std::int64_t(reinterpret_cast<std::uintptr_t>(layer.store) / cuda::kStoreUnit);
        const auto unitsPerBlock = std::int64_t(cuda::blockBytes(shape_)) / cuda::kStoreUnit;
        const std::int64_t blocks = far(layer.blocks, cuda::blockBytes(shape_)),
                           ranges = far(layer.index.ranges, 2 * dim * sizeof(Bf16)),
                           windows = far(layer.index.pooledKeys, dim * sizeof(Bf16)),
                           pooledScores = far(layer.index.pooledScores, sizeof(float)),
                           tokens = far(layer.index.tokenScores, sizeof(float)),
                           recentKeys = far(layer.index.recentKeys, sizeof(Bf16)),
                           recentScores = far(layer.index.recentScores, sizeof(float)),
                           map = far(layer.map, sizeof(std::int32_t)),
                           lastUse = far(layer.lastUse, sizeof(std::int32_t)), previous = far(layer.previous, 1),
                           hasPrevious = far(layer.hasPrevious, 1);
        for (int g = 0; g < shape_.kvHeads; ++g) {
            const int head = place * shape_.kvHeads + g;
            const std::int64_t block = layout.blockFirst[g], window = layout.windowFirst[g],
                               slot = std::int64_t(g) * options.slots;
            to.blocks[head] = blocks + (layer.offloaded ? slot : block);
            to.store[head] = store + block * unitsPerBlock;
            to.ranges[head] = ranges + block;
            to.windows[head] = windows + window;
            to.pooledScores[head] = pooledScores + window;
            to.tokens[head] = tokens + layout.tokenFirst[g];
            to.recentKeys[head] = recentKeys + g * recent * shape_.dim;
            to.recentScores[head] = recentScores + g * recent;
            to.map[head] = map + slot;
            to.lastUse[head] = lastUse + slot;
            to.previous[head] = previous + std::int64_t(g) * cuda::kMostBitmapBytes;
            to.hasPrevious[head] = hasPrevious + g;
        }
    }
}

void RowPlaces::clear(int rows, int end) {
    used_ = rows;
    for (int at = rows; at < end; ++at) {
        host_.slots[at] = host_.slots[0];
        host_.cosFirst[at] = host_.cosFirst[0];
        host_.sinFirst[at] = host_.sinFirst[0];
        host_.sampling[at] = {};
        for (int i = 0; i < int(options_.planted.size()); ++i) {
            PlantedStream* const ofLayer = RowsOf(host_.planted, rows_)[i];
            ofLayer[at] = ofLayer[0];
        }
        for (int i = 0; i < options_.plans.size(); ++i) {
            std::int64_t* table = RowsOf(host_.tables, {kTables, heads_})[i];
            for (std::size_t t = 0; t < kTables; ++t, table += heads_)
                std::copy_n(table, shape_.kvHeads, RowsOf(table, shape_.kvHeads)[at]);
        }
    }
    inputsDiffer_ = true;
}

void RowPlaces::copyTables(cudaStream_t stream) {
    cuda::check(cudaMemcpyAsync(region_ + host_.inputBytes, hostRegion_ + host_.inputBytes,
                                host_.bytes - host_.inputBytes, cudaMemcpyHostToDevice, stream),
                "copying the rows' tables");
}

void RowPlaces::feed(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions, int end,
                     cudaStream_t stream) {
    const auto differs = [](std::span<const std::int32_t> wanted, const std::int32_t* held) {
        return !std::equal(wanted.begin(), wanted.end(), held);
    };
    if (!inputsDiffer_ && !differs(tokens, host_.next) && !differs(positions, host_.position)) return;
    const int rows = int(tokens.size());
    std::copy(tokens.begin(), tokens.end(), host_.next);
    std::copy(positions.begin(), positions.end(), host_.position);
    std::fill_n(host_.active, rows, std::uint8_t(1));
    for (int at = rows; at < end; ++at) host_.next[at] = host_.position[at] = 0, host_.active[at] = 0;
    cuda::check(cudaMemcpyAsync(region_, hostRegion_, host_.inputBytes, cudaMemcpyHostToDevice, stream),
                "copying the tokens");
    inputsDiffer_ = false;
}

void RowPlaces::advance(const std::int32_t* chosen) {
    for (int at = 0; at < used_; ++at) {
        host_.next[at] = std::max(chosen[at], 0); // a row without a token feeds token 0, see cuda::kNoToken
        ++host_.position[at];
    }
}

} // namespace kvscope
