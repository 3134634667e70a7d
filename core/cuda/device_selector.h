// The code of a method on the GPU: the device form of core/select/selector.h. Methods that are data (SelectionSpec)
// need no selector. A method that remembers or scores something else has a DeviceSelector (core/cuda/select/). The
// method's entry names the selector (MethodEntry::onDevice), what it asks for and what it can do (Abilities).
//
// Everything a step does is recorded into one graph: calls here only launch kernels on `Launch::stream`. They allocate
// nothing, wait for nothing and read nothing back; what differs from step to step lies in device memory. A layer of a
// decode step calls, in this order:
//   append   stage compression   the new token enters what the method remembers
//   choose   stage1, pooling     scores; hands the engine block scores or a choice (SelectArgs::givenScores, chosen)
//   lookAhead   stage1, pooling  with Ahead::NextLayer: does for the next layer what choose does, so that the blocks
//                                travel on a second stream while this layer attends; choose is then not called for
//                                the next layer
//   attend   stage2              where the method needs more or other than attention over the chosen blocks
//   after    offloading          reads what the attention has left; asks for blocks of other layers or the next step
// For layers that attend to everything only attendPrompt, prompt and promptDone are called, and lookAhead where the
// next layer chooses. With SelectionSpec::ownDeviceTier the engine has no slots, selection or transfers for sparse
// layers: the selector takes the prompt's keys and values in promptDone and the new token's from DeviceStep::newKey and
// newValue, attends, and fills the whole record.
#pragma once

#include "base/ids.h"
#include "base/indexed.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_model.h"
#include "core/model/model.h"
#include "core/plan/layer_plan.h"
#include "core/plan/selection_spec.h"
#include "core/select/parameters.h"
#include "core/session/stage_clock.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/token/token.h"

#include <memory>
#include <vector>

namespace kvscope {

/// Tables in device memory, [rows*kvHeads] each: where every head's part of an array begins, counted from the layer's
/// pointer to that array. For rows with memory of their own (RowPlaces).
struct LayerPlaces {
    std::int64_t *blocks = nullptr, *store = nullptr; // store: as cuda::BlockMove::store
    std::int64_t *ranges = nullptr, *windows = nullptr, *pooledScores = nullptr, *tokens = nullptr;
    std::int64_t *recentKeys = nullptr, *recentScores = nullptr;
    std::int64_t *map = nullptr, *lastUse = nullptr;
    std::int64_t *previous = nullptr, *hasPrevious = nullptr;
};

/// What a layer does (LayerPlan), and pointers to its memory. All are device pointers but storeHost.
struct DeviceLayerState : LayerPlan {
    __nv_bfloat16* blocks = nullptr;      // the resident store, or the slot pool of an offloaded layer
    const __nv_bfloat16* store = nullptr; // offloaded: pinned host memory, as the device sees it
    __nv_bfloat16* storeHost = nullptr;   // offloaded: the same memory, as the host sees it
    __nv_bfloat16* allKeys = nullptr;     // with the oracle: blocks with every key, where the tiers lack some of them
    cuda::DeviceIndex index;
    std::int32_t *map = nullptr, *lastUse = nullptr; // [sequence*kvHeads, slots]; see cuda::SelectArgs
    // Where the slots are one pool of all rows (DevicePool), map is PoolRow::slotOf. There, and where slots hold full
    // blocks in a format of their own (CudaEngineOptions::quantised), the newest block of each KV head lies here.
    __nv_bfloat16* newest = nullptr;                          // [sequence*kvHeads] blocks
    std::uint8_t *previous = nullptr, *hasPrevious = nullptr; // see cuda::SelectArgs
    const PlantedStream* planted = nullptr;                   // [rows] or null, see cuda::SelectArgs
    std::uint32_t* counts = nullptr;                          // [2] blocks the step loads and writes back
    LayerPlaces places; // all null in a session, whose RowTable says for all layers where heads begin
};

/// Tables in device memory that all layers have in common (RowTable).
struct SelectorTables {
    const std::int64_t *const &blockFirst, *const &windowFirst, *const &tokenFirst; // see cuda::DeviceIndex
    const std::int64_t* const& poolFirst;         // [sequence*kvHeads] first slot of the head
    const float *const &ropeCos, *const &ropeSin; // [table rows, dim/2]
    const std::int32_t* const& ropeFirst;         // [sequence] table row of a sequence's position 0
};

/// What a selector may use; everything outlives the selector. Pointers to device memory are valid after
/// DeviceArena::take.
struct DeviceSelectorContext {
    const cuda::Launch& launch;
    const ModelConfig& config;
    const Model* model; // null: random weights (benchmarks)
    const SelectionSpec& spec;
    cuda::AttentionShape shape;
    PerRow<int> maxTokens, promptTokens; // of each sequence
    PerLayer<cuda::HeadNorms> headNorms;
    int maxBlocks = 0;   // most blocks of a sequence
    int capacity = 0;    // of the lists of chosen blocks
    int pieceTokens = 0; // most tokens of a DevicePromptPiece
    int slots = 0;       // per (sequence, offloaded layer, KV head)
    bool offload = true;
    bool ranksBlocks = false; // the selector writes lastUse (CachePolicy::byWorth)
    int transferBlocks = 0;   // thread blocks of a transfer of KV blocks beside other kernels
    bool record = true;       // false: no reports and no marks
    bool oracle = false;      // the oracle measures the attention that all keys would get
    RecordLevel level = RecordLevel::Counters;
    const PinnedMemory* store = nullptr; // use this memory for what goes to the host, if large enough
    const PerLayer<DeviceLayerState>& layers;
    SelectorTables tables;
    const DeviceModel& weights;
    const std::unique_ptr<cuda::Linear>& linear; // made after plan()
    int rows() const { return int(maxTokens.size()); }
    /// Whether the layer exists and chooses what it attends to. Callers ask about the layer after theirs.
    bool sparse(LayerId layer) const { return int(layer) < layers.count() && layers[layer].sparse; }
    int heads() const { return rows() * shape.kvHeads; }
    /// KV blocks of all heads of all sequences in a layer.
    std::size_t allBlocks() const {
        std::size_t all = 0;
        for (const int tokens : maxTokens) all += Elements(spec.grid.blocks(tokens), shape.kvHeads);
        return all;
    }
    /// Elements of a token's queries, [queryHeads, dim].
    Elements queryWidth() const { return {shape.queryHeads, shape.dim}; }
};

/// n consecutive tokens of a prompt in one layer. prompt() gets them after their attention, attendPrompt() and
/// choosePrompt() before it, when `logSums` is not written yet.
struct DevicePromptPiece {
    LayerId layer{};
    RowId sequence{};
    int first = 0, n = 0, promptTokens = 0;
    const float* x = nullptr; // [n, hidden] the residual stream before the layer
    /// [n, (queryHeads + 2 kvHeads)*dim], before rotation, after head norms. With a latent of the queries: [n,
    /// queryRank + dim], that latent and the key, before their norms.
    const float* qkv = nullptr;
    const __nv_bfloat16* q = nullptr;      // [n, queryHeads*dim], rotated
    const __nv_bfloat16* blocks = nullptr; // of the sequence: head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;           // in elements
    const float* logSums = nullptr;        // [n, queryHeads] of the attention, where Abilities::logSums asks for them
    const float* tokenScores = nullptr;    // of the sequence's eviction head: head g's at g*scoreStride; or null
    std::int64_t scoreStride = 0;
};

/// One layer of a decode step; row = sequence.
struct DeviceStep {
    LayerId layer{};
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows]
    const float* x = nullptr;               // [rows, hidden] the residual stream before the layer
    const float* qkv = nullptr; // [rows, (queryHeads + 2 kvHeads)*dim], before head norms and rotation; with a latent
                                // of the queries as in DevicePromptPiece
    const __nv_bfloat16* q = nullptr; // [rows, queryHeads*dim], rotated
    const __nv_bfloat16 *newKey = nullptr,
                        *newValue = nullptr; // [rows, kvHeads*dim] rotated
    std::uint64_t *stage1Mark = nullptr, *poolingMark = nullptr, *offloadingMark = nullptr; // null: not recorded
    char* report =
        nullptr; // reportBytes() of this layer, copied to the host with the step's report; null: not recorded
    const float* blockLogSums = nullptr; // with the oracle: [rows, queryHeads, maxBlocks] of all blocks, for `after`
};

