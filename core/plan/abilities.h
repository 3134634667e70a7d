// What a method asks of the engine and which sessions it can run in, on one backend and under one set of parameters.
// The same form serves a selector on the CPU and one on the GPU.
#pragma once

#include <cstdint>

namespace kvscope {

/// When what a layer attends to was chosen, and hence what its transfers can hide behind.
enum class Ahead : std::uint8_t {
    No,        // in the layer itself
    NextLayer, // in the layer before it
    NextStep   // in the same layer of the step before
};

/// Every default is the cautious one: nothing is called, computed or kept that a method did not ask for, and no session
/// is begun that it did not say it can run.
struct Abilities {
    // What it asks for. On the CPU: calls that would otherwise be left out, and rows that would otherwise not be kept.
    bool plain = false;           // unrotated queries and keys
    bool input = false;           // the layer's normalised input
    bool prompt = false;          // calls of prompt and promptDone
    bool scores = false;          // calls of score
    bool after = false;           // calls of after
    bool promptAttention = false; // attendPrompt in place of full attention over the prompt
    bool ownKeys = false;         // it attends with other keys than the model's, whose sums tell the oracle nothing
    // On a GPU.
    bool logSums = false;       // of the attention over prompts
    bool valuesByToken = false; // once the prompt is read, values lie by token in the blocks of sparse layers
                                // ([blockSize][dim]), and new ones are appended likewise
    // On both. With NextLayer, lookAhead is called for the layer that follows.
    Ahead ahead = Ahead::No;

    // What it can do.
    bool latent = false;       // latent attention: one KV head whose values are the beginning of its keys
    bool pastWindow = false;   // sequences that grow past a layer's sliding window
    bool headNorms = false;    // models that normalise the queries and keys of each head
    bool sparsePrompt = false; // reads prompts by its own choice of blocks (SelectionSpec::sparsePrefill, or its own)
    bool quantisedKv = false; // runs with KV blocks of another type than the backend's own: it reads no keys and values
                              // of the blocks itself, or only while a prompt is read
    bool rowsIndependent = false; // what a sequence attends to does not depend on the others of its batch

    bool looksAhead() const { return ahead != Ahead::No; }
};

} // namespace kvscope
