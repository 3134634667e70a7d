#include "core/eval/eval.h"

#include "core/prompt/prompts.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>

namespace kvscope {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// -log p(id). The sum over the whole vocabulary is made in double precision.
double negativeLogLikelihood(std::span<const float> logits, std::int32_t id) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double(logit) - largest);
    return largest + std::log(sum) - double(logits[std::size_t(id)]);
}

class SelectionMeans final : public OracleObserver {
public:
    void observe(const OracleRecord& r) override {
        ++sum_.selections;
        sum_.mass += double(r.mass);
        sum_.bestMass += double(r.bestMass);
        sum_.recall += double(r.recall);
        if (std::isnan(r.farMass)) return;
        ++sum_.farSelections;
        sum_.farMass += double(r.farMass);
        sum_.farBestMass += double(r.farBestMass);
        sum_.farRecall += double(r.farRecall);
    }
    SelectionScore means() const {
        SelectionScore result = sum_;
        for (double* value : {&result.mass, &result.bestMass, &result.recall})
            *value = result.selections > 0 ? *value / double(result.selections) : kNan;
        for (double* value : {&result.farMass, &result.farBestMass, &result.farRecall})
            *value = result.farSelections > 0 ? *value / double(result.farSelections) : kNan;
        return result;
    }

private:
    SelectionScore sum_;
};

/// Generates an answer to one needle prompt and adds the session's counts to the result. @return whether the expected
/// answer came first
bool answersNeedle(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                   const NeedleOptions& needle, EvalResult& result, double& localitySum, std::int64_t& localityCount,
                   const Progress& progress, const std::stop_token& stop) {
    const Tokenizer& tokenizer = model->tokenizer();
    const NeedlePrompt prompt = makeNeedlePrompt(tokenizer, needle);
    NullSink sink;
    DecodeSession session(model, {tokenizer.encode(prompt.text)}, options, sink);
    session.prefill(progress, stop);
    do throwIfCancelled(stop);
    while (session.step());
    session.end(RunStatus::Finished);
    const SessionSummary& summary = session.summary();
    result.decodeSteps += summary.steps;
    result.hits += summary.hits;
    result.misses += summary.misses;
    result.h2dBytes += summary.h2dBytes;
    result.exposedNs += summary.exposedNs;
    result.decodeNs += summary.decodeNs;
    if (summary.localityCount > 0) localitySum += summary.localityMean * double(summary.localityCount);
    localityCount += summary.localityCount;
    const std::string text = tokenizer.decode(session.generated().front());
    const std::size_t first = text.find_first_not_of(' ');
    return first != std::string::npos && text.compare(first, prompt.answer.size(), prompt.answer) == 0;
}

} // namespace

double TextScore::perplexity() const { return perplexity(0, nll.size()); }

double TextScore::perplexity(std::size_t first, std::size_t count) const {
    if (count == 0) return kNan;
    const auto begin = nll.begin() + std::ptrdiff_t(first);
    return std::exp(std::accumulate(begin, begin + std::ptrdiff_t(count), 0.) / double(count));
}

double EvalResult::accuracy() const {
    int prompts = 0, correct = 0;
    for (const NeedleScore& score : needles) {
        prompts += score.prompts;
        correct += score.correct;
    }
    return prompts > 0 ? double(correct) / prompts : kNan;
}

double EvalResult::tokensPerSecond() const {
    return decodeNs > 0 ? double(decodeSteps) * 1e9 / double(decodeNs) : kNan;
}

double EvalResult::tokensPerSecondWithLink() const {
    const double ns = double(decodeNs) + (timing == Timing::Modelled ? double(exposedNs) : 0.);
    return ns > 0 ? double(decodeSteps) * 1e9 / ns : kNan;
}

