#include "core/cuda/diffusion/denoise_flight.h"

#include "core/diffusion/tile_mask.h"

#include <algorithm>
#include <bit>

namespace kvscope {

using cuda::BlockRow;

FlightInputs::FlightInputs(std::byte* base, int rows, int block, std::size_t& bytes) {
    const std::size_t masks = (Elements(rows) * sizeof(BlockRow) + 7) / 8 * 8,
                      tokens = masks + Elements(rows) * sizeof(std::uint64_t);
    bytes = tokens + Elements(rows, block) * sizeof(std::int32_t);
    if (base == nullptr) return;
    table = reinterpret_cast<BlockRow*>(base);
    masked = reinterpret_cast<std::uint64_t*>(base + masks);
    ids = reinterpret_cast<std::int32_t*>(base + tokens);
}

FlightRules::FlightRules(const DenoiseOptions& options, bool comparesAlways, bool makesLogits, bool writes)
    : options_(options), comparesAlways_(comparesAlways), makesLogits_(makesLogits),
      writesOnDevice_(writes && (options.strategy == Unmasking::Sequential ||
                                 options.strategy == Unmasking::LowConfidenceStatic)) {}

bool FlightRules::isSparse(const DenoiseRow& row) const {
    if (!options_.pages || row.first == 0) return false;
    return row.step >= options_.firstSparseStep() && (!row.clean || options_.finalSparse);
}

/// Whether this is the block's last dense forward and it chooses for the forwards after it.
bool FlightRules::choosesOnce(const DenoiseRow& row) const {
    return weighs() && row.first > 0 && !row.clean && row.step == options_.firstSparseStep() - 1;
}

/// How many tiles each row of the mask keeps, or how many query-agnostic pages each KV head; 0 where the forward does
/// not choose for later ones.
int FlightRules::keptOf(const FlightRow& of) const {
    if ((of.flags & BlockRow::kChoosesOnce) == 0) return 0;
    const int prefix = of.row.first, page = options_.page;
    return options_.tiles ? tilesKept((prefix + page - 1) / page, options_.budget, prefix)
                          : std::min(options_.agnosticPages, prefix / page);
}

std::uint32_t FlightRules::flagsOf(const DenoiseRow& row) const {
    const bool sparse = isSparse(row);
    std::uint32_t flags = BlockRow::kTaken;
    if (sparse) flags |= BlockRow::kSparse;
    if (options_.everyToken || row.step == 0) flags |= BlockRow::kEveryToken;
    if (row.step > 0 && (comparesAlways_ || sparse) && compares()) flags |= BlockRow::kCompares;
    if (row.clean) flags |= BlockRow::kClean;
    if (choosesOnce(row)) flags |= BlockRow::kChoosesOnce;
    if (options_.fetchAhead && sparse && row.step > 0) {
        flags |= BlockRow::kAsks;
        if (row.step == 1) flags |= BlockRow::kAsksAll;
        if (row.step > options_.firstSparseStep()) flags |= BlockRow::kAsksAgain;
    }
    return flags;
}

FlightRow FlightRules::flightOf(const DenoiseRow& row, int masks) const {
    FlightRow of{row, flagsOf(row), masks};
    of.row.ids = {};
    of.row.wanted = 0;
    return of;
}

int FlightRules::writesOf(const FlightRow& of) const {
    return of.masks > 0 ? std::clamp(options_.tokensOf(of.row.step), 1, of.masks) : 0;
}

BlockRow FlightRules::tableRow(const FlightRow& of) const {
    return {int(of.row.sequence), of.row.first, of.row.first, of.flags, writesOf(of), keptOf(of)};
}

ForwardShape FlightRules::shapeOf(std::span<const FlightRow> rows) const {
    ForwardShape shape;
    for (const FlightRow& of : rows) {
        shape.choosesOnce |= (of.flags & BlockRow::kChoosesOnce) != 0;
        shape.writes |= of.masks > 0 || makesLogits_;
        shape.sparse |= (of.flags & BlockRow::kSparse) != 0;
        shape.cleans |= of.row.clean;
    }
    return shape;
}

std::optional<Flight> FlightRules::next(const Flight& flight) const {
    if (!writesOnDevice_) return std::nullopt;
    Flight next;
    for (const FlightRow& of : flight.rows) {
        if (of.row.clean) return std::nullopt;
        DenoiseRow row = of.row;
        const int left = of.masks - writesOf(of);
        ++row.step;
        row.clean = left == 0;
        next.rows.push_back(flightOf(row, left));
    }
    next.shape = shapeOf(next.rows);
    return next;
}

bool FlightRules::isOf(const Flight& flight, std::span<const DenoiseRow> rows, const std::int32_t* ids, int block) {
    return std::equal(rows.begin(), rows.end(), flight.rows.begin(), flight.rows.end(),
                      [&](const DenoiseRow& row, const FlightRow& of) {
                          return row.sequence == of.row.sequence && row.first == of.row.first &&
                                 row.step == of.row.step && row.clean == of.row.clean &&
                                 std::popcount(row.wanted) == of.masks &&
                                 std::equal(row.ids.begin(), row.ids.end(), ids + int(row.sequence) * block);
                      });
}

} // namespace kvscope
