#include "core/calibrate/forecast_trainer.h"

#include "base/error.h"
#include "base/indexed.h"
#include "core/calibrate/forecast_objective.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace kvscope {
namespace {

/// SparDA's settings of AdamW.
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-6, kWeightDecay = 0.01, kGradientNorm = 0.5;

constexpr int kMeasurements = 20; // so often the loss on the texts left out is measured during training

struct Query {
    std::size_t text = 0, row = 0; // row: which of the text's sampled positions
    int position = 0;
};

/// Keys of one KV head in one layer for one text.
struct HeadKeys {
    Numbered<float> pooled; // [windows, dim]
};

class Trainer {
public:
    Trainer(const Model& model, const std::vector<TextSamples>& texts, const SelectionSpec& spec,
            const ForecastTraining& training);

    ForecastWeights run(ForecastReport& report, const std::function<void(const ForecastStep&)>& progress,
                        const std::stop_token& stop);

private:
    struct Layer {                                            // the Forecast projection for one target layer
        std::vector<float> weights, mean, variance, gradient; // [kvHeads*dim, hidden]
    };

    void splitQueries();
    void poolKeys();
    void nameTargets(const std::stop_token& stop);
    void nameTargetsOf(std::size_t text, std::size_t layer, std::size_t head);
    void startFromQueries(std::size_t layer);
    double step(std::size_t layer, std::span<const std::size_t> batch, int number);
    void forward(std::size_t layer, std::span<const std::size_t> batch);
    void score(std::size_t layer, std::size_t query, std::size_t head, const float* forecast,
               std::vector<float>& scores) const;
    void update(Layer& layer, int number);
    void rotate(float* x, std::span<const std::size_t> batch, bool back);
    ForecastQuality measure(std::size_t layer);
    std::vector<std::int32_t> farChoice(std::size_t query, std::span<const float> windowScores) const;
    Numbered<float> blockMass(std::span<const std::span<const float>> logits, int position) const;

    /// Runs the body for every index below `count`, on all threads.
    template <class Body> void forEach(std::size_t count, const Body& body) const {
        kernels_->forEach(int(count), [&](int i) { body(std::size_t(i)); });
    }
    std::size_t at(std::size_t query, std::size_t layer, std::size_t head) const {
        return (query * layers_ + layer) * heads_ + head;
    }
    const HeadKeys& keysOf(std::size_t text, std::size_t layer, std::size_t head) const {
        return keys_[(text * layers_ + layer) * heads_ + head];
    }

