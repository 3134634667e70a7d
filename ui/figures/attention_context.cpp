// Figure: how the time to choose blocks and the time to attend to them grow with the context.
#include "ui/figures/make_figures.h"
#include "ui/frame/units.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

constexpr double kApart = 1.1; // the largest context must be at least this many times the smallest

/// Mean time of a layer in a decode step: to choose blocks, and to attend to them.
struct AttentionTime {
    double selectionNs = 0, attentionNs = 0;
};

AttentionTime timeOf(const reports::RunData& run) {
    AttentionTime time;
    double times = 0;
    for (const reports::LayerTotals& layer : run.layers) {
        const auto ns = [&](Stage stage) { return double(layer.warmStageNs[std::size_t(stage)]); };
        time.selectionNs += ns(Stage::Compression) + ns(Stage::Stage1) + ns(Stage::Pooling);
        time.attentionNs += ns(Stage::Stage2) + ns(Stage::Attention);
        times += double(layer.warmSteps);
    }
    return times > 0 ? AttentionTime{time.selectionNs / times, time.attentionNs / times} : AttentionTime{};
}

std::string attentionContextRefusal(const FigureSources& sources) {
    const auto contexts = distinct(sources, [](const reports::RunData& run) { return run.meanContext(); });
    if (contexts.empty()) return theRuns(sources) + ", and no decode step";
    if (contexts.back() >= kApart * contexts.front()) return {};
    return fmt::format("every run has a context of about {} tokens",
                       formatCount(std::llround(contexts.front())).toStdString());
}

FigureData makeAttentionContext(const FigureSources& sources) {
    double largest = 0;
    for (const reports::RunData& run : sources.runs)
        largest = std::max({largest, timeOf(run).selectionNs, timeOf(run).attentionNs});
    const TimeUnit unit = timeUnit(largest);
    SeriesByName times;
    for (const reports::RunData& run : sources.runs) {
        if (run.steps.empty()) continue;
        const std::string name = groupName(run, sources);
        const AttentionTime time = timeOf(run);
        const double context = std::round(run.meanContext());
        if (time.selectionNs > 0)
            times.add(name + ": selection", context, time.selectionNs / unit.ns, "measured", true);
        times.add(name + ": attention", context, time.attentionNs / unit.ns, "measured");
    }
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.xTitle = "Context (tokens)";
    panel.yTitle = std::string("Time of a layer and step (") + unit.name + ")";
    panel.xFromZero = true;
    panel.series = times.take();
    data.note = std::string("Measured wall time, mean over decode steps, ") + coldWords() +
                ", and layers. Selection: compression, scoring, pooling (open marks). Attention: over the selected "
                "blocks, or dense. Context: mean tokens in a sequence's cache.";
    return data;
}

} // namespace

const FigureEntry kAttentionContextFigure{
    "attention-context",     "Selection and attention time against context",
    "SparDA, Fig. 3",        "give traces of runs with at least two lengths of prompt",
    attentionContextRefusal, makeAttentionContext};

} // namespace kvscope::ui
