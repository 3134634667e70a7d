// The stages of a denoising forward on the CPU backend: several queries per row, and keys and values that stay only
// after a block's clean forward.
#pragma once

#include "base/indexed.h"
#include "core/engine/cpu/cpu_block_attention.h"
#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/engine/cpu/cpu_page_bounds.h"
#include "core/engine/cpu/cpu_prefix_transfers.h"
#include "core/engine/cpu/cpu_tiles.h"
#include "core/engine/step_order.h"
#include "core/session/denoise_engine.h"

#include <optional>
#include <vector>

namespace kvscope {

/// All memory is taken once, except for the lists of a forward, which grow when needed and are kept between forwards.
/// Where a method chooses pages, the time counts for these stages: compression, while queries are compared with those
/// of the forward before and the active tokens are named; stage1, while pages are scored; pooling, while pages are
/// chosen and united; offloading, while what the next forward and the next blocks need is kept; stage2 during the
/// attention, or `attention` where every row attends to the whole prefix. Where no pages are chosen, all of that counts
/// for `attention`.
class CpuDenoiseStages final : public Stages {
public:
    /// Memory of a forward's tokens, [rows * block, hidden], and of its wanted logits, [rows * block, vocab].
    struct Rows {
        float* x = nullptr;
        float* logits = nullptr;
    };
    /// Everything passed must outlive this object.
    CpuDenoiseStages(const DenoiseSetup& setup, Kernels& kernels, KvCache& cache, const RopeTables& rope,
                     CpuLayerPasses& passes, StageClock& clock, Rows rows);

    /// Whether the changes of keys and values are recorded: in runs of full attention, as LoSA's paper measures them.
    static bool recordsKv(const DenoiseSetup& setup) {
        return setup.level != RecordLevel::Counters && !setup.options.pages;
    }

    /// Begins a forward of these rows, whose results go to `record`; record.layers has its size already. Both must live
    /// until the forward is done.
    void begin(std::span<const DenoiseRow> rows, StepRecord& record);
    /// Keys and values of tokens become part of a sequence's prefix. k, v [tokens, kvHeads, dim]
    void keep(LayerId layer, RowId sequence, int first, int tokens, const float* k, const float* v);
    /// Adds to a prompt's layer what `keep` sent to the host.
    void accountStored(LayerRecord& record) {
        if (transfers_) transfers_->account(record, false);
    }
    /// Views of the first `tokens` tokens of a KV head's prefix.
    void viewPrefix(LayerId layer, RowId sequence, KvHeadId kvHead, int tokens, std::vector<KvBlockView>& views);

    void embed() override;
    void project(LayerId layer) override;
    void append(LayerId layer) override;
    void choose(LayerId layer) override;
    void lookAhead(LayerId) override {}
    void load(LayerId layer) override;
    void attend(LayerId layer) override;
    void after(LayerId layer) override;
    void measure(LayerId layer) override;
    void finish(LayerId layer) override;
    void head() override;

