// The stages of a decode step of rows that come and go, on a GPU.
#pragma once

#include "core/cuda/cuda_row.h"
#include "core/engine/step_order.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Makes embeddings, projections, feed-forwards and logits of all rows together, so that weights are read once; between
/// them each row attends by itself. Rows attend beside each other, each on a stream of its own, with two exceptions
/// that attend one after another: rows whose method has a selector, because selectors multiply in the work space that
/// the products share; and rows whose slots are in a pool, because the pool is asked for all rows at once.
class CudaRowStages final : public Stages {
public:
    /// launch: what the passes use. While project() places the products of one row, it has that row's stream. ids:
    /// device memory, the tokens that the rows feed.
    CudaRowStages(const CudaRowParts& parts, cuda::Launch& launch, const std::int32_t* const& ids)
        : p_(parts), launch_(launch), ids_(ids) {}
    /// @throws Error(OutOfMemory | Device)
    void open() { forked_ = cuda::Event::make(); }

    /// The next step is that of these rows, at least one.
    void begin(std::span<CudaRow* const> rows);

    void embed() override;
    void project(LayerId layer) override;
    void append(LayerId layer) override;
    void choose(LayerId layer) override;
    void lookAhead(LayerId layer) override;
    void load(LayerId layer) override;
    void attend(LayerId layer) override;
    void after(LayerId layer) override;
    void measure(LayerId) override {}
    void finish(LayerId layer) override;
    void head() override;
    /// Launches the choice of every row's next token, after head().
    void sample();

private:
    // The first row's report has the marks of the work that rows share.
    const StepReport& report() const { return rows_.front()->report(); }
    cuda::Launch afterCopies() const;

    const CudaRowParts p_;
    cuda::Launch& launch_;
    const std::int32_t* const& ids_;
    std::span<CudaRow* const> rows_;
    bool beside_ = false; // the rows of the step attend beside each other, each on its own stream
    cuda::Event forked_;
};

} // namespace kvscope
