// The stages of a decode step of rows that come and go, on a GPU.
#pragma once

#include "core/cuda/cuda_row.h"
#include "core/engine/step_order.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Embeddings, projections, feed-forwards and logits of all rows together, so that weights are read once; between them
/// each row attends by itself. Rows whose method is data attend beside each other, each on a stream of its own; rows of
/// other methods one after another, because selectors multiply with the work space that the products share.
class CudaRowStages final : public Stages {
public:
    /// parts: its launch is the one that the passes use; it is another row's while that row's products are placed.
    /// ids: device memory, the tokens that the rows feed.
    CudaRowStages(const CudaRowParts& parts, cuda::Launch& launch, const std::int32_t* const& ids)
        : p_(parts), launch_(launch), ids_(ids) {}
    /// @throws Error(OutOfMemory | Device)
    void open() { forked_ = cuda::Event::make(); }

    /// The next step is that of these rows, at least one.
    void begin(std::span<CudaRow* const> rows);

    void embed() override;
    void project(int layer) override;
    void append(int layer) override;
    void choose(int layer) override;
    void lookAhead(int layer) override;
    void load(int layer) override;
    void attend(int layer) override;
    void after(int layer) override;
    void measure(int) override {}
    void finish(int layer) override;
    void head() override;
    /// Launches the choice of every row's next token, after head().
    void sample();

private:
    const StepReport& report() const { return rows_.front()->report(); } // has the marks of what rows share
    cuda::Launch afterCopies() const;

    const CudaRowParts p_;
    cuda::Launch& launch_;
    const std::int32_t* const& ids_;
    std::span<CudaRow* const> rows_;
    bool beside_ = false; // rows attend beside each other
    cuda::Event forked_;
};

} // namespace kvscope
