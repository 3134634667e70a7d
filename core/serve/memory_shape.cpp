#include "core/serve/memory_shape.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::serve {
namespace {

std::int64_t roundedUp(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

/// Bytes that one number of an activation takes on the device while it waits there; 0: it waits on the host.
std::int64_t parkedBytes(Parking parking) {
    switch (parking) {
    case Parking::Device:
        return 4;
    case Parking::DeviceBf16:
        return 2;
    case Parking::Host:
        return 0;
    }
    return 4;
}

} // namespace

int MemoryShape::partitionBlocks(const SchedulerOptions& options) const {
    const int wanted = options.partitionBlocks > 0 ? options.partitionBlocks : 2 * selectedBlocks;
    return std::max(wanted, selectedBlocks);
}

std::int64_t MemoryShape::selectionBytes(std::int64_t context) const {
    const std::int64_t blocks = std::min<std::int64_t>(selectedBlocks, roundedUp(context, blockTokens));
    return blocks * offloadedLayers() * kvHeads * blockBytes;
}

std::int64_t MemoryShape::firstWorkingSet(const SchedulerOptions& options, std::int64_t context) const {
    if (!options.offload) return 0;
    if (options.cache == CachePlan::GlobalLru) return selectionBytes(context);
    return std::int64_t(partitionBlocks(options)) * offloadedLayers() * kvHeads * blockBytes;
}

RequestNeeds MemoryShape::needsOf(const SchedulerOptions& options, int promptTokens, int maxTokens) const {
    const std::int64_t context = std::int64_t(promptTokens) + maxTokens;
    const int moved = options.offload ? offloadedLayers() : 0;
    const std::int64_t heads = std::int64_t(moved) * kvHeads, stayingHeads = std::int64_t(layers - moved) * kvHeads;
    const std::int64_t blocks = roundedUp(context, blockTokens);
    RequestNeeds needs;
    needs.deviceBytes =
        context * (indexBytesPerToken + rowBytesPerToken) + rowBytes + blocks * stayingHeads * blockBytes;
    if (moved > 0) {
        needs.hostBytes = roundedUp(blocks, hostRunBlocks) * hostRunBlocks * heads * blockBytes;
        needs.deviceBytes += heads * blockBytes; // the newest block of every head
        needs.stepBytes = selectionBytes(context);
        // A partition takes its memory in any case; where working sets are not controlled, it is reserved here.
        const bool fixedPart = options.cache == CachePlan::Partition && !options.workingSetControl;
        needs.hardBytes = fixedPart ? firstWorkingSet(options, context) : needs.stepBytes / moved;
    }
    const bool chunks = options.prefill == PrefillPlan::Chunks;
    if (chunks) {
        needs.scratchBytes = std::int64_t(std::min(options.chunkTokens, promptTokens)) * hidden * 4;
        needs.chunkTokenBytes = tokenBytes() / layers * moved;
    } else {
        // A prompt needs one layer's keys and values twice, because the next layer makes its own while these travel,
        // and the activations of all its tokens. Where activations wait on the host, the device holds those of one
        // piece.
        const std::int64_t parked = parkedBytes(options.parking);
        const std::int64_t activations = parked > 0 ? promptTokens * parked : std::min(pieceTokens, promptTokens) * 4;
        needs.scratchBytes = activations * hidden;
        if (moved > 0) needs.scratchBytes += 2 * promptTokens * (tokenBytes() / layers);
    }
    return needs;
}

void MemoryShape::check() const {
    const struct {
        const char* name;
        std::int64_t value;
    } fields[] = {{"layers", layers},
                  {"kv_heads", kvHeads},
                  {"block_tokens", blockTokens},
                  {"block_bytes", blockBytes},
                  {"selected_blocks", selectedBlocks},
                  {"hidden", hidden},
                  {"host_run_blocks", hostRunBlocks},
                  {"piece_tokens", pieceTokens}};
    for (const auto& field : fields)
        if (field.value <= 0)
            throw Error(ErrorKind::BadInput, fmt::format("'{}' of the memory's shape is {}", field.name, field.value),
                        "give a number above 0");
    if (residentLayers < 0 || residentLayers > layers)
        throw Error(ErrorKind::BadInput,
                    fmt::format("'resident_layers' of the memory's shape is {}, and there are {} layers",
                                residentLayers, layers));
    const struct {
        const char* name;
        std::int64_t value;
    } amounts[] = {{"index_bytes_per_token", indexBytesPerToken},
                   {"row_bytes_per_token", rowBytesPerToken},
                   {"row_bytes", rowBytes}};
    for (const auto& amount : amounts)
        if (amount.value < 0) throw Error(ErrorKind::BadInput, fmt::format("'{}' is negative", amount.name));
}

} // namespace kvscope::serve
