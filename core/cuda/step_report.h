// What a step tells the host. The kernels of the step write a report to device memory, and the report is copied to the
// host while the next step runs. Two steps may be in flight, so there are two reports on the device and two on the
// host.
#pragma once

#include "base/ids.h"
#include "core/cuda/device_memory.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/device/owners.h"

#include <cstddef>
#include <cstdint>

namespace kvscope {

/// Sizes of a report, and which parts it has.
struct ReportNeeds {
    int rows = 0, kvHeads = 0, layers = 0;
    std::size_t capacity = 0;            // blocks of a list of chosen blocks
    bool recorded = true;                // false: only the tokens are copied to the host
    bool blocks = false, scores = false; // the blocks and the scores of every choice
    std::size_t units = 0;               // attention masses of a KV head, with the oracle; 0: none
    std::size_t ownBytes = 0;            // bytes of a layer in the selector's own report
    int halves = 1;                      // 2: the rows are two halves, each with marks and counts of its own
    Elements heads() const { return {rows, kvHeads}; }
};

/// One report, on the device or its copy on the host.
struct StepReport {
    /// Marks of a layer.
    enum Mark {
        kQkv,
        kRope,
        kCompression,
        kStage1,
        kPooling,
        kOffloading,
        kGather,
        kAttention,
        kOracle,
        kReady,   // everything the attention needs is there but transferred blocks
        kLoaded,  // the last transferred block has arrived
        kBack,    // the write-backs begin
        kBackEnd, // the write-backs have ended
        kOLinear,
        kFfn,
        kMarks
    };
    /// Marks of the step.
    enum StepMark { kEmbed, kLmHead, kSample, kEnd, kStepMarks };

    StepReport() = default;
    /// Lays the parts of a report out from `base`. With `base` null only the size counts. @param bytes is set to the
    /// size
    StepReport(const ReportNeeds& needs, char* base, std::size_t& bytes);

    std::int32_t* tokens = nullptr;       // [rows] the first part, because alone it is copied when nothing is recorded
    std::uint64_t* marks = nullptr;       // [halves][layers][kMarks]
    std::uint64_t* stepMarks = nullptr;   // [kStepMarks]
    cuda::SelectionHead* heads = nullptr; // [layers][rows*kvHeads]
    std::uint32_t* counts = nullptr;      // [halves][layers][2] blocks loaded, blocks written back
    PackedBlock* blocks = nullptr;        // [layers][rows*kvHeads][capacity], or null
    float* scores = nullptr;              // [layers][rows*kvHeads][capacity], or null
    float* masses = nullptr;              // [layers][rows*kvHeads][units], or null
    char* own = nullptr;                  // [layers][ownBytes], or null

    /// What one half of the rows reports. firstHead: the head of all rows at which the half begins
    StepReport half(int which, int firstHead) const;

    // Parts of one layer; null where the report has no such part
    cuda::SelectionHead* headsOf(LayerId layer) const { return heads + first(layer); }
    std::uint32_t* countsOf(LayerId layer) const { return counts + 2 * int(layer); }
    PackedBlock* blocksOf(LayerId layer) const {
        return blocks == nullptr ? nullptr : blocks + first(layer) * capacity_;
    }
    float* scoresOf(LayerId layer) const { return scores == nullptr ? nullptr : scores + first(layer) * capacity_; }
    float* massesOf(LayerId layer) const { return masses == nullptr ? nullptr : masses + first(layer) * units_; }
    char* ownOf(LayerId layer) const { return own == nullptr ? nullptr : RowsOf(own, ownBytes_)[int(layer)]; }
    const std::uint64_t* marksOf(LayerId layer) const { return marks + int(layer) * kMarks; }

    /// Where a kernel writes the mark; null: nothing is recorded.
    std::uint64_t* mark(LayerId layer, Mark which) const {
        return recorded_ ? marks + int(layer) * kMarks + which : nullptr;
    }
    std::uint64_t* mark(StepMark which) const { return recorded_ ? stepMarks + which : nullptr; }

private:
    std::size_t first(LayerId layer) const { return Elements(int(layer), heads_); }

    std::size_t heads_ = 0, capacity_ = 0, units_ = 0, ownBytes_ = 0;
    int layers_ = 0;
    bool recorded_ = true;
};

class StepReports {
public:
    static constexpr int kEntries = 2;

    /// Computes the size of a report and asks the arena for the reports of both sides.
    void plan(DeviceArena& arena, const ReportNeeds& needs);
    /// Lays the reports out for a step of another shape that needs no more than what was planned, after open().
    void layOut(const ReportNeeds& needs);
    /// Lays the reports out, after the arena has been taken. @throws Error(OutOfMemory | Device)
    void open();

    const StepReport& device(int entry) const { return device_[entry]; }
    const StepReport& host(int entry) const { return host_[entry]; }
    /// Copies a report to the host, on the stream `copy`.
    void copyOut(int entry, cudaStream_t copy) const;
    /// Waits until the copy of the report is complete.
    void wait(int entry) const;
    /// Copies only the tokens of the report, and waits for them.
    void copyTokens(int entry) const;

private:
    ReportNeeds needs_;
    std::size_t bytes_ = 0; // of one report
    char *region_ = nullptr, *hostRegion_ = nullptr;
    StepReport device_[kEntries], host_[kEntries];
    cuda::Event reported_[kEntries];
};

} // namespace kvscope
