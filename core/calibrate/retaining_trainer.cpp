#include "core/calibrate/retaining_trainer.h"

#include "base/elements.h"
#include "base/progress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>

namespace kvscope {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kGradientNorm = 0.5; // AdamW of Locret's recipe
constexpr int kMeasurements = 20; // so often the loss on the texts left out is measured during training

struct Parameters {
    std::vector<float> weights, mean, variance, gradient;
    void resize(std::size_t count) {
        for (auto* values : {&weights, &mean, &variance, &gradient}) values->assign(count, 0.f);
    }
};

/// Derivative of x * sigmoid(x).
float siluSlope(float x) {
    const float s = 1 / (1 + std::exp(-x));
    return s * (1 + x * (1 - s));
}

double smoothL1(double difference) {
    const double size = std::abs(difference);
    return size < 1 ? 0.5 * size * size : size - 0.5;
}

class Trainer {
public:
    Trainer(const ModelConfig& config, const std::vector<RetainingSamples>& texts, const RetainingTraining& training)
        : texts_(texts), training_(training), kernels_(makeCpuKernels(training.threads)),
          layers_(Elements(config.layers)), heads_(Elements(config.kvHeads)),
          inputs_(Elements(select::RetainingHeads::inputsOf(config))),
          width_(training.width > 0 ? Elements(training.width)
                                    : Elements(std::clamp<std::size_t>(inputs_ / 6 / 16 * 16, 16, 1024))),
          in_(layers_), out_(layers_) {
        const std::size_t testing = std::max<std::size_t>(1, texts.size() / 8);
        for (std::size_t text = 0; text < texts.size(); ++text)
            for (int sample = 0; sample + RetainingSamples::kRun <= texts[text].samples();
                 sample += RetainingSamples::kRun)
                (text + testing < texts.size() ? train_ : test_).push_back({text, std::size_t(sample)});
    }

    select::RetainingHeads run(RetainingReport& report, const std::function<void(const RetainingStep&)>& progress,
                               const std::stop_token& stop);

private:
    struct Run {
        std::size_t text = 0, sample = 0; // sample: the first one of the run
    };

    void start(std::size_t layer, std::mt19937_64& random);
    void forward(std::size_t layer, std::span<const Run> runs);
    double step(std::size_t layer, std::span<const Run> runs, int number);
    double lossOf(std::size_t layer, std::span<const Run> runs, std::vector<float>* gradient) const;
    void update(Parameters& parameters, int number, double clip);
    RetainingQuality measure(std::size_t layer);
    float labelOf(std::size_t layer, const Run& run, std::size_t i, std::size_t head) const {
        return texts_[run.text].layer(int(layer)).labels[(run.sample + i) * heads_ + head];
    }