    const Model& model_;
    const ModelConfig& config_;
    const std::vector<TextSamples>& texts_;
    const SelectionSpec& spec_;
    const ForecastTraining& training_;
    const std::unique_ptr<Kernels> kernels_;
    const std::size_t layers_, heads_, dim_, hidden_, group_, width_;
    RopeTables rope_;
    std::vector<float> negativeSin_;
    std::vector<HeadKeys> keys_;
    std::vector<Query> queries_; // the ones to train on, followed by those of the texts that are left out
    std::size_t trainQueries_ = 0;
    std::vector<ForecastTarget> targets_;         // [query][layer][head]
    std::vector<std::vector<std::int32_t>> best_; // [query][layer][head] the best blocks by InfLLM-V2's own score
    std::vector<Numbered<float>> mass_; // [left-out query][layer][head]: [block] exact attention, mean over group
    std::vector<Layer> trained_;        // [target layer]
    std::vector<float> inputs_, forecasts_, forecastGradients_;
};

Trainer::Trainer(const Model& model, const std::vector<TextSamples>& texts, const SelectionSpec& spec,
                 const ForecastTraining& training)
    : model_(model), config_(model.config()), texts_(texts), spec_(spec), training_(training),
      kernels_(makeCpuKernels(training.threads)), layers_(Elements(config_.layers)), heads_(Elements(config_.kvHeads)),
      dim_(Elements(config_.headDim)), hidden_(Elements(config_.hidden)), group_(Elements(config_.group())),
      width_(heads_ * dim_), trained_(layers_) {
    std::vector<int> lengths;
    for (const TextSamples& text : texts) lengths.push_back(text.tokens);
    rope_ = RopeTables(config_.rope, lengths, lengths);
    negativeSin_.assign(rope_.sin(), RowsOf(rope_.sin(), config_.rope.dim / 2)[rope_.rows()]);
    for (float& s : negativeSin_) s = -s;
}

void Trainer::splitQueries() {
    const int forced = spec_.budget.sink + spec_.budget.window + (spec_.budget.windowAddsCurrent ? 1 : 0);
    const std::size_t testing = std::max<std::size_t>(1, texts_.size() / 8);
    for (std::size_t text = 0; text < texts_.size(); ++text) {
        if (text + testing == texts_.size()) trainQueries_ = queries_.size();
        for (std::size_t row = 0; row < texts_[text].positions.size(); ++row)
            if (const int position = texts_[text].positions[row]; position / spec_.blockSize + 1 > forced)
                queries_.push_back({text, row, position});
    }
    if (trainQueries_ == 0 || trainQueries_ == queries_.size())
        throw Error(ErrorKind::BadInput,
                    "the texts are too few or too short to learn from: no query sees a block beyond sink and window",
                    "give at least two longer texts");
}

void Trainer::poolKeys() {
    keys_.resize(texts_.size() * layers_ * heads_);
    forEach(keys_.size(), [&](std::size_t i) {
        const std::size_t head = i % heads_, layer = i / heads_ % layers_;
        const TextSamples& text = texts_[i / heads_ / layers_];
        const auto& keys = text.layers[layer].keys[head];
        const Elements windows(spec_.grid.windows(text.tokens)), length(spec_.grid.kernel), stride(spec_.grid.stride);
        auto& pooled = keys_[i].pooled;
        pooled.assign(windows * dim_, 0.f);
        for (std::size_t w = 0; w < windows; ++w)
            for (std::size_t t = 0; t < length; ++t)
                for (std::size_t c = 0; c < dim_; ++c)
                    pooled[w * dim_ + c] += keys[(w * stride + t) * dim_ + c] / float(spec_.grid.kernel);
    });
}

std::vector<std::int32_t> Trainer::farChoice(std::size_t query, std::span<const float> windowScores) const {
    const int position = queries_[query].position;
    Numbered<float> pooled(spec_.grid.blocks(position + 1));
    poolToBlocks(spec_.grid, windowScores, pooled);
    SelectionBudget budget = spec_.budget;
    budget.queryAware = training_.farBlocks;
    budget.queryAgnostic = 0;
    std::vector<SelectedBlock> chosen;
    selectBlocks(budget, position / spec_.blockSize, pooled, {}, chosen);
    std::vector<std::int32_t> far;
    for (const SelectedBlock& block : chosen)
        if (block.origin == Origin::QueryAware) far.push_back(block.block);
    return far;
}

void Trainer::nameTargets(const std::stop_token& stop) {
    targets_.resize(queries_.size() * layers_ * heads_);
    best_.resize(targets_.size());
    mass_.resize(targets_.size());
    for (std::size_t text = 0; text < texts_.size(); ++text)
        for (std::size_t layer = 0; layer < layers_; ++layer)
            for (std::size_t head = 0; head < heads_; ++head) {
                throwIfCancelled(stop);
                nameTargetsOf(text, layer, head);
            }
}

/// The share of the group's exact attention that each block up to the position receives.
Numbered<float> Trainer::blockMass(std::span<const std::span<const float>> logits, int position) const {
    Numbered<float> mass(spec_.grid.blocks(position + 1), 0.f);
    for (const auto& head : logits) {
        const auto seen = head.first(Elements(position + 1));
        const float most = *std::max_element(seen.begin(), seen.end());
        double total = 0;
        for (const float logit : seen) total += std::exp(double(logit - most));
        int token = 0;
        for (const float logit : seen)
            mass[token++ / spec_.blockSize] += float(std::exp(double(logit - most)) / total / double(group_));
    }
    return mass;
}

/// Multiplies all sampled queries of a text with all of its keys at once, then makes each query's target.
void Trainer::nameTargetsOf(std::size_t text, std::size_t layer, std::size_t head) {
    const TextSamples& samples = texts_[text];
    const LayerSamples& from = samples.layers[layer];
    const std::size_t rows = samples.positions.size() * group_, tokens = Elements(samples.tokens);
    std::vector<float> queries(rows * dim_), products(rows * tokens);
    for (std::size_t row = 0; row < samples.positions.size(); ++row)
        std::copy_n(from.queries.data() + (row * heads_ + head) * group_ * dim_, group_ * dim_,
                    queries.data() + row * group_ * dim_);
    const float scale = config_.attentionScale();
    for (float& q : queries) q *= scale;
    const LinearTarget to{{from.keys[head].data(), DType::F32, samples.tokens, config_.headDim},
                          nullptr,
                          products.data(),
                          samples.tokens,
                          false};
    kernels_->linear({queries.data(), int(rows), config_.headDim, nullptr, 0.f, {&to, 1}});
    const HeadKeys& keys = keysOf(text, layer, head);
    forEach(queries_.size(), [&](std::size_t i) {
        const Query& query = queries_[i];
        if (query.text != text) return;
        std::vector<std::span<const float>> logits;
        for (std::size_t h = 0; h < group_; ++h)
            logits.push_back(std::span(products).subspan((query.row * group_ + h) * tokens, tokens));
        const std::size_t index = at(i, layer, head);
        if (i >= trainQueries_) mass_[index] = blockMass(logits, query.position);
        Numbered<float> sum(spec_.grid.windows(query.position + 1), 0.f), share(sum.size());
        for (std::size_t h = 0; h < group_; ++h) {
            const float* q = queries.data() + (query.row * group_ + h) * dim_; // the scale is multiplied in
            float most = -INFINITY, total = 0;
            for (std::size_t w = 0; w < share.size(); ++w) {
                share[w] = 0;
                for (std::size_t c = 0; c < dim_; ++c) share[w] += q[c] * keys.pooled[w * dim_ + c];
                most = std::max(most, share[w]);
            }
            for (float& s : share) total += s = std::exp(s - most);
            for (std::size_t w = 0; w < share.size(); ++w) sum[w] += share[w] / total / float(group_);
        }
        best_[index] = farChoice(i, sum);
        targets_[index] = training_.teacher == ForecastTeacher::Backbone
                              ? targetOfShares(spec_, sum, query.position, training_.farBlocks)
                              : forecastTarget(spec_, logits, query.position, training_.farBlocks);
    });
}

/// Starts a projection as the mean of the target layer's query heads of each group.
void Trainer::startFromQueries(std::size_t layer) {
    const std::size_t queryWidth = heads_ * group_ * dim_;
    std::vector<float> identity(hidden_ * hidden_, 0.f), columns(hidden_ * queryWidth);
    for (std::size_t i = 0; i < hidden_; ++i) identity[i * hidden_ + i] = 1;
    const LinearTarget to{model_.layer(int(layer)).q, nullptr, columns.data(), int(queryWidth), false};
    kernels_->linear({identity.data(), config_.hidden, config_.hidden, nullptr, 0.f, {&to, 1}});
    Layer& trained = trained_[layer];
    trained.weights.assign(width_ * hidden_, 0.f);
    trained.mean = trained.variance = trained.gradient = trained.weights;
    for (std::size_t head = 0; head < heads_; ++head)
        for (std::size_t h = 0; h < group_; ++h)
            for (std::size_t c = 0; c < dim_; ++c)
                for (std::size_t i = 0; i < hidden_; ++i)
                    trained.weights[(head * dim_ + c) * hidden_ + i] +=
                        columns[i * queryWidth + (head * group_ + h) * dim_ + c] / float(group_);
}

void Trainer::rotate(float* x, std::span<const std::size_t> batch, bool back) {
    std::vector<std::int32_t> rows;
    for (const std::size_t query : batch)
        rows.push_back(rope_.first(int(queries_[query].text)) + queries_[query].position);
    RopeArgs args;
    args.x = x;
    args.n = int(batch.size());
    args.heads = config_.kvHeads;
    args.dim = config_.headDim;
    args.stride = int(width_);
    args.positions = rows.data();
    args.cos = rope_.cos();
    args.sin = back ? negativeSin_.data() : rope_.sin();
    args.rotary = config_.rope.dim;
    args.interleaved = config_.rope.interleaved;
    kernels_->rope(args);
}

/// Gathers the inputs of a batch and makes its rotated forecasts.
void Trainer::forward(std::size_t layer, std::span<const std::size_t> batch) {
    const std::size_t source = layer == 0 ? 0 : layer - 1;
    inputs_.resize(batch.size() * hidden_);
    forecasts_.resize(batch.size() * width_);
    for (std::size_t b = 0; b < batch.size(); ++b) {
        const Query& query = queries_[batch[b]];
        std::copy_n(texts_[query.text].layers[source].inputs.data() + query.row * hidden_, hidden_,
                    inputs_.data() + b * hidden_);
    }
    const LinearTarget to{{trained_[layer].weights.data(), DType::F32, int(width_), config_.hidden},
                          nullptr,
                          forecasts_.data(),
                          int(width_),
                          false};
    kernels_->linear({inputs_.data(), int(batch.size()), config_.hidden, nullptr, 0.f, {&to, 1}});
    rotate(forecasts_.data(), batch, false);
}

void Trainer::score(std::size_t layer, std::size_t query, std::size_t head, const float* forecast,
                    std::vector<float>& scores) const {
    const HeadKeys& keys = keysOf(queries_[query].text, layer, head);
    scores.assign(Elements(targets_[at(query, layer, head)].windows), 0.f);
    const float scale = config_.attentionScale();
    for (std::size_t w = 0; w < scores.size(); ++w) {
        for (std::size_t c = 0; c < dim_; ++c) scores[w] += forecast[c] * keys.pooled[w * dim_ + c];
        scores[w] *= scale;
    }
}

double Trainer::step(std::size_t layer, std::span<const std::size_t> batch, int number) {
    forward(layer, batch);
    forecastGradients_.assign(forecasts_.size(), 0.f);
    std::vector<double> losses(batch.size() * heads_);
    const float scale = config_.attentionScale(), share = 1.f / float(losses.size());
    forEach(losses.size(), [&](std::size_t i) {
        const std::size_t b = i / heads_, head = i % heads_;
        const std::size_t offset = b * width_ + head * dim_;
        Numbered<float> scores;
        score(layer, batch[b], head, forecasts_.data() + offset, scores);
        std::vector<float> gradient(scores.size());
        losses[i] = forecastLoss(targets_[at(batch[b], layer, head)], scores, gradient);
        const HeadKeys& keys = keysOf(queries_[batch[b]].text, layer, head);
        for (std::size_t w = 0; w < gradient.size(); ++w)
            for (std::size_t c = 0; c < dim_; ++c)
                forecastGradients_[offset + c] += share * scale * gradient[w] * keys.pooled[w * dim_ + c];
    });
    rotate(forecastGradients_.data(), batch, true);
    Layer& trained = trained_[layer];
    forEach(width_, [&](std::size_t row) {
        float* gradient = trained.gradient.data() + row * hidden_;
        std::fill_n(gradient, hidden_, 0.f);
        for (std::size_t b = 0; b < batch.size(); ++b) {
            const float factor = forecastGradients_[b * width_ + row];
            const float* input = inputs_.data() + b * hidden_;
            for (std::size_t i = 0; i < hidden_; ++i) gradient[i] += factor * input[i];
        }
    });
    update(trained, number);
    return std::accumulate(losses.begin(), losses.end(), 0.0) / double(losses.size());
}

void Trainer::update(Layer& layer, int number) {
    double norm = 0;
    for (const float g : layer.gradient) norm += double(g) * double(g);
    const double clip = std::min(1.0, kGradientNorm / std::max(std::sqrt(norm), 1e-12));
    const double correction1 = 1 - std::pow(kBeta1, number), correction2 = 1 - std::pow(kBeta2, number);
    const double rate = training_.learningRate;
    forEach(width_, [&](std::size_t row) {
        for (std::size_t i = row * hidden_; i < (row + 1) * hidden_; ++i) {
            const double g = clip * double(layer.gradient[i]);
            layer.mean[i] = float(kBeta1 * double(layer.mean[i]) + (1 - kBeta1) * g);
            layer.variance[i] = float(kBeta2 * double(layer.variance[i]) + (1 - kBeta2) * g * g);
            const double step =
                double(layer.mean[i]) / correction1 / (std::sqrt(double(layer.variance[i]) / correction2) + kEps);
            layer.weights[i] = float(double(layer.weights[i]) * (1 - rate * kWeightDecay) - rate * step);
        }
    });
}

ForecastQuality Trainer::measure(std::size_t layer) {
    std::vector<std::size_t> test(queries_.size() - trainQueries_);
    std::iota(test.begin(), test.end(), trainQueries_);
    forward(layer, test);
    std::vector<double> losses(test.size() * heads_), recalls(losses.size()), masses(losses.size());
    const SelectionBudget& budget = spec_.budget;
    forEach(losses.size(), [&](std::size_t i) {
        const std::size_t b = i / heads_, head = i % heads_, index = at(test[b], layer, head);
        Numbered<float> scores;
        score(layer, test[b], head, forecasts_.data() + b * width_ + head * dim_, scores);
        const auto chosen = farChoice(test[b], scores);
        std::vector<float> gradient(scores.size());
        losses[i] = forecastLoss(targets_[index], scores, gradient);
        int common = 0;
        for (const std::int32_t block : best_[index])
            common += std::binary_search(chosen.begin(), chosen.end(), block) ? 1 : 0;
        recalls[i] = best_[index].empty() ? 1.0 : double(common) / double(best_[index].size());
        double found = 0, far = 0;
        const int firstNear =
            queries_[test[b]].position / spec_.blockSize + 1 - budget.window - (budget.windowAddsCurrent ? 1 : 0);
        for (int block = budget.sink; block < firstNear; ++block) far += double(mass_[index][block]);
        for (const std::int32_t block : chosen) found += double(mass_[index][block]);
        masses[i] = far > 0 ? found / far : 1.0;
    });
    const double count = double(losses.size());
    return {std::accumulate(losses.begin(), losses.end(), 0.0) / count,
            std::accumulate(recalls.begin(), recalls.end(), 0.0) / count,
            std::accumulate(masses.begin(), masses.end(), 0.0) / count};
}

ForecastWeights Trainer::run(ForecastReport& report, const std::function<void(const ForecastStep&)>& progress,
                             const std::stop_token& stop) {
    splitQueries();
    poolKeys();
    nameTargets(stop);
    report = {};
    report.trainQueries = int(trainQueries_);
    report.testQueries = int(queries_.size() - trainQueries_);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
        startFromQueries(layer);
        report.before.push_back(measure(layer));
    }
    const auto testLoss = [&] {
        double loss = 0;
        for (std::size_t layer = 0; layer < layers_; ++layer) loss += measure(layer).loss / double(layers_);
        return loss;
    };
    std::mt19937_64 random(training_.seed);
    std::vector<std::size_t> order(trainQueries_);
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::size_t next = order.size();
    const std::size_t batch = std::min<std::size_t>(Elements(std::max(1, training_.batch)), order.size());
    for (int number = 1; number <= training_.steps; ++number) {
        throwIfCancelled(stop);
        if (next + batch > order.size()) {
            std::shuffle(order.begin(), order.end(), random);
            next = 0;
        }
        double loss = 0;
        for (std::size_t layer = 0; layer < layers_; ++layer)
            loss += step(layer, std::span(order).subspan(next, batch), number) / double(layers_);
        next += batch;
        if (!progress) continue;
        const bool measured = number % std::max(1, training_.steps / kMeasurements) == 0;
        progress({number, training_.steps, loss, measured ? testLoss() : std::numeric_limits<double>::quiet_NaN()});
    }
    for (std::size_t layer = 0; layer < layers_; ++layer) report.after.push_back(measure(layer));
    ForecastWeights weights;
    weights.own = std::move(trained_[0].weights);
    for (std::size_t layer = 1; layer < layers_; ++layer) weights.future.push_back(std::move(trained_[layer].weights));
    weights.future.emplace_back(); // the last layer has no layer after it to forecast for
    return weights;
}

} // namespace

ForecastWeights trainForecast(const std::shared_ptr<const Model>& model, const std::vector<TextSamples>& texts,
                              const SelectionSpec& spec, const ForecastTraining& training, ForecastReport& report,
                              const std::function<void(const ForecastStep&)>& progress, const std::stop_token& stop) {
    if (model->config().latent)
        throw Error(ErrorKind::Unsupported,
                    "Forecast heads are trained for plain heads, and this model has latent "
                    "attention",
                    "choose another model");
    if (texts.size() < 2)
        throw Error(ErrorKind::BadInput, "one text is not enough: some of the text is kept to measure with",
                    "give at least two texts");
    return Trainer(*model, texts, spec, training).run(report, progress, stop);
}

} // namespace kvscope
