// Where a prompt holds a text, and which KV heads selected the blocks that hold it.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// A KV block with tokens of a prompt that hold the text, whether a head selected it or not.
struct FoundBlock {
    int block = 0;
    std::string text; // around the first match in the block, valid UTF-8
};

struct PromptMatches {
    std::vector<FoundBlock> blocks; // ascending
    int promptTokens = 0;           // that are recorded; while a prompt is being read there may be none yet
};

/// The blocks of a sequence's prompt that hold `text`, by the joined bytes of the prompt's tokens: a match across a
/// border counts for all of its blocks. The case of A to Z does not matter. An empty text is found in none.
/// @throws Error(Storage | Cancelled)
PromptMatches findInPrompt(const TraceReader& reader, int runId, int sequence, const std::string& text);

/// A KV head of a layer at a step, of one sequence.
struct HeadAtStep {
    int step = 0, sequence = 0, layer = 0, kvHead = 0;
};

/// How the KV heads of a layer treated a block at a step.
struct BlockChoice {
    enum class Head : std::uint8_t { ChoseNone, Passed, Selected }; // ChoseNone: the head has no selection there
    int choosing = 0;            // KV heads of the layer with a selection at the step
    int heads = 0;               // of those, with the block
    Head head = Head::ChoseNone; // the head that was asked about
};

/// One for each of these blocks. Reads one selection of every KV head of the layer. @throws Error(Storage | Cancelled)
std::vector<BlockChoice> blockChoices(const TraceReader& reader, const RunRow& run, const HeadAtStep& at,
                                      const std::vector<FoundBlock>& blocks);

} // namespace kvscope
