// What the forwards of a block-diffusion run read, chose and wrote, for one sequence. The rows of `denoise`,
// `denoise_token`, `denoise_layer` and `denoise_tile` are read together.
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
    int layer = -1, kvHead = -1; // whose active tokens, changes and pages are read; -1: those of all
    /// Steps that the filter leaves out have no rows in the result. Layers and KV heads that it leaves out do not
    /// count.
    ReadFilter filter{};
};

/// One position of the block in one forward.
struct ForwardCell {
    std::int32_t position = 0; // in the sequence, prompt included
    std::int32_t input = 0;    // what the forward read there: a token or the mask
    // the token that it would write there; -1: it did not read a mask
    std::int32_t candidate = -1;
    // the candidate's probability; NaN: it did not read a mask
    float confidence = std::numeric_limits<float>::quiet_NaN();
    /// Mean square change of the position's queries since the forward before, averaged over the requested layers and KV
    /// heads. NaN: it was not recorded, as in the first forward of a block.
    float change = std::numeric_limits<float>::quiet_NaN();
    /// In which share of the requested layers and KV heads that chose pages the token attended to the prefix anew: 0 or
    /// 1 for a single layer and head. NaN: none of them chose pages.
    float active = std::numeric_limits<float>::quiet_NaN();
    /// In how many of the counted layers a requested KV head has the position active; -1: not known, of a block's
    /// tokens from the 64th on.
    std::int32_t activeLayers = 0;
    bool written = false; // the candidate was written after this forward
    bool masked() const { return candidate >= 0; }
    std::int32_t after() const { return written ? candidate : input; } // the token or mask behind the forward
};

/// One forward of the sequence.
struct ForwardRow {
    int step = 0;
    // block: number in the sequence; denoiseStep: how many forwards the block had before
    int block = 0, denoiseStep = 0;
    bool final = false; // the clean forward
    int masked = 0, written = 0;
    int layers = 0, sparseLayers = 0; // layers that count; of those, layers in which a requested KV head chose pages
    /// Averaged over the requested layers and KV heads that chose pages; NaN: none of them did.
    float density = std::numeric_limits<float>::quiet_NaN();
    float pages = std::numeric_limits<float>::quiet_NaN();
    float meanDensity = std::numeric_limits<float>::quiet_NaN(); // averaged over all layers and KV heads that count
    /// Where query heads chose pages of their own for each row of tiles: what one row of one head keeps of the prefix,
    /// least, mean and most of the requested layers and KV heads. NaN: they did not, or the trace does not say.
    float leastRow = std::numeric_limits<float>::quiet_NaN();
    float meanRow = std::numeric_limits<float>::quiet_NaN();
    float mostRow = std::numeric_limits<float>::quiet_NaN();
    bool dense = false; // every requested layer and KV head attended to the whole prefix
    std::uint32_t firstCell = 0, cells = 0;
    std::int32_t firstPosition = 0, lastPosition = -1; // of its cells, lowest and highest
};

struct ForwardRows {
    Numbered<ForwardRow> rows; // steps ascending
    std::vector<ForwardCell> cells;
    std::span<const ForwardCell> cellsOf(const ForwardRow& row) const {
        return std::span(cells).subspan(row.firstCell, row.cells);
    }
};

/// Tokens of a block where the run's steps are denoising forwards; 0 where the run decodes token by token.
int denoisingBlock(const RunRow& run);
/// Whether the run denoises a canvas: every forward sees all of the prompt and of the canvas, and there is no prefix.
bool denoisesCanvas(const RunRow& run);
/// Tokens behind the prompt that all forwards of such a run see; 0 where there is no canvas.
int canvasTokens(const RunRow& run);
/// Whether a KV head attends to whatever its queries choose together, so that no number of blocks bounds it.
bool choosesWithoutBound(const RunRow& run);

/// Reads the forwards in the steps [first, last]. @throws Error as TraceReader does
ForwardRows readForwards(const TraceReader& reader, const DenoiseRequest& request, int first, int last);

/// Raw bytes of these tokens, where the run generated them or its prompts have them. A trace has no vocabulary.
std::map<std::int32_t, std::string> tokenBytes(const TraceReader& reader, int runId, int sequence,
                                               std::span<const std::int32_t> ids);

} // namespace kvscope
