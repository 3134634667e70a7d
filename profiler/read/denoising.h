// What the forwards of a block-diffusion run read, chose and wrote, for one sequence: the rows of `denoise`,
// `denoise_token` and `denoise_layer` together.
#pragma once

#include "profiler/read/filtered.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

struct DenoiseRequest {
    int runId = 0, sequence = 0;
    int layer = -1, kvHead = -1; // whose active tokens, changes and pages; -1: of all
    /// Steps that it leaves out have no rows; layers and KV heads that it leaves out do not count.
    ReadFilter filter{};
};

/// One position of the block in one forward.
struct ForwardCell {
    std::int32_t position = 0;                                  // in the sequence, prompt included
    std::int32_t input = 0;                                     // what the forward read there: a token or the mask
    std::int32_t candidate = -1;                                // what it would write there; -1: it read no mask
    float confidence = std::numeric_limits<float>::quiet_NaN(); // the candidate's probability; NaN: it read no mask
    /// Mean square change of the queries since the forward before, mean over the requested layers and KV heads; NaN:
    /// not recorded, as in the first forward of a block.
    float change = std::numeric_limits<float>::quiet_NaN();
    /// Of the requested layers and KV heads that chose pages, the share in which the token attended to the prefix anew;
    /// 0 or 1 for one of each. NaN: none of them chose pages.
    float active = std::numeric_limits<float>::quiet_NaN();
    std::int32_t activeLayers = 0; // of all layers that count, those in which a requested KV head has it active
    bool written = false;          // the candidate was written after this forward
    bool masked() const { return candidate >= 0; }
    std::int32_t after() const { return written ? candidate : input; } // what is there after the forward
};

/// One forward of the sequence.
struct ForwardRow {
    int step = 0;
    int block = 0, denoiseStep = 0; // the block's number in the sequence; forwards of it before this one
    bool final = false;             // the clean forward
    int masked = 0, written = 0;
    int layers = 0, sparseLayers = 0; // that count; of those, the layers in which a requested KV head chose pages
    /// Of the requested layers and KV heads, mean over those that chose pages; NaN: none did.
    float density = std::numeric_limits<float>::quiet_NaN();
    float pages = std::numeric_limits<float>::quiet_NaN();
    float meanDensity = std::numeric_limits<float>::quiet_NaN(); // of all layers and KV heads that count
    bool dense = false; // every requested layer and KV head attended to the whole prefix
    std::uint32_t firstCell = 0, cells = 0;
    std::int32_t firstPosition = 0, lastPosition = -1; // of its cells, lowest and highest
};

struct ForwardRows {
    std::vector<ForwardRow> rows; // steps ascending
    std::vector<ForwardCell> cells;
    std::span<const ForwardCell> cellsOf(const ForwardRow& row) const {
        return std::span(cells).subspan(row.firstCell, row.cells);
    }
};

/// Tokens of a block, of a run whose steps are denoising forwards; 0: it decodes token by token.
int denoisingBlock(const RunRow& run);

/// The forwards in steps [first, last].
/// @throws Error as TraceReader does
ForwardRows readForwards(const TraceReader& reader, const DenoiseRequest& request, int first, int last);

/// Raw bytes of these tokens, as far as the run generated them or its prompts have them: a trace holds no vocabulary.
std::map<std::int32_t, std::string> tokenBytes(const TraceReader& reader, int runId, int sequence,
                                               std::span<const std::int32_t> ids);

} // namespace kvscope
