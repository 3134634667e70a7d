// The order of a decode step, written once. What each stage does is a backend's.
#pragma once

namespace kvscope {

/// The stages of one decode step over its rows, one token each. runStep calls them; a stage that has nothing to do in a
/// layer does nothing: only the backend knows which layers select, offload or are measured.
class Stages {
public:
    virtual ~Stages() = default;
    /// The residual stream of every row begins as its token's embedding.
    virtual void embed() = 0;
    /// Norm, projections and rotation: the queries, keys and values of the layer.
    virtual void project(int layer) = 0;
    /// The new keys enter what selection remembers of the layer (compression).
    virtual void append(int layer) = 0;
    /// Blocks or tokens are scored, and the ones to attend to are chosen (stage1, pooling).
    virtual void choose(int layer) = 0;
    /// Asks for what later layers will attend to, so that it travels while this one computes (pooling).
    virtual void lookAhead(int layer) = 0;
    /// Brings to the device what was chosen and is not there, and stores what has become full (offloading).
    virtual void load(int layer) = 0;
    /// Attention over what was chosen, or over everything (stage2, attention).
    virtual void attend(int layer) = 0;
    /// The method learns what its choice received, and may ask for the next step's blocks (compression, pooling).
    virtual void after(int layer) = 0;
    /// The oracle: what the attention would have been with every block. No stage of the method; its time is nobody's.
    virtual void measure(int layer) = 0;
    /// Output projection and feed-forward, each added to the residual stream (o_linear, ffn).
    virtual void finish(int layer) = 0;
    /// Logits of every row. Whoever runs the step then chooses the next tokens.
    virtual void head() = 0;
};

/// One decode step through `layers` layers.
void runStep(Stages& stages, int layers);

} // namespace kvscope
