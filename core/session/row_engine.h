// What a backend does for requests that come and go. A row is one request: it has memory of its own, which is taken
// when the request joins and given back when it leaves. The rows of a step share the reading of the weights.
#pragma once

#include "core/plan/transfer_plan.h"
#include "core/session/engine.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

namespace kvscope {

/// What the rows of an engine have in common.
struct RowEngineSetup {
    std::shared_ptr<const Model> model;
    Abilities abilities; // what the method can do in this use
    int rows = 1;        // most at a time
    int threads = 0;     // 0: all cores
    /// On a GPU: the products of every row are made apart from the others, so that a row's tokens do not depend on the
    /// rows that share its steps. On the CPU they never depend on them.
    bool invariant = false;
    /// A row's setup, whatever its prompt: rows have its method, layers, level and cache policy, and `plans` has all
    /// windows. It is used only while the engine is made. A GPU then works on all rows with one launch of every kernel
    /// where it can. Null: rows may differ in everything.
    const EngineSetup* usual = nullptr;
    /// How a GPU moves blocks and reads prompts. chunkTokens decides how much memory of the device a prompt takes, and
    /// where the prompt can be cut.
    RowTransfers transfers = {};
    /// On a GPU: all rows, layers and KV heads share one pool of slots (cache=global-lru), of which so many may be in
    /// use. 0: every row has slots of its own. Needs `usual`, and a method whose blocks pass through slots on demand.
    std::int64_t poolSlots = 0;
    /// On a GPU: so many bytes of host memory may be held for KV that goes there. What a row gives back is kept for the
    /// next ones, because a GPU takes long to reach new memory. 0: every row takes memory of its own.
    std::int64_t hostBytes = 0;
};

/// What a row takes of the memory of a device and of the host, in bytes.
struct RowMemory {
    std::int64_t device = 0; // until the row is closed
    std::int64_t slots = 0;  // the part of it that holds the slots of the device tier
    std::int64_t prompt = 0; // what the row takes of the device besides, until its prompt is read
    std::int64_t host = 0;
};

/// One row of a decode step.
struct RowToken {
    RowId row{};
    std::int32_t id = 0; // the token that is fed
    int position = 0;    // of that token
};

/// Used from one thread. Logits, selections, hits and bytes of a row are those of a session that has its prompt alone,
/// however the reading of its prompt was cut and whatever the other rows do; the latter on a GPU only where
/// RowEngineSetup::invariant asks for it, because otherwise the order of a product's sums there depends on how many
/// rows share the step.
class RowEngine {
public:
    virtual ~RowEngine() = default;
    /// Short text, e.g. "cpu: AVX3, 2 threads".
    virtual std::string description() const = 0;
    /// Prompts can be cut at multiples of this number of tokens.
    virtual int pieceTokens() const = 0;
    /// What a row would take. Nothing where the device tier is ordinary memory. @throws Error(Unsupported)
    virtual std::optional<RowMemory> memoryOf(const EngineSetup&) { return {}; }
    /// Bytes of the device that new rows can have now. Nothing where the device tier is ordinary memory.
    virtual std::optional<std::int64_t> deviceRoom() const { return {}; }

    /// A request joins: takes all memory that it needs to its end. `setup` has one sequence, and what it refers to
    /// outlives the row. The row is free. @throws Error(OutOfMemory) with the numbers, and then the row is still free
    virtual void open(RowId row, const EngineSetup& setup) = 0;
    /// The request leaves, wherever it is in its prompt or its answer. All memory of the row is free then.
    virtual void close(RowId row) = 0;

    /// Goes on reading the row's prompt, layer by layer: everything before token `token` of layer `layer`, a multiple
    /// of pieceTokens(). Behind the last layer the logits of the prompt's last token are there.
    /// @return whether all of the prompt is read. @throws Error(Cancelled) between two pieces; it can go on later
    virtual bool readLayers(RowId row, LayerId layer, int token, const std::stop_token& stop) = 0;
    /// Reads the prompt in chunks: takes everything before token `token`, a multiple of pieceTokens(), through all
    /// layers. A prompt that was begun in one of the two ways goes on in that way. On a GPU only where
    /// RowTransfers::chunkTokens asks for it.
    virtual bool readChunk(RowId row, int token, const std::stop_token& stop) = 0;

    /// With a pool of slots: how many the next steps may use, and at least as many as a step selects in a layer.
    virtual void setPoolSlots(std::int64_t /*slots*/) {}
    /// With a pool of slots: the row gives all of its slots back, and later steps load its blocks again. The newest
    /// block of every KV head stays.
    virtual void leavePool(RowId) {}

    /// One decode step of these rows, each of them once. Their prompts are read. With a pool blocks are taken in the
    /// order of the rows here.
    virtual void decode(std::span<const RowToken> rows) = 0;

    /// What was recorded of the row's last step, or of its whole prompt: selections with blocks, hits, bytes, and the
    /// times of the work that the row did not share with others. The record's only sequence is 0. Valid until the row's
    /// next call.
    virtual const StepRecord& record(RowId row) const = 0;
    /// The logits after the row's last step or after its prompt, float32 [vocab]. Valid until the row's next call.
    virtual const float* logits(RowId row) const = 0;
    /// Whether chosenToken gives the next token. If it does not, the caller samples from the logits.
    virtual bool samples() const { return false; }
    /// The row's next token by the sampling of its EngineSetup, after the last step or the prompt's end. Below 0: some
    /// of the logits are infinite or NaN.
    virtual std::int32_t chosenToken(RowId) const { return -1; }
    /// How many of the rows opened so far launch kernels of their own on a GPU, because their method has a selector of
    /// its own, because they are to be invariant, or because the driver put their memory out of the shared kernels'
    /// reach. A step with such a row launches kernels for each of its rows.
    virtual std::int64_t rowsApart() const { return 0; }
};

std::unique_ptr<RowEngine> makeCpuRowEngine(const RowEngineSetup& setup);
/// @throws Error(Unsupported) where this program was built without CUDA or the model is outside its shapes,
/// Error(Device) where there is no GPU, Error(OutOfMemory) with the numbers
std::unique_ptr<RowEngine> makeCudaRowEngine(const RowEngineSetup& setup);

} // namespace kvscope
