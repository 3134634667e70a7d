#include "base/error.h"
#include "base/nearest_name.h"
#include "ui/figures/make_figures.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace kvscope::ui {

const std::vector<FigureEntry>& figures() {
    static const std::vector<FigureEntry> table{
        kLocalityFigure,         kThroughputHitRateFigure, kTransferBandwidthFigure,
        kScoreBudgetFigure,      kLayerBreakdownFigure,    kBatchFigure,
        kOverlapFigure,          kAttentionContextFigure,  kDevicePoolFigure,
        kQueryChangeFigure,      kTokenChangeFigure,       kKvChangeFigure,
        kDenoiseBreakdownFigure, kActiveSetFigure,         kDensityFigure,
        kQualityFigure,          kRequestRateFigure,       kLoadingFigure,
        kPromptStoresFigure,     kPromptChunksFigure,      kLayerReuseFigure,
        kLookBackFigure,         kAnswerBytesFigure,       kLadderFigure,
    };
    return table;
}

const FigureEntry& findFigure(const std::string& id) {
    std::vector<std::string> names;
    for (const FigureEntry& entry : figures()) {
        if (entry.id == id) return entry;
        names.emplace_back(entry.id);
    }
    throw Error(ErrorKind::BadInput, "there is no figure named " + id + didYouMean(id, names),
                fmt::format("choose one of {}", fmt::join(names, ", ")));
}

} // namespace kvscope::ui