    static constexpr std::size_t kRun = RetainingSamples::kRun;
    const std::vector<RetainingSamples>& texts_;
    const RetainingTraining& training_;
    const std::unique_ptr<Kernels> kernels_;
    const std::size_t layers_, heads_, inputs_, width_;
    std::vector<Parameters> in_, out_; // [layer]: [width, inputs], [kvHeads, width]
    std::vector<Run> train_, test_;
    std::vector<float> x_, before_, hidden_, scores_; // of a batch; before_: inputs of the activation
};

/// Starts a layer's weights as uniform random numbers, as linear layers commonly start.
void Trainer::start(std::size_t layer, std::mt19937_64& random) {
    in_[layer].resize(width_ * inputs_);
    out_[layer].resize(heads_ * width_);
    const auto fill = [&](std::vector<float>& weights, std::size_t columns) {
        std::uniform_real_distribution<float> uniform(-1 / std::sqrt(float(columns)), 1 / std::sqrt(float(columns)));
        for (float& w : weights) w = uniform(random);
    };
    fill(in_[layer].weights, inputs_);
    fill(out_[layer].weights, width_);
}

void Trainer::forward(std::size_t layer, std::span<const Run> runs) {
    const std::size_t n = runs.size() * kRun;
    x_.resize(n * inputs_);
    before_.resize(n * width_);
    scores_.resize(n * heads_);
    for (std::size_t r = 0; r < runs.size(); ++r)
        std::copy_n(texts_[runs[r].text].layer(int(layer)).inputs.data() + runs[r].sample * inputs_, kRun * inputs_,
                    x_.data() + r * kRun * inputs_);
    const LinearTarget up{{in_[layer].weights.data(), DType::F32, int(width_), int(inputs_)},
                          nullptr,
                          before_.data(),
                          int(width_),
                          false};
    kernels_->linear({x_.data(), int(n), int(inputs_), nullptr, 0.f, {&up, 1}});
    hidden_ = before_;
    for (float& h : hidden_) h = select::silu(h);
    const LinearTarget down{{out_[layer].weights.data(), DType::F32, int(heads_), int(width_)},
                            nullptr,
                            scores_.data(),
                            int(heads_),
                            false};
    kernels_->linear({hidden_.data(), int(n), int(width_), nullptr, 0.f, {&down, 1}});
}

/// The mean loss over tokens and heads of the runs that were forwarded last. `gradient`, if given, gets the loss's
/// gradient by the scores.
double Trainer::lossOf(std::size_t layer, std::span<const Run> runs, std::vector<float>* gradient) const {
    const double share = 1 / double(runs.size() * kRun * heads_);
    double loss = 0;
    for (std::size_t r = 0; r < runs.size(); ++r)
        for (std::size_t i = 0; i < kRun; ++i)
            for (std::size_t head = 0; head < heads_; ++head) {
                const std::size_t at = (r * kRun + i) * heads_ + head;
                const double off = double(scores_[at]) - double(labelOf(layer, runs[r], i, head));
                loss += share * smoothL1(off);
                if (gradient == nullptr) continue;
                (*gradient)[at] += float(share * std::clamp(off, -1.0, 1.0));
                if (i + 1 == kRun) continue;
                const double step = double(scores_[at]) - double(scores_[at + heads_]);
                const auto slope = float(share * training_.smoothness * 2 * step);
                (*gradient)[at] += slope;
                (*gradient)[at + heads_] -= slope;
            }
    return loss;
}

double Trainer::step(std::size_t layer, std::span<const Run> runs, int number) {
    forward(layer, runs);
    const std::size_t n = runs.size() * kRun;
    std::vector<float> byScore(scores_.size(), 0.f), byHidden(n * width_, 0.f);
    const double loss = lossOf(layer, runs, &byScore);
    Parameters &in = in_[layer], &out = out_[layer];
    std::fill(out.gradient.begin(), out.gradient.end(), 0.f);
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t head = 0; head < heads_; ++head) {
            const float slope = byScore[i * heads_ + head];
            for (std::size_t w = 0; w < width_; ++w) {
                out.gradient[head * width_ + w] += slope * hidden_[i * width_ + w];
                byHidden[i * width_ + w] += slope * out.weights[head * width_ + w];
            }
        }
    for (std::size_t i = 0; i < byHidden.size(); ++i) byHidden[i] *= siluSlope(before_[i]);
    kernels_->forEach(int(width_), [&](int row) {
        float* gradient = RowsOf(in.gradient.data(), inputs_)[row];
        std::fill_n(gradient, inputs_, 0.f);
        for (std::size_t i = 0; i < n; ++i) {
            const float slope = byHidden[i * width_ + std::size_t(row)];
            const float* x = x_.data() + i * inputs_;
            for (std::size_t c = 0; c < inputs_; ++c) gradient[c] += slope * x[c];
        }
    });
    double norm = 0;
    for (const auto* gradient : {&in.gradient, &out.gradient})
        for (const float g : *gradient) norm += double(g) * double(g);
    const double clip = std::min(1.0, kGradientNorm / std::max(std::sqrt(norm), 1e-12));
    update(in, number, clip);
    update(out, number, clip);
    return loss;
}

