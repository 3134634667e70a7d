// The order of the stages of a decode step, the same for all backends. Each backend says what the stages do.
#pragma once

#include "base/ids.h"

namespace kvscope {

/// The stages of one decode step, which feeds one token for each row. runStep calls every stage in every layer. Only
/// the backend knows which layers select, offload or are measured, so a stage with nothing to do in a layer returns at
/// once.
class Stages {
public:
    virtual ~Stages() = default;
    /// Sets the residual stream of every row to the embedding of the row's token.
    virtual void embed() = 0;
    /// Makes the queries, keys and values of the layer: norm, projections and rotation (qkv_linear, rope).
    virtual void project(LayerId layer) = 0;
    /// Adds the new keys to the block index of the layer or to what the method remembers (compression).
    virtual void append(LayerId layer) = 0;
    /// Scores blocks or tokens and chooses those that the layer attends to (stage1, pooling).
    virtual void choose(LayerId layer) = 0;
    /// Asks for what later layers will attend to, so that it travels while this layer computes (pooling; on the GPU
    /// also stage1).
    virtual void lookAhead(LayerId layer) = 0;
    /// Loads chosen blocks that are not on the device, and writes back blocks that have become full (offloading).
    virtual void load(LayerId layer) = 0;
    /// Attends to what was chosen, or to everything (stage2, attention).
    virtual void attend(LayerId layer) = 0;
    /// Tells the method what attention its choice received. The method may ask for blocks of the next step
    /// (compression, pooling).
    virtual void after(LayerId layer) = 0;
    /// Runs the oracle: measures what the attention would have been with every block. The time counts for no stage.
    virtual void measure(LayerId layer) = 0;
    /// Adds the output projection and then the feed-forward to the residual stream (o_linear, ffn).
    virtual void finish(LayerId layer) = 0;
    /// Makes the logits of every row. The caller of runStep then chooses the next tokens.
    virtual void head() = 0;
};

/// Runs one decode step through `layers` layers.
void runStep(Stages& stages, int layers);

/// The order of a step whose rows are two halves, so that one half computes while blocks of the other travel. A half
/// works in a layer twice: choose(half, layer) is project, append and choose, which start the transfers of the half,
/// and attend(half, layer) is all that comes behind them. Between the two of one half the other half attends in the
/// layer before or, as the second half, chooses and attends in this one.
template <class Choose, class Attend> void inHalves(int layers, const Choose& choose, const Attend& attend) {
    constexpr int kHalves = 2;
    for (int half = 0; half < kHalves; ++half) choose(half, LayerId{0});
    for (const LayerId layer : idsUpTo<LayerId>(layers))
        for (int half = 0; half < kHalves; ++half) {
            attend(half, layer);
            if (int(layer) + 1 < layers) choose(half, next(layer));
        }
}

} // namespace kvscope
