#include "profiler/run/recorded_text.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {

std::size_t RecordedText::longest() const {
    std::size_t result = 0;
    for (const auto& ids : generated) result = std::max(result, ids.size());
    return result;
}

RecordedText readText(const TraceReader& reader, const RunRow& run) {
    RecordedText text;
    for (int sequence = 0; sequence < run.sequences; ++sequence) {
        auto& prompt = text.prompts.emplace_back();
        for (const TokenRow& token : reader.prompt(run.runId, sequence)) prompt.push_back(token.id);
        auto& generated = text.generated.emplace_back();
        for (const TokenRow& token : reader.tokens(run.runId, sequence)) generated.push_back(token.id);
        if (prompt.empty())
            throw Error(
                ErrorKind::BadInput,
                fmt::format("run {} of {} does not hold the prompt of sequence {}", run.runId, reader.path(), sequence),
                "it cannot be run again; record it with this version");
    }
    return text;
}

} // namespace kvscope
