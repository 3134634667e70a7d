// The Forecast on the GPU: a forecast head makes queries for the next layer from this layer's input; they are rotated
// and scored against the next layer's pooled keys.
#include "core/cuda/select/forecast.h"

#include "core/cuda/device_selector.h"
#include "kernels/cuda/methods/lookahead.h"

#include <algorithm>

namespace kvscope {
namespace {

class ForecastOnDevice final : public DeviceSelector {
public:
    explicit ForecastOnDevice(const DeviceSelectorContext& context) : context_(context) {}

    void plan(DeviceArena& arena) override {
        const bool prompts = context_.spec.sparsePrefill;
        const int rows = prompts ? std::max(context_.rows(), context_.promptChunk) : context_.rows();
        arena.plan(projected_, {rows, width()}, "forecasts");
        arena.plan(query_, {rows, width()}, "forecasts");
        if (!prompts) return;
        const int longest = *std::max_element(context_.maxTokens.begin(), context_.maxTokens.end());
        arena.plan(promptQueries_, {longest, width()}, "forecasts");
    }

    void choose(const DeviceStep& step, cuda::SelectArgs& args) override {
        forecast(context_.weights.layers[step.layer].ownForecast, step, args);
    }
    void lookAhead(const DeviceStep& step, LayerId, cuda::SelectArgs& args) override {
        forecast(context_.weights.layers[step.layer].forecast, step, args);
    }

    /// Makes the next layer's queries of every prompt token, which are kept until the next layer attends.
    void prompt(const DevicePromptChunk& chunk) override {
        if (!context_.spec.sparsePrefill || !context_.sparse(next(chunk.layer))) return;
        forecastPrompt(context_.weights.layers[chunk.layer].forecast, chunk,
                       RowsOf(promptQueries_, width())[chunk.first]);
    }
    void choosePrompt(const DevicePromptChunk& piece, cuda::SelectArgs& args) override {
        args.score = cuda::SelectArgs::Score::PooledProduct;
        if (piece.layer > LayerId{0}) {
            args.q = RowsOf(promptQueries_, width())[piece.first];
            return;
        }
        forecastPrompt(context_.weights.layers[LayerId{0}].ownForecast, piece, query_);
        args.q = query_;
    }

private:
    int width() const { return context_.shape.kvHeads * context_.shape.dim; }

    void project(const cuda::DeviceMatrix& heads, LayerId layer, const float* x, int n, std::uint64_t* mark) {
        const ModelConfig& config = context_.config;
        context_.linear->run(heads, x, config.hidden, n,
                             {context_.weights.layers[layer].inputNorm, config.streamNormEps()},
                             {projected_, width(), false, nullptr, nullptr}, mark);
    }
    cuda::GuessArgs guessArgs(int rows) const {
        cuda::GuessArgs args;
        args.rows = rows;
        args.heads = context_.shape.kvHeads;
        args.dim = context_.shape.dim;
        args.projected = projected_;
        args.interleaved = context_.config.rope.interleaved;
        args.cos = context_.tables.ropeCos;
        args.sin = context_.tables.ropeSin;
        return args;
    }
    void forecast(const cuda::DeviceMatrix& heads, const DeviceStep& step, cuda::SelectArgs& select) {
        project(heads, step.layer, step.x, context_.rows(), step.stage1Mark);
        cuda::GuessArgs args = guessArgs(context_.rows());
        args.ropeFirst = context_.tables.ropeFirst;
        args.position = step.position;
        args.active = step.active;
        args.q = query_;
        cuda::rotateGuess(context_.launch, args);
        select.score = cuda::SelectArgs::Score::PooledProduct;
        select.q = query_;
        select.marks.pooling = step.poolingMark;
    }
    void forecastPrompt(const cuda::DeviceMatrix& heads, const DevicePromptChunk& chunk, __nv_bfloat16* to) {
        project(heads, chunk.layer, chunk.x, chunk.n, nullptr);
        cuda::GuessArgs args = guessArgs(chunk.n);
        args.ropeFirst = context_.tables.ropeFirst + int(chunk.sequence);
        args.oneSequence = true;
        args.firstPosition = chunk.first;
        args.q = to;
        cuda::rotateGuess(context_.launch, args);
    }

    const DeviceSelectorContext context_;
    float* projected_ = nullptr;                                // [rows, kvHeads*dim]
    __nv_bfloat16 *query_ = nullptr, *promptQueries_ = nullptr; // [rows or prompt tokens, kvHeads*dim]
};

} // namespace

std::unique_ptr<DeviceSelector> forecastOnDevice(const DeviceSelectorContext& context) {
    return std::make_unique<ForecastOnDevice>(context);
}

} // namespace kvscope