void Trainer::update(Parameters& p, int number, double clip) {
    const double correction1 = 1 - std::pow(kBeta1, number), correction2 = 1 - std::pow(kBeta2, number);
    const double warmUp = std::max(1.0, training_.steps / 10.0);
    const double rate = training_.learningRate * std::min(1.0, number / warmUp);
    kernels_->forEach(int(width_), [&](int part) {
        const std::size_t size = p.weights.size() / width_, first = Elements(part, size);
        for (std::size_t i = first; i < first + size; ++i) {
            const double g = clip * double(p.gradient[i]);
            p.mean[i] = float(kBeta1 * double(p.mean[i]) + (1 - kBeta1) * g);
            p.variance[i] = float(kBeta2 * double(p.variance[i]) + (1 - kBeta2) * g * g);
            p.weights[i] -=
                float(rate * double(p.mean[i]) / correction1 / (std::sqrt(double(p.variance[i]) / correction2) + kEps));
        }
    });
}

/// The share of the quarter of tokens with the highest labels that is also in the quarter with the highest scores.
double quarterKept(const std::vector<float>& score, const std::vector<float>& label) {
    const auto best = [](const std::vector<float>& values) {
        std::vector<std::int32_t> order(values.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](auto a, auto b) { return values[std::size_t(a)] > values[std::size_t(b)]; });
        order.resize(std::max<std::size_t>(1, values.size() / 4));
        std::sort(order.begin(), order.end());
        return order;
    };
    const auto chosen = best(score), wanted = best(label);
    std::vector<std::int32_t> common;
    std::set_intersection(chosen.begin(), chosen.end(), wanted.begin(), wanted.end(), std::back_inserter(common));
    return double(common.size()) / double(wanted.size());
}

RetainingQuality Trainer::measure(std::size_t layer) {
    forward(layer, test_);
    RetainingQuality quality{lossOf(layer, test_, nullptr), 0};
    for (std::size_t head = 0; head < heads_; ++head) {
        std::vector<float> score, label;
        for (std::size_t r = 0; r < test_.size(); ++r)
            for (std::size_t i = 0; i < kRun; ++i) {
                score.push_back(scores_[(r * kRun + i) * heads_ + head]);
                label.push_back(labelOf(layer, test_[r], i, head));
            }
        quality.kept += quarterKept(score, label) / double(heads_);
    }
    return quality;
}

select::RetainingHeads Trainer::run(RetainingReport& report, const std::function<void(const RetainingStep&)>& progress,
                                    const std::stop_token& stop) {
    if (train_.empty() || test_.empty())
        throw Error(ErrorKind::BadInput, "the texts are too few or too short to learn from",
                    "give at least two longer texts");
    report = {};
    report.trainTokens = int(train_.size() * kRun);
    report.testTokens = int(test_.size() * kRun);
    std::mt19937_64 random(training_.seed);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
        start(layer, random);
        report.before.push_back(measure(layer));
    }
    const auto testLoss = [&] {
        double loss = 0;
        for (std::size_t layer = 0; layer < layers_; ++layer) loss += measure(layer).loss / double(layers_);
        return loss;
    };
    const std::size_t batch = std::min<std::size_t>(Elements(std::max(1, training_.batchRuns)), train_.size());
    std::size_t next = train_.size();
    for (int number = 1; number <= training_.steps; ++number) {
        throwIfCancelled(stop);
        if (next + batch > train_.size()) {
            std::shuffle(train_.begin(), train_.end(), random);
            next = 0;
        }
        double loss = 0;
        for (std::size_t layer = 0; layer < layers_; ++layer)
            loss += step(layer, std::span(train_).subspan(next, batch), number) / double(layers_);
        next += batch;
        if (!progress) continue;
        const bool measured = number % std::max(1, training_.steps / kMeasurements) == 0;
        progress({number, training_.steps, loss, measured ? testLoss() : std::numeric_limits<double>::quiet_NaN()});
    }
    select::RetainingHeads heads{int(layers_), int(inputs_), int(width_), int(heads_), {}, {}};
    for (std::size_t layer = 0; layer < layers_; ++layer) {
        report.after.push_back(measure(layer));
        heads.in.insert(heads.in.end(), in_[layer].weights.begin(), in_[layer].weights.end());
        heads.out.insert(heads.out.end(), out_[layer].weights.begin(), out_[layer].weights.end());
    }
    return heads;
}

} // namespace