TextScore scoreText(const std::shared_ptr<const Model>& model, SessionOptions options,
                    std::span<const std::int32_t> text, int context, int count, const Progress& progress,
                    const std::stop_token& stop) {
    if (context < 1 || count < 1 || text.size() < std::size_t(context) + std::size_t(count))
        throw Error(ErrorKind::BadInput,
                    fmt::format("a text of {} tokens does not hold a context of {} and {} tokens to score", text.size(),
                                context, count),
                    "give a longer text or fewer tokens");
    options.maxNewTokens = count;
    options.stopAtEos = false;
    options.twoInFlight = false; // a forced token must be there before the next step begins
    options.sampling = {};
    const auto vocab = std::size_t(model->config().vocab);
    NullSink sink;
    DecodeSession session(model, {{text.begin(), text.begin() + context}}, options, sink);
    constexpr double kPromptShare = 0.7; // share of the progress bar for reading the prompt
    session.prefill([&](double f, std::string_view what) { report(progress, f * kPromptShare, what); }, stop);
    TextScore score;
    for (int i = 0; i < count; ++i) {
        throwIfCancelled(stop);
        report(progress, kPromptShare + (1 - kPromptShare) * i / count, "scoring the text");
        const std::int32_t id = text[std::size_t(context + i)];
        score.nll.push_back(negativeLogLikelihood({session.logits(0), vocab}, id));
        if (i + 1 == count) break;
        session.forceNextTokens({id});
        session.step();
    }
    session.end(RunStatus::Finished);
    return score;
}

EvalResult evaluate(const std::shared_ptr<const Model>& model, const EvalCase& row, int context,
                    std::span<const std::int32_t> text, const EvalOptions& options, const Progress& progress,
                    const std::stop_token& stop) {
    EvalResult result;
    result.row = row;
    result.context = context;
    SessionOptions session;
    session.backend = options.backend;
    session.kvType = options.kvType;
    session.method = row.method;
    session.settings = row.settings;
    session.link = options.link;
    session.threads = options.threads;
    session.stopAtEos = false; // so that every method decodes as many steps
    session.maxNewTokens = options.decodeTokens;
    const MethodEntry& method = findMethod(row.method);
    ParameterValues values = resolveDefaults(method, model->config());
    for (const auto& [key, value] : row.settings) values.set(method.parameters, key, value);
    const SelectionSpec spec = method.make(values, model->config()); // refuses bad parameters before the long work
    result.parametersJson = values.toJson(method.parameters);
    result.timing = options.backend == Backend::Cuda ? Timing::Measured : Timing::Modelled;
    result.blockSize = spec.blockSize;
    result.unitTokens = spec.unitTokens();
    result.dense = spec.dense;
    result.budgetBlocks = spec.dense ? 0 : spec.budgetBlocks();
    result.queryAwareBlocks = spec.dense ? 0 : spec.budget.queryAware;
    const int prompts = int(options.depths.size()) * options.promptsPerDepth,
              parts = prompts + (options.textTokens > 0);
    int done = 0;
    const Progress part = [&](double f, std::string_view what) { report(progress, (done + f) / parts, what); };
    double localitySum = 0;
    std::int64_t localityCount = 0;
    for (const double depth : options.depths) {
        NeedleScore& score = result.needles.emplace_back(NeedleScore{depth, options.promptsPerDepth, 0});
        for (int i = 0; i < options.promptsPerDepth; ++i, ++done) {
            NeedleOptions needle;
            needle.tokens = context;
            needle.needles = options.needles;
            needle.depth = depth;
            needle.seed = options.seed + std::uint64_t(done);
            score.correct += answersNeedle(model, session, needle, result, localitySum, localityCount, part, stop);
        }
    }
    result.localityMean = localityCount > 0 ? localitySum / double(localityCount) : kNan;
    SelectionMeans means;
    if (options.textTokens > 0) {
        session.oracle = options.oracle && !result.dense;
        session.oracleObserver = session.oracle ? &means : nullptr;
        result.text = scoreText(model, session, text, context, options.textTokens, part, stop);
    }
    result.selection = means.means();
    report(progress, 1, "done");
    return result;
}

std::vector<std::int32_t> evalText(const Tokenizer& tokenizer, int tokens) {
    // The document is cut between words, and so may be some tokens short of the length asked for.
    for (int slack = 16;; slack *= 4) {
        auto ids = tokenizer.encode(longDocumentPrompt(tokenizer, tokens + slack));
        if (int(ids.size()) >= tokens) return ids;
    }
}

} // namespace kvscope
