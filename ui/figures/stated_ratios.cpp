#include "ui/figures/stated_ratios.h"

#include <cstring>
#include <fmt/format.h>

namespace kvscope::ui {

const std::vector<StatedRatio>& statedRatios() {
    static const std::vector<StatedRatio> table{
        {"batch", "SparseServe, Fig. 1", 2.07, "throughput x{:.2f} from batch 2 to 6"},
        {"batch", "SparseServe, Fig. 1", 1.73, "throughput /{:.2f} from 6 to 12"},
        {"batch", "SparseServe, Fig. 1", 21.36, "x{:.2f} as many blocks loaded from 6 to 12"},
        {"transfer-bandwidth", "SparseServe, Fig. 4", 20,
         "more than {:.0f} GB/s for blocks of 4 to 32 tokens with one kernel"},
        {"transfer-bandwidth", "SparseServe, Fig. 4", 5, "less than {:.0f} GB/s with a copy call for each block"},
        {"overlap", "SparseServe, Fig. 8", 10.68, "{:.2f} points more at w = 12 than at w = 1"},
        {"overlap", "SparseServe, Fig. 8", 0.31, "{:.2f} points more at w = 16 than at w = 12"},
        {"request-rate", "SparseServe, Fig. 10", 9.26, "TTFT up to {:.2f}x lower than vLLM's"},
        {"request-rate", "SparseServe, Fig. 11", 2.93, "throughput up to {:.2f}x and {:.2f}x that of vLLM", 3.14},
        {"request-rate", "SparseServe, Fig. 11", 2.23, "up to {:.2f}x and {:.2f}x that of vLLM with a sparse method",
         2.03},
        {"request-rate", "SparseServe, Fig. 11", 2.96, "up to {:.2f}x and {:.2f}x that of one that offloads too", 4.24},
        {"request-rate", "SparseServe, Fig. 12", 20, "TBT within {:.0f} % of vLLM's"},
        {"request-rate", "SparseServe, Fig. 15", 29.52,
         "throughput {:.2f} % lower at 0.3 than at 0.25 requests/s without control of working sets"},
        {"request-rate", "SparseServe, Fig. 15", 52.78, "{:.2f}x fewer blocks loaded with it at 0.3 requests/s"},
        {"request-rate", "SparseServe, Fig. 16", 8.68, "TTFT up to {:.2f}x lower by layers than in chunks"},
        {"ladder", "SparseServe, Fig. 13", 1.20, "+sparse x{:.2f} and x{:.2f}", 1.13},
        {"ladder", "SparseServe, Fig. 13", 1.33, "+offload x{:.2f} and x{:.2f}", 1.12},
        {"ladder", "SparseServe, Fig. 13", 1.88, "+kernel x{:.2f} and x{:.2f}", 1.19},
        {"ladder", "SparseServe, Fig. 13", 1.33, "+control x{:.2f} and x{:.2f}", 1.11},
        {"ladder", "SparseServe, Fig. 13", 1.25, "+layers x{:.2f} and x{:.2f}", 1.10},
        {"ladder", "SparseServe, Fig. 13", 4.99, "together x{:.2f} and x{:.2f} (LWM-7B and Llama-3-8B)", 1.84},
        {"loading", "SparseServe, Fig. 14a", 69.94,
         "{:.2f} % of the time for loading at batch 8 with a copy call for each block"},
        {"loading", "SparseServe, Fig. 14a", 9.97, "up to {:.2f}x less with one kernel"},
        {"prompt-stores", "SparseServe, Fig. 14b", 1.76,
         "{:.2f}x the time of computing with a copy call for each block"},
        {"prompt-stores", "SparseServe, Fig. 14b", 1.28, "{:.2f}x with the stores of a kernel"},
        {"prompt-stores", "SparseServe, Fig. 14b", 1.00, "{:.2f}x with one copy that threads scatter"},
        {"prompt-chunks", "SparseServe, Fig. 16", 1.51, "{:.2f}x the time for prompts in chunks of 512"},
        {"prompt-chunks", "SparseServe, Fig. 16", 8.68,
         "TTFT up to {:.2f}x lower by layers than in chunks at high rates"},
    };
    return table;
}

std::string statedText(const StatedRatio& ratio) {
    return fmt::format(fmt::runtime(ratio.text), ratio.value, ratio.other);
}

std::string statedWords(std::string_view figure) {
    std::string words;
    const StatedRatio* before = nullptr;
    const auto inPaper = [](const StatedRatio& ratio) { return std::string_view(std::strchr(ratio.source, ',') + 2); };
    for (const StatedRatio& ratio : statedRatios()) {
        if (ratio.figure != figure) continue;
        if (!before)
            words = std::string(ratio.source, std::strchr(ratio.source, ',')) + " states ";
        else if (std::strcmp(before->source, ratio.source) == 0)
            words += ", ";
        else
            words += fmt::format(" ({}); ", inPaper(*before));
        words += statedText(ratio);
        before = &ratio;
    }
    return before ? words + fmt::format(" ({})", inPaper(*before)) : words;
}

} // namespace kvscope::ui
