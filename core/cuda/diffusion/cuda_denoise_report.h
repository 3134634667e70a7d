// What a denoising forward on a GPU tells the host, and the record that is made of it.
#pragma once

#include "base/elements.h"
#include "base/extents.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/gpu_clock.h"
#include "core/session/denoise_engine.h"
#include "kernels/cuda/diffusion/prefix_pages.h"
#include "kernels/cuda/diffusion/unmask.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Sizes of a report, and which parts it has.
struct DenoiseReportNeeds {
    int rows = 0, block = 0, layers = 0, kvHeads = 0;
    int sets = 0;          // active sets of a layer; 0: queries are not compared
    bool active = false;   // which tokens were active
    std::size_t words = 0; // 32-bit words with a bit for each page of a KV head; 0: no pages are chosen
    int tileRows = 0; // rows of tiles, whose densities are reported for every query head; 0: no tiles are chosen, or
                      // nobody records
    int queryHeads = 0;
    bool agnostic = false;  // which pages were chosen once for the block
    bool offloads = false;  // the prefix waits on the host: what was moved
    bool ahead = false;     // pages are asked for before a forward begins: what came of it
    bool kvChanges = false; // how much keys and values changed
    Elements items() const { return {rows, kvHeads}; }
    /// Of one layer.
    Elements densities() const { return {rows, queryHeads, tileRows}; }
};

/// One report, on the device or its copy on the host. Parts that a forward does not write keep the numbers of an
/// earlier forward.
struct DenoiseReport {
    /// Marks of a layer, in their order; then those of transfers. kLoaded and kCame are the times at which the last
    /// block arrived, of those moved on demand and those sent ahead, which began at kSent. A forward that waits for
    /// pages of the host chooses by their keys once they are there: from kWeigh on, where others do from kStage1 on.
    enum Mark {
        kQkv,
        kRope,
        kCompression,
        kStage1,
        kPooling,
        kReady, // for pages that were sent ahead
        kLoad,
        kWeigh,
        kChooseOnce,
        kAttention,
        kOffloading,
        kOLinear,
        kFfn,
        kLoaded,
        kSent,
        kCame,
        kMarks
    };
    /// Marks of the forward.
    enum StepMark { kEmbed, kLmHead, kSample, kEnd, kStepMarks };

    DenoiseReport() = default;
    /// Lays the parts out from `base`. With `base` null only the size counts. @param bytes is set to the size
    DenoiseReport(const DenoiseReportNeeds& needs, std::byte* base, std::size_t& bytes);

    std::uint64_t* marks = nullptr;             // [layers][kMarks]
    std::uint64_t* stepMarks = nullptr;         // [kStepMarks]
    std::uint64_t* active = nullptr;            // [layers][rows*kvHeads], or null
    cuda::BlockCandidate* candidates = nullptr; // [rows*block]
    std::int32_t* ids =
        nullptr; // [rows*block] the blocks' tokens after the forward, where the device writes candidates itself
    float* changes = nullptr;          // [layers][rows][sets][block], or null
    std::uint32_t* pages = nullptr;    // [layers][rows*kvHeads][words], or null
    std::uint32_t* agnostic = nullptr; // likewise: pages that were chosen once for the block, or null
    std::uint32_t* hits = nullptr;    // [layers][rows*kvHeads][words] those of `pages` that were on the device, or null
    std::uint32_t* moved = nullptr;   // [layers][PrefixPagesArgs::kCounts], or null
    cuda::AskedPages* came = nullptr; // [layers][rows*kvHeads], or null
    cuda::SelectionHead* late = nullptr; // [layers][rows*kvHeads] of pages sent ahead those that came late, or null
    float* densities = nullptr;          // [layers][rows][queryHeads][tileRows], or null
    float* kvChanges = nullptr;          // [layers][rows][keys, values][block], or null

