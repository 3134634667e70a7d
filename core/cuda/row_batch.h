// Steps of rows whose method is data: every kernel works on all rows at once, as on a session's sequences, although the
// rows have memory of their own. The step graphs know only how many rows there may be, and survive when rows join and
// leave.
#pragma once

#include "core/cuda/cuda_row.h"
#include "core/cuda/row_places.h"
#include "kernels/cpu/thread_team.h"

#include <compare>
#include <cstdint>
#include <exception>
#include <map>
#include <span>
#include <vector>

namespace kvscope {

/// Where the time of a step went, in nanoseconds: the host launches it, waits for it, and then fills the rows' records.
struct RowStepTimes {
    std::int64_t launchNs = 0, waitNs = 0, recordNs = 0;
    std::int64_t gpuNs = 0; // from the step's first mark to its last, by the GPU's timer; 0: nothing is recorded
};

class RowBatch {
public:
    /// usual: what a row's sequences are made with, whatever its prompt; with the windows of all layers. rows: most of
    /// a step
    RowBatch(const CudaEngineOptions& usual, const CudaRowParts& parts, int rows);
    /// Whether rows like this one can share kernels: their method is data, and no oracle measures it.
    static bool suits(const CudaRow& row) { return !row.sequences.selector && !row.options().oracle; }

    /// Asks the engine's arena for what steps of rows of any length need.
    void plan(DeviceArena& arena);
    /// After the arena has been taken and the engine's stream is open.
    void open();

    /// Whether an open row can take part: it has the usual method, and its memory lies where the kernels reach it.
    bool takes(const CudaRow& row) const;
    /// A step of these rows, which have begun it. Waits. tokens: those of the rows, in the same order. order: numbers
    /// of the rows in the order in which a pool takes their blocks
    void decode(std::span<CudaRow* const> rows, std::span<const RowToken> tokens, std::span<const int> order);
    /// Where the time of the last step went.
    const RowStepTimes& times() const { return times_; }
    /// Called before something else than decode() works with the rows: copies the logits of each row into the row's own
    /// memory, and frees all places.
    void settle();
    /// The row will be closed.
    void leave(const CudaRow& row);

    /// Rows that a step of `rows` rows is launched for: 1, 2, 4, 8, and then also half-way between powers of two.
    static int bucketOf(int rows);
    /// Blocks of the longest context that a step's kernels are launched for, where the longest row has `blocks`.
    static int roomOf(int blocks);

private:
    /// What the kernels of a step are launched for. A graph is one of these.
    struct Shape {
        int rows = 0, blocks = 0, slots = 0; // places, blocks of the longest row, slots of the row with most
        bool samples = false;                // some row's tokens are chosen at random
        auto operator<=>(const Shape&) const = default;
    };
    struct Step {
        bool tried = false; // its kernels have run, so that they can be captured
        cuda::Executable graph;
    };
    static constexpr std::size_t kMostGraphs = 24;

    Shape shapeOf(std::span<CudaRow* const> rows) const;
    bool take(const Shape& shape);
    bool place(std::span<CudaRow* const> rows);
    void putIntoPool(std::span<const int> order);
    void launch();
    void launchKernels();
    void fillRecords();

    const CudaRowParts p_;
    const int rows_;
    const bool oneByOne_;
    CudaEngineOptions options_;
    BatchLayout layout_; // of the present shape
    StepBuffers buffers_;
    cuda::Launch launch_;
    CudaSequences steps_; // without memory for keys, values and index
    RowPlaces places_;
    float* partial_ = nullptr;
    std::uint32_t* arrivals_ = nullptr;
    Numbered<CudaRow*> step_, placed_; // rows of the last step: in its order, and by place; null: closed
    Numbered<int> placeOf_;            // [row of step_] its place
    std::vector<int> order_;           // of the last step, with a pool
    Shape shape_;
    std::map<Shape, Step> graphs_;
    Numbered<std::int32_t> ids_, positions_; // of the present step, by place
    RowStepTimes times_;
    cpu::ThreadTeam team_;                  // fills the records of a step, one row a piece
    Numbered<std::exception_ptr> failures_; // [place] while records are filled
};

} // namespace kvscope
