// What this program has understood of a model, in words and numbers for people. The command line's `info` and the
// desktop's model page both show it.
#pragma once

#include "core/session/kv_estimate.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// Whether a method runs on a model.
struct MethodFit {
    std::string name, title;
    bool applies = true;
    std::string remark; // why the method does not apply, or what else to know; may be empty
};

struct ModelSummary {
    std::string name, architecture; // as the file says
    std::string family;             // this program's name for it, e.g. "Qwen3"
    int layers = 0, hidden = 0, queryHeads = 0, kvHeads = 0, headDim = 0, ffn = 0, vocabulary = 0, context = 0;
    // In words
    std::string attention;          // "grouped queries, 32 query heads on 8 KV heads of 128 channels"
    std::string feedForward;        // "SwiGLU, 8192 wide"
    std::string rope;               // "llama3 x8 from 8192 tokens, theta 500000"
    std::string scales;             // muP; empty: none
    std::string gpuProblem;         // why the GPU backend cannot run the model; empty: it can
    std::string weights;            // types of the matrices, the one with the most bytes first: "q4_K, q6_K"
    std::vector<std::string> notes; // what the files do not say, or what is ignored, with the effect
    bool tiedEmbeddings = false, evictionHead = false, forecastHeads = false;
    std::int64_t fileBytes = 0, weightBytesPerToken = 0;
    std::int64_t kvBytesPerTokenCpu = 0, kvBytesPerTokenGpu = 0; // float32 and bf16
    std::vector<MethodFit> methods;
};

/// What a person has to know of the model's files: what Model::load noted, and where the configuration disagrees with
/// the tokenizer, with the tensors or with the methods that there are. A sentence each, without a full stop.
std::vector<std::string> notesOf(const Model& model);

ModelSummary summarize(const Model& model);

/// Memory of one session with the checkpoint's own parameters.
struct SessionMemory {
    std::string method;
    Backend backend = Backend::Cpu;
    std::int64_t hostKvBytes = 0, deviceKvBytes = 0, indexBytes = 0;
    std::int64_t hostWeightBytes = 0, deviceWeightBytes = 0; // CPU: mapped file; GPU: bf16 matrices
    int blockSlots = 0; // slots per (sequence, layer, KV head); 0: everything resident
    std::int64_t hostBytes() const { return hostKvBytes + hostWeightBytes; }
    std::int64_t deviceBytes() const { return deviceKvBytes + indexBytes + deviceWeightBytes; }
};

/// One entry for each method that applies and each backend that can run the model with that method. On the CPU the
/// device tier is a part of ordinary memory. @throws Error(BadInput) when context or batch is out of range
std::vector<SessionMemory> memoryNeeds(const Model& model, int context, int batch);

} // namespace kvscope