class DeviceSelector {
public:
    virtual ~DeviceSelector() = default;

    /// Asks for all memory that the selector will use, on the device and on the host; it is taken afterwards. Memory
    /// that holds keys and values or an index has the key under which the method's entry declares it
    /// (MethodEntry::memory); all other memory is scratch.
    virtual void plan(DeviceArena& arena) = 0;
    /// Called when the memory has been taken: uploads what does not change. May wait.
    virtual void begin() {}
    /// Bytes that a layer of a step reports to the host, a multiple of 16.
    virtual std::size_t reportBytes() const { return 0; }

    /// May attend to a piece of a prompt in the method's own way; args are those of full attention. @return whether
    /// this call has done the attention; else the engine does full attention
    virtual bool attendPrompt(const DevicePromptPiece&, const cuda::PrefillAttentionArgs& /*args*/) { return false; }
    virtual void prompt(const DevicePromptPiece&) {}
    /// Called when the whole prompt of a sequence is in `blocks`. For filled contexts (benchmarks) this is called
    /// without prompt().
    virtual void promptDone(LayerId, RowId /*sequence*/, int /*tokens*/, const __nv_bfloat16* /*blocks*/,
                            std::int64_t /*headStride*/) {}

    /// With ownDeviceTier: how many bytes of the sequence's prompt went to the host.
    virtual std::int64_t storedBytes(LayerId, RowId /*sequence*/) const { return 0; }

    virtual void append(const DeviceStep&) {}
    /// Hands scores (args.score = Given) or a choice (args.chosen) to the engine's selection, which follows.
    virtual void choose(const DeviceStep& step, cuda::SelectArgs& args) = 0;
    /// Called with Ahead::NextLayer where the next layer, `target` = next(step.layer), chooses what it attends to. The
    /// index of that layer lacks the step's token (args.unseen is 1). With ownDeviceTier args are empty and the
    /// engine does nothing more.
    virtual void lookAhead(const DeviceStep& /*step*/, LayerId /*target*/, cuda::SelectArgs&) {}
    /// Called with SelectionSpec::sparsePrefill before the attention, for the tokens of a prompt piece that choose
    /// together: at most BatchLayout::kSparsePrefillRows of them, whose x and q the piece points at.
    virtual void choosePrompt(const DevicePromptPiece&, cuda::SelectArgs&) {}
    /// Called after the transfers; may change what is attended or attend itself. @return whether this call has written
    /// the output
    virtual bool attend(const DeviceStep&, cuda::DecodeAttentionArgs&) { return false; }
    virtual void after(const DeviceStep&) {}

    /// Completes a layer's record from what the layer's kernels reported (host memory). firstSelection: where the
    /// layer's selections begin in the record; the engine has filled them, but not with ownDeviceTier. active:
    /// sequences, ascending.
    virtual void fill(LayerId, const char* /*report*/, std::span<const RowId> /*active*/, LayerRecord&, StepRecord&,
                      std::size_t /*firstSelection*/) const {}
};

} // namespace kvscope
