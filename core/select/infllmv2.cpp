// InfLLM-V2 (MiniCPM4): group scores over mean-pooled keys choose the blocks.
#include "core/select/common_parameters.h"
#include "core/select/forecast.h"
#include "core/select/overlap.h"
#include "core/select/selector.h"
#include "core/select/window_products.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr int kCoarse = 4; // kernel and stride of the second grid, in those of the first: 128 and 64 of 32 and 16

/// MiniCPM4's shortcut: each query head's softmax takes its denominator from keys pooled four times as coarsely. A
/// coarse key is the mean of four fine ones, and so is its product with the query: no second index is kept.
class CompressedLse final : public Selector {
public:
    explicit CompressedLse(const SelectorContext& context) : context_(context) {}

    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads) item.head->index.append(item.rows.key, item.rows.score);
    }
    void score(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) {
            if (!item.dense) scoreOne(item);
        });
    }
    void choose(std::span<HeadStep> heads) override {
        for (HeadStep& item : heads) {
            if (item.dense) continue;
            item.queryAware.resize(std::size_t(item.position / context_.spec.blockSize) + 1);
            poolToBlocks(context_.spec.grid, item.windowScores, item.queryAware);
            chooseBlocks(context_.spec, item);
        }
    }

private:
    void scoreOne(HeadStep& item) const {
        const PoolingGrid& grid = context_.spec.grid;
        const int windows = grid.windows(item.position + 1), dim = context_.shape.dim;
        const int hidden = item.firstToken - grid.kernel + 1; // windows that end before a sliding window's first token
        const int first = std::min(windows, hidden > 0 ? (hidden + grid.stride - 1) / grid.stride : 0);
        item.windowScores.assign(windows, 0.f);
        std::vector<float>& logits = item.queryAware; // used for the windows' logits until choose() pools to blocks
        logits.resize(std::size_t(windows));
        for (int h = 0; h < context_.group(); ++h) {
            windowProducts(item.rows.q + std::size_t(h * dim), item.head->index, dim, logits);
            for (float& logit : logits) logit *= context_.rules.scale;
            const double lse = denominator(logits, first, item.position + 1);
            for (int w = first; w < windows; ++w)
                item.windowScores[w] += float(std::exp(double(logits[std::size_t(w)]) - lse));
        }
    }

    /// @return the log-sum-exp of the logits of the coarse windows from the fine window `first` on; of the fine windows
    /// while no coarse one is complete
    double denominator(std::span<const float> logits, int first, int tokens) const {
        const PoolingGrid& grid = context_.spec.grid;
        const PoolingGrid coarse{kCoarse * grid.kernel, kCoarse * grid.stride, grid.blockSize};
        const int apart = grid.kernel / grid.stride; // fine windows that make up a coarse one
        std::vector<double> terms;
        for (int c = (first + kCoarse - 1) / kCoarse; c < coarse.windows(tokens); ++c) {
            double sum = 0;
            for (int part = 0; part < kCoarse; ++part) sum += double(logits[std::size_t(kCoarse * c + part * apart)]);
            terms.push_back(sum / kCoarse);
        }
        if (terms.empty()) terms.assign(logits.begin() + first, logits.end());
        if (terms.empty()) return 0;
        const double most = *std::max_element(terms.begin(), terms.end());
        double sum = 0;
        for (const double term : terms) sum += std::exp(term - most);
        return most + std::log(sum);
    }

    const SelectorContext context_;
};

/// Whether the common code does all of the choice: each query head's exact softmax, by the layer's own query.
bool isData(const ParameterValues& values) {
    return values.text("lse") == "exact" && !select::choosesByForecast(values);
}

} // namespace

MethodEntry infllmV2Method() {
    MethodEntry entry;
    entry.name = "infllmv2";
    entry.title = "InfLLM-V2";
    entry.source = "MiniCPM4: Ultra-Efficient LLMs on End Devices";
    entry.summary =
        "Mean-pools keys over a fine grid, sums each query head's softmax over it, max-pools to blocks and takes "
        "the best: all dynamic blocks depend on the query.";
    entry.parameters = {
        select::blockSize(),   select::sinkBlocks(), select::windowBlocks(16), select::windowAddsCurrent(),
        select::totalBlocks(), select::kernelSize(), select::kernelStride(),   select::denseLen(0),
        select::ahead(),       select::overlap(),    select::bias(),           select::biasScale(),
        select::prefill()};
    entry.parameters.insert(
        entry.parameters.begin() + 7,
        {"lse",
         ParameterType::Choice,
         "exact",
         0,
         0,
         "",
         "What a query head's softmax divides by. exact: its own sum; compressed: that of keys pooled over four times "
         "as many tokens, as MiniCPM4's code estimates it, which shifts the weights of a group's heads.",
         {"exact", "compressed"}});
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.queryScore = QueryScore::PooledSoftmax;
        spec.budget.queryAware = select::remainingBlocks(values, spec, 0);
        if (values.text("lse") == "compressed" && select::choosesByForecast(values))
            throw Error(ErrorKind::BadInput, "lse=compressed estimates a softmax, and ahead=forecast has none",
                        "use lse=exact, or ahead=none");
        if (values.text("lse") == "compressed" && spec.grid.kernel % spec.grid.stride != 0)
            throw Error(ErrorKind::BadInput,
                        fmt::format("lse=compressed joins pooled keys, and kernel_size {} is not a multiple of "
                                    "kernel_stride {}",
                                    spec.grid.kernel, spec.grid.stride),
                        "use a kernel_size that is, or lse=exact");
        return spec;
    };
    entry.isDataWith = isData;
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        if (isData(values)) return nullptr;
        if (select::choosesByForecast(values)) return select::forecastSelector(context);
        return std::make_unique<CompressedLse>(context);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(infllmV2OnDevice);
    entry.abilities = [](const MethodUse& use) {
        if (isData(use.values)) return dataAbilities(use.spec);
        if (select::choosesByForecast(use.values)) return select::forecastAbilities(use);
        Abilities a = select::usualAbilities(use.backend);
        a.scores = true;
        a.sparsePrompt = a.quantisedKv = use.backend == Backend::Cpu;
        return a;
    };
    entry.forecast = select::aheadByForecast();
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        if (!select::choosesByForecast(use.values)) return {};
        return select::forecastMemory(use, length);
    };
    return entry;
}

} // namespace kvscope
