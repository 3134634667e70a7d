#include "core/eval/block_quality.h"

#include "base/error.h"
#include "base/indexed.h"
#include "core/model/mapped_watch.h"
#include "core/prompt/prompts.h"
#include "core/select/denoising.h"
#include "core/session/denoise_engine.h"
#include "core/session/session_checks.h"
#include "core/session/writable_ids.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>
#include <random>

namespace kvscope {
namespace {

constexpr int kResidues = 16, kResidueStep = 3; // prompts differ by 3 tokens, so that 16 of them have every residue
constexpr int kAnswerRoom = 8;                  // tokens; an answer has five digits
constexpr double kGolden = 0.6180339887498949;  // its multiples, modulo 1, cover depths evenly from the first prompt on

const BlockDiffusion& blocksOf(const Model& model) {
    const auto& diffusion = model.config().diffusion;
    if (!diffusion || diffusion->canvas)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} does not denoise blocks over a prefix, so that no method chooses pages of one",
                                model.name()),
                    "use a model of the family SDAR, such as losa-tiny");
    return *diffusion;
}

/// Counts forwards and drops everything.
class ForwardCounter final : public TraceSink {
public:
    RecordLevel level() const override { return RecordLevel::Counters; }
    void beginRun(const RunInfo&) override {}
    std::unique_ptr<StepRecord> acquire() override {
        if (!spare_) return std::make_unique<StepRecord>();
        spare_->clear();
        return std::move(spare_);
    }
    void take(RunEvent event) noexcept override {
        auto* const step = std::get_if<std::unique_ptr<StepRecord>>(&event);
        if (step == nullptr) return;
        for (const DenoiseForward& forward : (*step)->denoise.forwards) ++forwards, blocks += forward.final;
        spare_ = std::move(*step);
    }
    void endRun(RunStatus, const std::string&) noexcept override {}

    std::int64_t forwards = 0, blocks = 0;

private:
    std::unique_ptr<StepRecord> spare_;
};

/// -log p(id) among the ids that may be written, in double precision.
double lossOf(std::span<const float> logits, std::span<const std::uint8_t> allowed, std::int32_t id) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i)
        if (allowed[i] != 0) largest = std::max(largest, double(logits[i]));
    for (std::size_t i = 0; i < logits.size(); ++i)
        if (allowed[i] != 0) sum += std::exp(double(logits[i]) - largest);
    return largest + std::log(sum) - double(logits[std::size_t(id)]);
}

} // namespace

double BoundSum::perplexity() const {
    return terms > 0 ? std::exp(nll / double(terms)) : std::numeric_limits<double>::quiet_NaN();
}

NeedlePrompts needlePrompts(const Tokenizer& tokenizer, NeedleTask task, int context, int first, int count,
                            std::uint64_t seed) {
    NeedlePrompts prompts;
    for (int number = first; number < first + count; ++number) {
        NeedleOptions needle;
        needle.tokens = context - kAnswerRoom - number * kResidueStep % (kResidueStep * kResidues);
        needle.needles = task == NeedleTask::PassKey ? 1 : task == NeedleTask::FourKeys ? 4 : 16;
        needle.passKey = task == NeedleTask::PassKey;
        needle.depth = std::fmod((number + 0.5) * kGolden, 1.0);
        needle.seed = seed + std::uint64_t(number);
        const NeedlePrompt prompt = makeNeedlePrompt(tokenizer, needle);
        prompts.ids.push_back(tokenizer.encode(prompt.text));
        prompts.answers.push_back(prompt.answer);
        prompts.answerTokens.push_back(tokenizer.encode(prompt.answer, false, false).size());
    }
    return prompts;
}

