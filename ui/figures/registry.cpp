#include "base/error.h"
#include "ui/figures/make_figures.h"

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
    std::string names;
    for (const FigureEntry& entry : figures()) {
        if (entry.id == id) return entry;
        names += (names.empty() ? "" : ", ") + std::string(entry.id);
    }
    throw Error(ErrorKind::BadInput, "there is no figure named " + id, "choose one of " + names);
}

} // namespace kvscope::ui