    std::uint64_t* mark(LayerId layer, Mark which) const { return marks + int(layer) * kMarks + which; }
    std::uint64_t* activeOf(LayerId layer) const { return part(active, needs_.items(), layer); }
    std::uint32_t* pagesOf(LayerId layer) const { return part(pages, {needs_.items(), needs_.words}, layer); }
    float* changesOf(LayerId layer) const { return part(changes, {needs_.rows, needs_.sets, needs_.block}, layer); }
    std::uint32_t* agnosticOf(LayerId layer) const { return part(agnostic, {needs_.items(), needs_.words}, layer); }
    float* densitiesOf(LayerId layer) const { return part(densities, needs_.densities(), layer); }
    std::uint32_t* hitsOf(LayerId layer) const { return part(hits, {needs_.items(), needs_.words}, layer); }
    std::uint32_t* movedOf(LayerId layer) const { return part(moved, int{cuda::PrefixPagesArgs::kCounts}, layer); }
    cuda::AskedPages* cameOf(LayerId layer) const { return part(came, needs_.items(), layer); }
    cuda::SelectionHead* lateOf(LayerId layer) const { return part(late, needs_.items(), layer); }
    float* kvChangesOf(LayerId layer) const { return part(kvChanges, {needs_.rows, 2, needs_.block}, layer); }
    const DenoiseReportNeeds& needs() const { return needs_; }

private:
    /// A layer's part, which has so many elements; null if there is none.
    template <class T> static T* part(T* ofAll, Elements each, LayerId layer) {
        return ofAll == nullptr ? nullptr : RowsOf(ofAll, each)[int(layer)];
    }
    DenoiseReportNeeds needs_;
};

/// Which kernels a forward has: forwards of one shape are one graph.
struct ForwardShape {
    bool writes = false;      // some row has masked positions
    bool sparse = false;      // some row chooses pages
    bool cleans = false;      // some row's keys and values are kept
    bool choosesOnce = false; // some row chooses for the block's forwards that follow
    int number() const { return int(writes) | int(sparse) << 1 | int(cleans) << 2 | int(choosesOnce) << 3; }
    static constexpr int kShapes = 16;
};

/// Makes the record of a forward from its report. Remembers which pages each KV head chose in the forward before, to
/// count how many of them are chosen again.
class DenoiseReportReader {
public:
    /// pageBytes: of one page of one KV head, keys and values
    DenoiseReportReader(const DenoiseOptions& options, const DenoiseReportNeeds& needs, const GpuClock& clock,
                        std::int64_t pageBytes);
    /// Fills everything of the record but what the session adds. flags: BlockRow::Flag of each of `rows`.
    void fill(const DenoiseReport& report, ForwardShape shape, std::span<const DenoiseRow> rows,
              std::span<const std::uint32_t> flags, StepRecord& record);

private:
    struct Pages { // that a (layer, sequence, KV head) chose; known: in the forward before, for the same block
        std::vector<std::int32_t> list;
        bool known = false;
    };
    void fillStages(const DenoiseReport& report, ForwardShape shape, LayerId layer, LayerRecord& out) const;
    void fillMoved(const DenoiseReport& report, LayerId layer, LayerRecord& out) const;
    void fillHead(const DenoiseReport& report, LayerId layer, const DenoiseRow& row, std::uint32_t flags,
                  KvHeadId kvHead, StepRecord& record);
    void fillTiles(const DenoiseReport& report, LayerId layer, const DenoiseRow& row, DenoiseLayer& out,
                   DenoiseStep& denoise) const;
    void fillKvChanges(const DenoiseReport& report, const DenoiseRow& row, DenoiseLayer& out,
                       DenoiseStep& denoise) const;
    void fillSelection(const DenoiseReport& report, LayerId layer, const DenoiseRow& row, KvHeadId kvHead,
                       std::vector<std::int32_t> pages, StepRecord& record);

    const DenoiseOptions& options_;
    const DenoiseReportNeeds needs_;
    const GpuClock& clock_;
    const std::int64_t pageBytes_;
    const Extents<LayerId, RowId, KvHeadId> pagesAt_;
    std::vector<Pages> previous_;
};

} // namespace kvscope