QualityBatch decodeNeedles(const std::shared_ptr<const Model>& model, SessionOptions options, const QualityCell& cell,
                           const NeedlePrompts& prompts, const Progress& progress, const std::stop_token& stop) {
    blocksOf(*model);
    const Tokenizer& tokenizer = model->tokenizer();
    const std::vector<std::size_t>& lengths = prompts.answerTokens;
    options.method = cell.method;
    options.settings = cell.settings;
    options.settings.emplace_back("strategy",
                                  cell.pace == Pace::Slow ? "low_confidence_static" : "low_confidence_dynamic");
    options.maxNewTokens = int(*std::max_element(lengths.begin(), lengths.end()));
    options.stopAtEos = false; // so that every method decodes as many blocks
    ForwardCounter counter;
    DecodeSession session(model, prompts.ids, options, counter);
    session.prefill(progress, stop);
    do throwIfCancelled(stop);
    while (session.step());
    session.end(RunStatus::Finished);
    QualityBatch batch;
    for (std::size_t i = 0; i < prompts.answers.size(); ++i) {
        const std::string& answer = prompts.answers[i];
        std::vector<std::int32_t> ids = session.generated()[i];
        ids.resize(std::min(ids.size(), lengths[i]));
        const std::string text = tokenizer.decode(ids);
        const std::size_t begin = text.find_first_not_of(' ');
        batch.right.push_back(begin != std::string::npos && text.compare(begin, answer.size(), answer) == 0);
        batch.generated.push_back(std::move(ids));
    }
    batch.forwards = counter.forwards, batch.blocks = counter.blocks;
    batch.density = session.summary().densityMean;
    batch.promptNs = session.summary().prefillNs, batch.decodeNs = session.summary().decodeNs;
    return batch;
}

int tokensOfBound(const Model& model, int context, int blocks) {
    const int block = blocksOf(model).blockLength;
    return context / block * block + blocks * block;
}

BoundSum boundOnBlocks(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                       std::span<const std::int32_t> text, int context, int first, int count, std::uint64_t seed,
                       const std::stop_token& stop) {
    const BlockDiffusion& diffusion = blocksOf(*model);
    const MethodEntry& method = findMethod(options.method);
    ParameterValues values = methodParameters(method, *model, options.settings);
    const DenoiseOptions denoise = select::denoiseOptions(values);
    const int block = denoise.block, prefix = context / block * block;
    const auto last = std::size_t(prefix) + std::size_t(first + count) * std::size_t(block);
    if (prefix < block || count < 1 || text.size() < last)
        throw Error(ErrorKind::BadInput,
                    fmt::format("a text of {} tokens does not hold {} blocks behind {} tokens", text.size(),
                                first + count, prefix),
                    "give a longer text, a smaller context or fewer blocks");
    std::vector<std::vector<std::int32_t>> prompts, blocks;
    for (int j = first; j < first + count; ++j) {
        const auto from = text.begin() + std::ptrdiff_t(j) * block;
        prompts.emplace_back(from, from + prefix);
        prompts.back().front() = text.front(); // what every text begins with
        blocks.emplace_back(from + prefix, from + prefix + block);
    }
    const std::vector<std::uint8_t> allowed = writableIds(*model);
    DenoiseSetup setup{model, prompts, denoise, method.make(values, model->config()), {}, options.threads};
    setup.allowed = allowed;
    setup.maxTokens.assign(prompts.size(), prefix + block);
    const auto engine = options.backend == Backend::Cuda ? makeCudaDenoiser(setup) : makeCpuDenoiser(setup);
    StepRecord record;
    engine->prefill(record, {}, stop);
    BoundSum sum;
    for (int masks = 1; masks <= block; ++masks) {
        throwIfCancelled(stop);
        std::vector<std::vector<std::int32_t>> ids = blocks;
        std::vector<DenoiseRow> rows;
        for (std::size_t s = 0; s < blocks.size(); ++s) {
            Numbered<int> order(block, 0);
            std::iota(order.begin(), order.end(), 0);
            std::mt19937_64 random(seed + 1000003 * (std::uint64_t(first) + s) + std::uint64_t(masks));
            for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
            DenoiseRow row{RowId{int(s)}, prefix, prefix / block, 0, false, {}, 0};
            for (int i = 0; i < masks; ++i) {
                ids[s][std::size_t(order[i])] = diffusion.maskId;
                row.wanted |= std::uint64_t(1) << order[i];
            }
            rows.push_back(row);
        }
        for (std::size_t s = 0; s < rows.size(); ++s) rows[s].ids = ids[s];
        record.clear();
        record.step = masks;
        engine->forward(rows, record);
        for (std::size_t s = 0; s < rows.size(); ++s) {
            double loss = 0;
            for (int i = 0; i < block; ++i)
                if ((rows[s].wanted >> i & 1) != 0)
                    loss += lossOf(engine->logits(int(s), i), allowed, blocks[s][std::size_t(i)]);
            sum.nll += loss / masks;
            ++sum.terms;
        }
    }
    engine->settle();
    refuseWrittenWeights(*model);
    return sum;
}

} // namespace kvscope
