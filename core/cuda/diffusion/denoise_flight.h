// A forward of blocks that is on its way to the GPU: what the kernels are told of each row, and which forward comes
// next. In many cases the host knows the next forward before it has read what this forward wrote.
#pragma once

#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/session/denoise_engine.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvscope {

/// Arrays that tell a forward what to do, in host memory or their copy on the GPU. The host uploads all of them, or the
/// table alone where the forward before has written the others on the device.
struct FlightInputs {
    cuda::BlockRow* table = nullptr; // [rows]
    std::uint64_t* masked = nullptr; // [rows] positions whose candidates are wanted
    std::int32_t* ids = nullptr;     // [rows*block]

    FlightInputs() = default;
    /// Lays the arrays out from `base`. With `base` null only the size counts. @param bytes is set to the size
    FlightInputs(std::byte* base, int rows, int block, std::size_t& bytes);
};

/// A row of a forward, without its ids.
struct FlightRow {
    DenoiseRow row;          // `wanted` and `ids` are not set
    std::uint32_t flags = 0; // BlockRow::Flag
    int masks = 0;           // positions of the block that are masked when the forward begins
};

struct Flight {
    std::vector<FlightRow> rows;
    ForwardShape shape;
};

/// Decides what the rows of a forward do: whether they compare queries, choose, and write candidates.
class FlightRules {
public:
    /// options: outlive the rules. comparesAlways: every forward compares queries with those of the forward before,
    /// also where nothing is chosen by it. makesLogits: every forward makes the logits of all positions. writes: the
    /// device writes candidates itself, if the strategy says beforehand how many a forward writes
    /// (Unmasking::Sequential, LowConfidenceStatic); a block's next forward then needs nothing from the host
    FlightRules(const DenoiseOptions& options, bool comparesAlways, bool makesLogits, bool writes);

    /// Whether any forward compares queries.
    bool compares() const { return comparesAlways_ || (options_.pages && !options_.everyToken); }
    /// Whether a block's last dense forward chooses for those that follow: SparseD's masks, LoSA's query-agnostic
    /// pages.
    bool weighs() const { return options_.tiles || options_.agnosticPages > 0; }
    bool writesOnDevice() const { return writesOnDevice_; }
    /// BlockRow::Flag of a row's forward.
    std::uint32_t flagsOf(const DenoiseRow& row) const;
    FlightRow flightOf(const DenoiseRow& row, int masks) const;
    /// What the kernels are told of the row.
    cuda::BlockRow tableRow(const FlightRow& row) const;
    /// Which kernels the forward has.
    ForwardShape shapeOf(std::span<const FlightRow> rows) const;
    /// The forward after `flight`, where the device writes candidates and the number of masks that are left therefore
    /// is known. Nothing where some row of `flight` is the clean forward of its block, because the host must read the
    /// block's tokens to know whether the sequence ends.
    std::optional<Flight> next(const Flight& flight) const;
    /// Whether `flight`, which next() foretold, is the forward that the session asks for. ids: [rows*block] the tokens
    /// that the device wrote
    static bool isOf(const Flight& flight, std::span<const DenoiseRow> rows, const std::int32_t* ids, int block);

private:
    bool isSparse(const DenoiseRow& row) const;
    bool choosesOnce(const DenoiseRow& row) const;
    int keptOf(const FlightRow& row) const;
    int writesOf(const FlightRow& row) const;

    const DenoiseOptions& options_;
    const bool comparesAlways_, makesLogits_, writesOnDevice_;
};

} // namespace kvscope
