// What a backend does for requests that come and go. A row is one request: it has memory of its own, which is taken
// when the request joins and given back when it leaves. The rows of a step share the reading of the weights.
#pragma once

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
    Abilities abilities; // of the method, as it is used
    int rows = 1;        // most at a time
    int threads = 0;     // 0: all cores
    /// On a GPU: every row's products are made by themselves, so that its tokens do not depend on who shares its steps.
    /// On the CPU they never do.
    bool invariant = false;
};

/// What a row takes of a device with memory of its own, and of the host. In bytes.
struct RowMemory {
    std::int64_t device = 0; // until the row is closed
    std::int64_t slots = 0;  // of that, the slots of the device tier
    std::int64_t prompt = 0; // of the device, until its prompt is read
    std::int64_t host = 0;
};

/// One row of a decode step.
struct RowToken {
    int row = 0;
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
    /// Prompts can be cut at multiples of so many tokens.
    virtual int pieceTokens() const = 0;
    /// What a row would take; nothing where the device tier is ordinary memory. @throws Error(Unsupported)
    virtual std::optional<RowMemory> memoryOf(const EngineSetup&) { return {}; }
    /// Bytes of the device that rows can have now; nothing where the device tier is ordinary memory.
    virtual std::optional<std::int64_t> deviceRoom() const { return {}; }

    /// A request joins: takes all memory that it needs to its end. `setup` has one sequence, and what it refers to
    /// outlives the row. The row is free. @throws Error(OutOfMemory) with the numbers, and then the row is still free
    virtual void open(int row, const EngineSetup& setup) = 0;
    /// The request leaves, at any place: what the row had is free.
    virtual void close(int row) = 0;

    /// Goes on reading the row's prompt, layer by layer: everything before token `token` of layer `layer`, a multiple
    /// of pieceTokens(). Behind the last layer the logits of the prompt's last token are there.
    /// @return whether all of the prompt is read. @throws Error(Cancelled) between two pieces; it can go on later
    virtual bool readLayers(int row, int layer, int token, const std::stop_token& stop) = 0;
    /// The same in chunks: all layers of everything before token `token`. A prompt goes on as it was begun.
    virtual bool readChunk(int row, int token, const std::stop_token& stop) = 0;

    /// One decode step of these rows, each of them once. Their prompts are read.
    virtual void decode(std::span<const RowToken> rows) = 0;

    /// Of the row's last step, or of its prompt, all segments together: selections with blocks, hits, bytes, and of the
    /// times those that the row did not share with others. Its sequence is 0. Valid until the row's next call.
    virtual const StepRecord& record(int row) const = 0;
    /// Of the row's last step or of its prompt's end, float32 [vocab]. Valid until the row's next call.
    virtual const float* logits(int row) const = 0;
    /// Whether chosenToken says what follows; if not, the caller samples from the logits.
    virtual bool samples() const { return false; }
    /// The row's next token by the sampling of its EngineSetup, after the last step or the prompt's end. Below 0: some
    /// of the logits are infinite or NaN.
    virtual std::int32_t chosenToken(int /*row*/) const { return -1; }
};

std::unique_ptr<RowEngine> makeCpuRowEngine(const RowEngineSetup& setup);
/// @throws Error(Unsupported) where this program was built without CUDA or the model is outside its shapes,
/// Error(Device) where there is no GPU, Error(OutOfMemory) with the numbers
std::unique_ptr<RowEngine> makeCudaRowEngine(const RowEngineSetup& setup);

} // namespace kvscope
