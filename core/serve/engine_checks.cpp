#include "core/serve/engine_checks.h"

#include "base/host_memory.h"

#include <fmt/format.h>

namespace kvscope::serve {
namespace {

constexpr double kMib = 1024.0 * 1024, kGib = 1024 * kMib;

/// What the sentence of a refusal names: the memory that is too small for the request, and the option that raises it.
struct Knob {
    const char *memory, *option;
};
Knob knobOf(Limit limit) {
    if (limit == Limit::HostMemory) return {"host memory for its blocks", "--host-kv"};
    if (limit == Limit::PrefillScratch) return {"scratch memory while its prompt is read", "--scratch"};
    return {"device memory for its index, its newest blocks and what a step attends to", "--device-kv"};
}

} // namespace

void checkServable(const EngineOptions& options, const MethodEntry& method, const MethodUse& use, bool pooled) {
    const std::string reason = whyNotServed(method, use.backend);
    if (!reason.empty() || use.config.diffusion)
        throw Error(ErrorKind::Unsupported,
                    reason.empty()
                        ? fmt::format("{} denoises blocks of tokens, and requests are decoded token by token",
                                      use.model->name())
                        : fmt::format("method {} cannot serve: {}", method.name, reason),
                    "kvscope-cli methods --json says which methods serve");
    if (pooled && (use.spec.ownDeviceTier || use.spec.unitTokens() != use.spec.blockSize))
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("method {} keeps what is on the device by its own rule, so that no pool of all rows can",
                        method.name),
            "use cache=partition");
    if (const auto refusal = whyNotWithKnobs(method, use, options.scheduler)) throw *refusal;
}

void checkChunks(const SchedulerOptions& knobs, int pieceTokens) {
    const int chunk = knobs.chunkTokens;
    if (knobs.prefill != PrefillPlan::Chunks || chunk % pieceTokens == 0) return;
    throw Error(ErrorKind::BadInput,
                fmt::format("chunk_tokens {} does not suit this engine, whose prompts can be cut every {} tokens",
                            chunk, pieceTokens),
                fmt::format("use chunk_tokens={}", (chunk / pieceTokens + 1) * pieceTokens));
}

void checkBudgets(const Budget& budget, std::optional<std::int64_t> deviceRoom) {
    const auto free = double(availableHostMemory());
    const double device = double(budget.device) + double(budget.scratch);
    if (deviceRoom) {
        if (device > double(*deviceRoom))
            throw Error(ErrorKind::OutOfMemory,
                        fmt::format("the budgets of device and scratch memory are {:.1f} GiB together, and {:.1f} GiB "
                                    "of the GPU's memory are free beside the model",
                                    device / kGib, double(*deviceRoom) / kGib),
                        "lower --device-kv or --scratch");
        if (double(budget.host) > free)
            throw Error(ErrorKind::OutOfMemory,
                        fmt::format("the budget of host memory is {:.1f} GiB, and {:.1f} GiB are free",
                                    double(budget.host) / kGib, free / kGib),
                        "lower --host-kv");
    } else if (const double wanted = double(budget.host) + device; wanted > free) {
        throw Error(
            ErrorKind::OutOfMemory,
            fmt::format("the budgets of host, device and scratch memory are {:.1f} GiB together, and {:.1f} GiB "
                        "is free: on the CPU all of it is ordinary memory",
                        wanted / kGib, free / kGib),
            "lower --host-kv, --device-kv or --scratch");
    }
}

void checkSmallestRequest(const Refusal& refusal) {
    if (refusal.limit == Limit::None) return;
    const Knob knob = knobOf(refusal.of);
    throw Error(ErrorKind::OutOfMemory,
                fmt::format("no request can ever run: a prompt of one token with one new token needs {:.3g} MiB of {}, "
                            "and there are {:.3g} MiB",
                            double(refusal.needed) / kMib, knob.memory, double(refusal.available) / kMib),
                fmt::format("give {} at least {}M", knob.option, (refusal.needed >> 20) + 1));
}

Error whyRefused(const Refusal& refusal, const ServeRequest& request) {
    if (refusal.limit == Limit::QueueFull)
        return {ErrorKind::OutOfMemory,
                fmt::format("request {} came when {} others waited, as many as may", request.id, refusal.available),
                "raise max_waiting, or ask again later"};
    const Knob knob = knobOf(refusal.of);
    return {ErrorKind::OutOfMemory,
            fmt::format("request {} of {} prompt tokens and {} new ones can never run: it needs {:.1f} MiB of {}, and "
                        "there are {:.1f} MiB",
                        request.id, request.promptTokens, request.maxTokens, double(refusal.needed) / kMib, knob.memory,
                        double(refusal.available) / kMib),
            fmt::format("give {} at least {}M, or shorten the request", knob.option, (refusal.needed >> 20) + 1)};
}

} // namespace kvscope::serve
