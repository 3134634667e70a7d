#include "profiler/read/prompt_search.h"

#include "profiler/read/token_text.h"

namespace kvscope {
namespace {

constexpr std::size_t kBefore = 12, kAfter = 28; // bytes of text around a match

} // namespace

PromptMatches findInPrompt(const TraceReader& reader, int runId, int sequence, const std::string& text) {
    PromptMatches matches;
    const auto run = reader.run(runId);
    if (!run || run->blockSize <= 0 || sequence < 0) return matches;
    TokenText prompt(run->blockSize);
    for (const TokenRow& token : reader.prompt(runId, sequence)) {
        prompt.add(token);
        ++matches.promptTokens;
    }
    const std::vector<std::size_t> found = prompt.firstMatches(text);
    for (std::size_t block = 0; block < found.size(); ++block)
        if (found[block] != TokenText::kNowhere)
            matches.blocks.push_back({int(block), prompt.around(found[block], text.size(), kBefore, kAfter)});
    return matches;
}

std::vector<BlockChoice> blockChoices(const TraceReader& reader, const RunRow& run, const HeadAtStep& at,
                                      const std::vector<FoundBlock>& blocks) {
    std::vector<BlockChoice> choices(blocks.size());
    for (int head = 0; head < run.kvHeads && !blocks.empty(); ++head) {
        const auto row = reader.selection(run.runId, at.step, at.layer, at.sequence, head);
        if (!row) continue;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            const bool selected = findBlock(row->blocks, blocks[i].block) != nullptr;
            ++choices[i].choosing;
            choices[i].heads += selected;
            if (head == at.kvHead) choices[i].head = selected ? BlockChoice::Head::Selected : BlockChoice::Head::Passed;
        }
    }
    return choices;
}

} // namespace kvscope
