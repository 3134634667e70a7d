#include "profiler/tune/measurement.h"

#include "core/trace/trace_sink.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope {
namespace {

constexpr double kUnmeasured = std::numeric_limits<double>::quiet_NaN();
constexpr double kPromptShare = 0.7; // share of the progress for reading the prompts

StepSums sumsOf(const SessionSummary& s, bool modelledLink) {
    return {s.steps,  s.decodedTokens, s.hits,
            s.misses, s.h2dBytes,      double(s.decodeNs) + (modelledLink ? double(s.exposedNs) : 0.0)};
}

StepSums difference(const StepSums& after, const StepSums& before) {
    return {after.steps - before.steps,   after.tokens - before.tokens,     after.hits - before.hits,
            after.misses - before.misses, after.h2dBytes - before.h2dBytes, after.ns - before.ns};
}

/// Prompts of the set by their numbers.
TokenIds promptsOf(const PromptSet& set, std::span<const std::size_t> numbers) {
    TokenIds prompts;
    for (const std::size_t number : numbers) prompts.push_back(set.prompts[number].ids);
    return prompts;
}

/// The numbers of the prompts of each batch.
std::vector<std::vector<std::size_t>> batchesOf(const PromptSet& set, int batch) {
    std::vector<std::vector<std::size_t>> batches;
    const std::size_t all = set.prompts.size(), size = std::size_t(batch);
    for (std::size_t first = 0; first < all; first += size) {
        std::vector<std::size_t>& numbers = batches.emplace_back();
        for (std::size_t i = 0; i < size; ++i) numbers.push_back((first + i) % all);
    }
    return batches;
}

/// Calls work(numbers, how many of them are new, progress) for every batch.
template <class Work> void forEachBatch(const PromptSet& set, int batch, const Progress& progress, const Work& work) {
    const auto batches = batchesOf(set, batch);
    for (std::size_t i = 0; i < batches.size(); ++i) {
        const Progress part = [&](double f, std::string_view what) {
            report(progress, (double(i) + f) / double(batches.size()), what);
        };
        work(batches[i], std::min(std::size_t(batch), set.prompts.size() - i * std::size_t(batch)), part);
    }
}

} // namespace

const char* nameOf(QualityMeasure measure) { return measure == QualityMeasure::Answered ? "answered" : "agreement"; }

StepSums& StepSums::operator+=(const StepSums& other) {
    steps += other.steps;
    tokens += other.tokens;
    hits += other.hits;
    misses += other.misses;
    h2dBytes += other.h2dBytes;
    ns += other.ns;
    return *this;
}

double StepSums::stepNs() const { return steps > 0 ? ns / steps : kUnmeasured; }
double StepSums::bytesPerToken() const { return tokens > 0 ? double(h2dBytes) / double(tokens) : kUnmeasured; }
double StepSums::hitRate() const { return hits + misses > 0 ? double(hits) / double(hits + misses) : kUnmeasured; }
double StepSums::tokensPerSecond() const { return ns > 0 ? double(tokens) * 1e9 / ns : kUnmeasured; }

DecodedBatch decodeBatch(const std::shared_ptr<const Model>& model, SessionOptions options, const TokenIds& prompts,
                         const TokenIds* forced, const Progress& progress, const std::stop_token& stop) {
    options.stopAtEos = false; // so that every method makes as many steps
    options.sampling = {};
    if (forced != nullptr) options.twoInFlight = false; // a forced token must be there before the next step begins
    const bool modelled = options.backend == Backend::Cpu;
    const int newTokens = options.maxNewTokens;
    NullSink sink;
    DecodeSession session(model, prompts, std::move(options), sink);
    session.prefill([&](double f, std::string_view what) { report(progress, f * kPromptShare, what); }, stop);
    DecodedBatch out;
    StepSums before;
    int cold = 0;
    std::vector<std::int32_t> next(prompts.size());
    for (std::size_t step = 0;; ++step) {
        throwIfCancelled(stop);
        report(progress, kPromptShare + (1 - kPromptShare) * double(step + 1) / newTokens, "decoding");
        if (forced != nullptr) {
            for (std::size_t s = 0; s < next.size(); ++s) next[s] = (*forced)[s][step];
            session.forceNextTokens(next);
        }
        if (!session.step()) break;
        const StepSums now = sumsOf(session.summary(), modelled);
        if (session.summary().cold.steps == cold) out.sums += difference(now, before);
        cold = session.summary().cold.steps;
        before = now;
        if (session.finished()) break;
    }
    if (out.sums.steps == 0) out.sums = before; // all steps were cold
    session.end(RunStatus::Finished);
    out.generated = session.generated();
    return out;
}

SessionOptions sessionOf(const TuneCandidate& candidate, SessionOptions base) {
    base.method = candidate.method;
    base.settings = candidate.settings;
    base.offload = candidate.offload;
    if (candidate.deviceSlots) base.deviceKvBlocks = *candidate.deviceSlots;
    return base;
}

Reference referenceOf(const std::shared_ptr<const Model>& model, const PromptSet& set, const MeasureOptions& options,
                      const Progress& progress, const std::stop_token& stop) {
    SessionOptions full = options.session;
    full.method = "full";
    full.offload = false;
    Reference reference;
    forEachBatch(set, options.batch, progress, [&](const auto& numbers, std::size_t fresh, const Progress& part) {
        DecodedBatch decoded = decodeBatch(model, full, promptsOf(set, numbers), nullptr, part, stop);
        decoded.generated.resize(fresh);
        for (auto& ids : decoded.generated) reference.generated.push_back(std::move(ids));
    });
    return reference;
}

TuneMeasurement measure(const std::shared_ptr<const Model>& model, const TuneCandidate& candidate, const PromptSet& set,
                        const Reference& reference, const MeasureOptions& options, const Progress& progress,
                        const std::stop_token& stop) {
    const SessionOptions session = sessionOf(candidate, options.session);
    const bool agreement = options.measure == QualityMeasure::Agreement;
    // A GPU waits for forced tokens, so that its time is taken once more without them.
    const bool timedApart = agreement && session.backend == Backend::Cuda;
    TuneMeasurement result;
    forEachBatch(set, options.batch, progress, [&](const auto& numbers, std::size_t fresh, const Progress& part) {
        if (result.gaveUp) return;
        const TokenIds prompts = promptsOf(set, numbers);
        TokenIds forced;
        if (agreement)
            for (const std::size_t number : numbers) forced.push_back(reference.generated[number]);
        const DecodedBatch decoded = decodeBatch(model, session, prompts, agreement ? &forced : nullptr, part, stop);
        if (!timedApart)
            result.sums += decoded.sums;
        else if (numbers.front() == 0)
            result.sums = decodeBatch(model, session, prompts, nullptr, {}, stop).sums;
        for (std::size_t s = 0; s < fresh; ++s) {
            const std::vector<std::int32_t>& ids = decoded.generated[s];
            if (!agreement) {
                ++result.quality.all;
                result.quality.good += answers(model->tokenizer().decode(ids), set.prompts[numbers[s]].answer) ? 1 : 0;
                continue;
            }
            // The first token comes from reading the prompt, before any decode step.
            for (std::size_t i = 1; i < ids.size(); ++i) {
                ++result.quality.all;
                result.quality.good += ids[i] == forced[s][i] ? 1 : 0;
            }
        }
        if (agreement) return;
        const double all = double(set.prompts.size()), missed = double(result.quality.all - result.quality.good);
        result.gaveUp = all - missed < options.giveUpBelow * all && result.quality.all < std::int64_t(all);
    });
    return result;
}

} // namespace kvscope
