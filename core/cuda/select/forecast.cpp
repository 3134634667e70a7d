// The Forecast on the GPU: a forecast head makes queries for the next layer from this layer's input; the selection
// rotates them and scores them against the next layer's pooled keys.
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
        const int rows = prompts ? std::max(context_.rows(), context_.pieceTokens) : context_.rows();
        arena.plan(projected_, {rows, width()}, "forecasts");
        if (!prompts) return;
        arena.plan(query_, {rows, width()}, "forecasts");
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
    void prompt(const DevicePromptPiece& piece) override {
        if (!context_.spec.sparsePrefill || !context_.sparse(next(piece.layer))) return;
        forecastPrompt(context_.weights.layers[piece.layer].forecast, piece,
                       RowsOf(promptQueries_, width())[piece.first]);
    }
    void choosePrompt(const DevicePromptPiece& piece, cuda::SelectArgs& args) override {
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
    cuda::Norm normOf(LayerId layer) const {
        return {context_.weights.layers[layer].inputNorm, context_.config.streamNormEps()};
    }
    cuda::LinearOutput projected() const { return {projected_, width(), false, nullptr, nullptr}; }

    /// In a step the layer's own projections of the same input come right before.
    void forecast(const cuda::DeviceMatrix& heads, const DeviceStep& step, cuda::SelectArgs& select) {
        context_.linear->runAgain(heads, step.x, context_.config.hidden, context_.rows(), normOf(step.layer),
                                  projected(), step.stage1Mark);
        select.score = cuda::SelectArgs::Score::PooledProduct;
        select.guess = {projected_, context_.tables.ropeCos, context_.tables.ropeSin, context_.tables.ropeFirst,
                        context_.config.rope.interleaved};
        select.marks.pooling = step.poolingMark;
    }
    void forecastPrompt(const cuda::DeviceMatrix& heads, const DevicePromptPiece& piece, __nv_bfloat16* to) {
        context_.linear->run(heads, piece.x, context_.config.hidden, piece.n, normOf(piece.layer), projected());
        cuda::GuessArgs args;
        args.rows = piece.n;
        args.heads = context_.shape.kvHeads;
        args.dim = context_.shape.dim;
        args.projected = projected_;
        args.interleaved = context_.config.rope.interleaved;
        args.cos = context_.tables.ropeCos;
        args.sin = context_.tables.ropeSin;
        args.ropeFirst = context_.tables.ropeFirst + int(piece.sequence);
        args.oneSequence = true;
        args.firstPosition = piece.first;
        args.q = to;
        cuda::rotateGuess(context_.launch, args);
    }

    const DeviceSelectorContext context_;
    float* projected_ = nullptr; // [rows, kvHeads*dim]
    // With sparsePrefill: rotated queries of layer 0 [rows, kvHeads*dim], and of the next layer [prompt tokens, ..].
    __nv_bfloat16 *query_ = nullptr, *promptQueries_ = nullptr;
};

} // namespace

std::unique_ptr<DeviceSelector> forecastOnDevice(const DeviceSelectorContext& context) {
    return std::make_unique<ForecastOnDevice>(context);
}

} // namespace kvscope
