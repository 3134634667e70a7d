// Figure: the attention of a denoising forward by the parts of LoSA's own breakdown, run by run, and how much faster
// each run's is than full attention over the same prefix in blocks of the same length.
#include "profiler/read/denoising.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <vector>

namespace kvscope::ui {
namespace {

/// A part of the paper's breakdown, and the stages that it is here.
struct Part {
    const char* name;
    std::vector<Stage> stages;
};
const std::vector<Part>& parts() {
    static const std::vector<Part> all{{"Locality pruning", {Stage::Compression}},
                                       {"Criticality estimation", {Stage::Stage1, Stage::Pooling}},
                                       {"Cache management", {Stage::Offloading}},
                                       {"Attention computation", {Stage::Stage2, Stage::Attention}}};
    return all;
}

bool denoiseBreakdownDrawable(const reports::RunData& run) {
    return denoisingBlock(run.row) > 0 && !denoisesCanvas(run.row) && !run.stepParts.empty() && !run.layers.empty();
}

std::string denoiseBreakdownRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), denoiseBreakdownDrawable)) return {};
    return theRuns(sources) + ", and in none is a block denoised";
}

/// Runs that are compared: of equally long prefixes and blocks, on one backend.
std::string cellOf(const reports::RunData& run) {
    return fmt::format("{:.3g}K, block {}{}", run.meanContext() / 1024, denoisingBlock(run.row),
                       run.row.sequences > 1 ? fmt::format(", batch {}", run.row.sequences) : "");
}

/// Mean time of a layer by part: of the forwards that choose pages or, where none does, of those over a prefix.
std::array<double, 4> timesOf(const reports::RunData& run) {
    const bool chooses =
        std::any_of(run.steps.begin(), run.steps.end(), [](const StepRow& step) { return step.selected > 0; });
    std::array<double, 4> times{};
    double forwards = 0;
    for (std::size_t i = 0; i < run.stepParts.size(); ++i) {
        if (!run.counts(i) || (chooses && run.steps[i].selected == 0)) continue;
        ++forwards;
        for (std::size_t part = 0; part < times.size(); ++part)
            for (const Stage stage : parts()[part].stages)
                times[part] += double(run.stepParts[i].stageNs[std::size_t(stage)]);
    }
    for (double& time : times) time /= std::max(1.0, forwards) * double(run.layers.size());
    return times;
}

double sumOf(const std::array<double, 4>& times) { return times[0] + times[1] + times[2] + times[3]; }

/// "12.3K, block 16: LoSA 3.1, Quest 2.4", by what full attention takes.
std::string speedUps(const std::vector<const reports::RunData*>& runs, const FigureSources& sources) {
    std::map<std::string, double> dense;
    for (const reports::RunData* run : runs)
        if (run->row.method == "full") dense[cellOf(*run)] = sumOf(timesOf(*run));
    std::map<std::string, std::string> words;
    for (const reports::RunData* run : runs) {
        const auto base = dense.find(cellOf(*run));
        const double time = sumOf(timesOf(*run));
        if (run->row.method == "full" || base == dense.end() || time <= 0) continue;
        std::string& own = words[base->first];
        own += fmt::format("{}{} {:.2f}", own.empty() ? "" : ", ", groupName(*run, sources), base->second / time);
    }
    std::string all;
    for (const auto& [cell, own] : words) all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", cell, own);
    return all.empty() ? "no run of full attention has the same prefix and block as another run" : all;
}

FigureData makeDenoiseBreakdown(const FigureSources& sources) {
    std::vector<const reports::RunData*> runs;
    for (const reports::RunData& run : sources.runs)
        if (denoiseBreakdownDrawable(run)) runs.push_back(&run);
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.mark = FigurePanel::Mark::StackedBars;
    double longest = 0;
    for (const reports::RunData* run : runs) {
        const double budget = parameterOf(*run, "budget");
        panel.names.push_back(fmt::format("{}{}, {}", groupName(*run, sources),
                                          std::isfinite(budget) ? fmt::format(" {:g}", budget) : "", cellOf(*run)));
        longest = std::max(longest, sumOf(timesOf(*run)));
    }
    const TimeUnit unit = timeUnit(longest);
    panel.xTitle = std::string("Attention of a layer in a forward (") + unit.name + ")";
    for (std::size_t part = 0; part < parts().size(); ++part) {
        FigureSeries series;
        series.name = parts()[part].name;
        series.colour = int(parts()[part].stages.front());
        series.basis = "measured";
        bool any = false;
        for (std::size_t bar = 0; bar < runs.size(); ++bar) {
            series.x.push_back(timesOf(*runs[bar])[part] / unit.ns);
            series.y.push_back(double(bar));
            any |= series.x.back() > 0;
        }
        if (any) panel.series.push_back(std::move(series));
    }
    data.note = fmt::format("Measured time, mean over forwards that choose pages (all forwards of full attention), {}, "
                            "and layers; projections "
                            "and the rest of the layer are left out. Full attention over the method: {}. LoSA states, "
                            "for 64K and blocks of 16 "
                            "on an A6000, 4.14 for itself and 3.26 for Quest, and on an RTX 5090 3.67 and 2.85.",
                            coldWords(), speedUps(runs, sources));
    return data;
}

} // namespace

const FigureEntry kDenoiseBreakdownFigure{
    "denoise-breakdown",
    "Attention of a denoising forward by its parts",
    "LoSA, Fig. 6",
    "give traces of a block-diffusion model with full, quest and losa over one prompt, for the paper's cells "
    "64K tokens with --set block=16 and 32K with --set block=32 (kvscope-cli run --prompt-needle 65536 ...)",
    denoiseBreakdownRefusal,
    makeDenoiseBreakdown};

} // namespace kvscope::ui