    std::span<const float> logits(int row, int token) const;

private:
    /// What a sequence's layer remembers from one forward of a block to the next.
    struct Memory {
        AlignedBuffer<float> queries;    // [block, queryHeads, dim]
        AlignedBuffer<float> prefix;     // [block, queryHeads, valueDim] attention over the prefix
        AlignedBuffer<float> prefixSums; // [block, queryHeads] its log sums
        AlignedBuffer<float> keys;       // [block, kvHeads, dim], where changes of keys and values are recorded
        AlignedBuffer<float> values;     // likewise
        std::vector<std::vector<std::uint8_t>> agnostic = {}; // [KV head][complete pages] chosen once for the block
    };
    /// One KV head of a row in the present layer.
    struct Head {
        std::uint64_t active = 0;               // tokens that attend to the prefix
        Numbered<std::uint8_t> chosen;          // [pages]
        std::vector<std::int32_t> pages;        // united, ascending; only where sparse
        std::vector<std::uint8_t> hit;          // for each page, whether it was on the device; only where pages travel
        std::vector<KvBlockView> prefix, block; // what they attend to
        AlignedBuffer<float> own;               // keys and values of the block, as KV blocks
    };
    /// Where something lies in the arrays of a forward, or of a sequence's layer.
    struct Places {
        Places(const ModelConfig& config, int sequences, int block, int sets);
        Extents<RowId, LayerId> memory;
        Extents<int, KvHeadId> head;   // [rows, KV heads]
        Extents<int, int, int> change; // [rows, sets, block]
        QueryExtents query, out;       // [rows * block, KV heads, group, channels], as in TokenRows
        KeyExtents key;                // [rows * block, KV heads, channels]
        Extents<int, int> sum;         // [rows * block, query heads]
    };
    /// What a run keeps for its trace and for an observer.
    struct Recorded {
        bool changes = false;   // of queries, whether or not anything follows from them
        bool kvChanges = false; // of keys and values too
        DenoiseObserver* observer = nullptr;
    };
    /// The present forward.
    struct Forward {
        NumberedSpan<const DenoiseRow> rows;
        StepRecord* record = nullptr;
        std::vector<std::int32_t> tokens; // ids of all rows' blocks
        Numbered<int> logitsAt;           // [rows * block] place among the logits; -1: not wanted
    };
    /// What the guess of the next forward's pages is made from, where pages are asked for before a forward begins.
    struct AskedAhead {
        Numbered<std::vector<std::int32_t>> lastIds; // [sequence] tokens of its block in its last forward
        std::vector<std::uint64_t> asking;           // [row] tokens whose queries say what is asked for
    };
    /// Results of the attention within the blocks.
    struct Within {
        std::vector<float> out, sums; // at_.out, at_.sum
    };
    Memory& memory(LayerId layer, RowId sequence);
    /// row: of the forward, whose sequence is forward_.rows[row].sequence.
    Head& headOf(int row, KvHeadId kvHead) { return heads_[at_.head.offset(row, kvHead)]; }
    IdRange<KvHeadId> kvHeads() const { return idsUpTo<KvHeadId>(config_.kvHeads); }
    const DenoiseRow& rowAt(int row) const { return forward_.rows[row]; }
    int rowCount() const { return int(forward_.rows.size()); }
    LayerRecord& recordOf(LayerId layer) { return forward_.record->layers[index(layer)]; }
    template <class Work> void timed(LayerId layer, Stage stage, Work&& work) {
        clock_.run(recordOf(layer), options_.pages ? stage : Stage::Attention, work);
    }
    const float* queriesOf(int row) const;
    bool compares(const DenoiseRow& row) const {
        return row.step > 0 && (recorded_.changes || (isSparse(row) && !options_.everyToken));
    }
    bool isSparse(const DenoiseRow& row) const;
    bool makesMask(const DenoiseRow& row) const {
        return tiles_ && row.first > 0 && !row.clean && row.step == options_.firstSparseStep() - 1;
    }
    void makeMask(LayerId layer, int row);
    void chooseAgnostic(LayerId layer, int row);
    std::span<const std::uint8_t> agnosticPages(LayerId layer, RowId sequence, KvHeadId kvHead);
    void choosePagesOf(LayerId layer, int row, KvHeadId kvHead, std::span<std::uint8_t> chosen);
    void recordTiles(LayerId layer, int row, KvHeadId kvHead, DenoiseLayer& out);
    void recordKvChanges(LayerId layer, int row);
    void askAhead();
    void forecast(LayerId layer);
    void compare(LayerId layer, int row);
    void nameActive(int row);
    void packOwn(int row, KvHeadId kvHead);
    void scorePages(LayerId layer);
    void unite(LayerId layer, int row, KvHeadId kvHead);
    void viewPages(LayerId layer, int row, KvHeadId kvHead);
    void attendPrefix(LayerId layer);
    void attendBlock();
    void merge(LayerId layer, int row);
    void recordHead(LayerId layer, int row, KvHeadId kvHead);
    int pagesOf(int tokens) const { return (tokens + layout_.blockSize - 1) / layout_.blockSize; }

    const DenoiseOptions options_;
    const ModelConfig& config_;
    const Recorded recorded_;
    Kernels& kernels_;
    KvCache& cache_;
    const BlockLayout layout_;
    const RopeTables& rope_;
    CpuLayerPasses& passes_;
    StageClock& clock_;
    const Rows buffers_;
    CpuBlockAttention attention_;
    std::optional<CpuTiles> tiles_;
    std::optional<CpuPrefixTransfers> transfers_; // where the prefix waits on the host
    const int sets_;                              // sets of active tokens in a row: one, or one for each KV head
    const Places at_;
    std::vector<Memory> memories_; // at_.memory

    Forward forward_;
    std::vector<Head> heads_;    // at_.head
    std::vector<float> changes_; // at_.change
    std::vector<CpuBlockAttention::Work> work_;
    CpuPageBounds bounds_; // a head for each of heads_
    AskedAhead ahead_;
    Within within_;
};

} // namespace kvscope