RetainingSamples::RetainingSamples(const ModelConfig& config, int tokens, int runs, Kernels& kernels)
    : config_(config), kernels_(kernels), layers_(config.layers) {
    for (Layer& layer : layers_) layer.keys.resize(config.kvHeads);
    const int room = std::max(0, tokens * 7 / 8 - kRun);
    for (int run = 0; run < runs; ++run) {
        const int first = runs > 1 ? int(std::int64_t(room) * run / (runs - 1)) : room;
        if (!positions_.empty() && first <= positions_.back()) continue;
        for (int i = 0; i < kRun && first + i + 1 < tokens; ++i) positions_.push_back(first + i);
    }
    positions_.resize(positions_.size() / kRun * kRun);
}

void RetainingSamples::observe(const PromptPiece& piece) {
    Layer& layer = layers_[index(piece.layer)];
    const std::size_t kvHeads = Elements(config_.kvHeads), group = Elements(config_.group()),
                      dim = Elements(config_.headDim), qWidth = kvHeads * group * dim, kvWidth = kvHeads * dim;
    const TokenRows& rows = piece.rows;
    const auto first = std::lower_bound(positions_.begin(), positions_.end(), piece.first);
    const auto end = std::lower_bound(first, positions_.end(), piece.first + piece.n);
    for (auto at = first; at != end; ++at) {
        const std::size_t i = Elements(*at - piece.first);
        layer.inputs.insert(layer.inputs.end(), rows.plainQ + i * qWidth, rows.plainQ + (i + 1) * qWidth);
        layer.inputs.insert(layer.inputs.end(), rows.plainK + i * kvWidth, rows.plainK + (i + 1) * kvWidth);
        layer.inputs.insert(layer.inputs.end(), rows.v + i * kvWidth, rows.v + (i + 1) * kvWidth);
        for (std::size_t g = 0; g < kvHeads; ++g)
            layer.keys[g].insert(layer.keys[g].end(), rows.k + i * kvWidth + g * dim,
                                 rows.k + i * kvWidth + (g + 1) * dim);
        layer.labels.insert(layer.labels.end(), kvHeads, -std::numeric_limits<float>::infinity());
    }
    const std::size_t seen = Elements(end - positions_.begin()); // samples whose keys have been read
    if (seen == 0) return;
    products_.resize(Elements(piece.n, seen));
    const float scale = config_.attentionScale();
    for (std::size_t h = 0; h < kvHeads * group; ++h) {
        const std::size_t g = h / group;
        const LinearTarget to{
            {layer.keys[g].data(), DType::F32, int(seen), int(dim)}, nullptr, products_.data(), int(seen), false};
        kernels_.linear({rows.q + h * dim, piece.n, int(qWidth), nullptr, 0.f, {&to, 1}});
        for (int i = 0; i < piece.n; ++i) // only queries of later tokens than the key's count
            for (std::size_t s = 0; s < seen && positions_[s] < piece.first + i; ++s) {
                float& label = layer.labels[s * kvHeads + g];
                label = std::max(label, scale * RowsOf(products_.data(), seen)[i][s]);
            }
    }
}

void RetainingSamples::forgetKeys() {
    for (Layer& layer : layers_) layer.keys.clear();
}

select::RetainingHeads trainRetainingHeads(const ModelConfig& config, const std::vector<RetainingSamples>& texts,
                                           const RetainingTraining& training, RetainingReport& report,
                                           const std::function<void(const RetainingStep&)>& progress,
                                           const std::stop_token& stop) {
    if (config.latent)
        throw Error(ErrorKind::Unsupported,
                    "retaining heads are trained for plain heads, and this model has latent attention",
                    "choose another model");
    if (texts.size() < 2)
        throw Error(ErrorKind::BadInput, "one text is not enough: some of the text is kept to measure with",
                    "give at least two texts");
    return Trainer(config, texts, training).run(report, progress, stop);
}

} // namespace kvscope
