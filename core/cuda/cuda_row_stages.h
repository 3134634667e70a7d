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
    /// `parts.launch` is what the passes use. While the products of one row are placed, it is that row's launch. ids:
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
    // this report has the marks of the work that rows share
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
