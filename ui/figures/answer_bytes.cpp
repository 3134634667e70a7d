// Figure: the share of needles that are answered against the bytes that a token needs from the host, with intervals,
// method by method, and the Pareto front of all of them; a panel for each context.
#include "profiler/tune/share.h"
#include "ui/figures/make_figures.h"
#include "ui/frame/units.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <set>

namespace kvscope::ui {
namespace {

constexpr std::size_t kMostContexts = 4; // panels

/// Points with needles and bytes, by bytes.
std::vector<EvalPoint> answered(const FigureSources& sources) {
    std::vector<EvalPoint> points;
    for (const EvalPoint& point : sources.evals)
        if (point.prompts > 0 && std::isfinite(point.bytesPerToken)) points.push_back(point);
    std::stable_sort(points.begin(), points.end(),
                     [](const EvalPoint& a, const EvalPoint& b) { return a.bytesPerToken < b.bytesPerToken; });
    return points;
}

double shareOf(const EvalPoint& point) { return double(point.right) / double(point.prompts); }

std::string answerBytesRefusal(const FigureSources& sources) {
    if (sources.evals.empty()) return "there are no scores here, traces have none";
    const std::vector<EvalPoint> points = answered(sources);
    const auto loading =
        std::count_if(points.begin(), points.end(), [](const EvalPoint& point) { return point.bytesPerToken > 0; });
    return loading >= 2 ? std::string() : "fewer than two rows have needles and load blocks";
}

void add(FigureSeries& series, const EvalPoint& point, double unit) {
    const ShareInterval interval = wilsonInterval(point.right, point.prompts);
    series.x.push_back(point.bytesPerToken / unit);
    series.y.push_back(100 * shareOf(point));
    series.low.push_back(100 * interval.low);
    series.high.push_back(100 * interval.high);
}

/// points: of one context, by bytes.
FigurePanel panelOf(const std::vector<EvalPoint>& points, const Scale& scale) {
    FigurePanel panel;
    panel.xTitle = fmt::format("Bytes from the host per token ({})", scale.name.toStdString());
    panel.yTitle = fmt::format("Needles answered (%), {} tokens", points.front().context);
    panel.xFromZero = true;
    panel.yHigh = 103;
    FigureSeries front;
    front.name = "Pareto front";
    front.hollow = true;
    double best = -1;
    for (const EvalPoint& point : points) {
        const bool resident = point.bytesPerToken == 0;
        const std::string name = methodTitle(point.method) + (resident ? ", resident" : "");
        auto series = std::find_if(panel.series.begin(), panel.series.end(),
                                   [&](const FigureSeries& one) { return one.name == name; });
        if (series == panel.series.end()) {
            panel.series.emplace_back().name = name;
            series = panel.series.end() - 1;
            series->hollow = resident;
        }
        add(*series, point, scale.factor);
        if (resident || shareOf(point) <= best) continue;
        best = shareOf(point);
        front.x.push_back(point.bytesPerToken / scale.factor);
        front.y.push_back(100 * best);
    }
    if (!front.x.empty()) panel.series.push_back(std::move(front));
    return panel;
}

FigureData makeAnswerBytes(const FigureSources& sources) {
    const std::vector<EvalPoint> points = answered(sources);
    std::set<int> contexts;
    double most = 0;
    std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
    for (const EvalPoint& point : points) {
        contexts.insert(point.context);
        most = std::max(most, point.bytesPerToken);
        fewest = std::min(fewest, point.prompts);
    }
    FigureData data;
    for (const int context : contexts) {
        if (data.panels.size() == kMostContexts) break;
        std::vector<EvalPoint> own;
        for (const EvalPoint& point : points)
            if (point.context == context) own.push_back(point);
        data.panels.push_back(panelOf(own, scaleFor(Unit::Bytes, most)));
    }
    data.note = fmt::format(
        "Needles answered with 95 % intervals by Wilson, at least {} prompts a point; where intervals overlap, so many "
        "prompts do not tell two points apart. Bytes are those of the decode steps of these prompts, cold ones too. On "
        "the Pareto front no other point answers as many with fewer bytes; methods that keep every block on the device "
        "load nothing and are not on it{}.",
        fewest,
        contexts.size() > kMostContexts
            ? fmt::format("; {} more contexts are in the file", contexts.size() - kMostContexts)
            : std::string());
    return data;
}

} // namespace

const FigureEntry kAnswerBytesFigure{
    "answer-bytes",
    "Answers kept against bytes per token",
    "",
    "give a JSON document of kvscope-cli eval with at least two rows that load blocks, "
    "of other methods, budgets or block sizes",
    answerBytesRefusal,
    makeAnswerBytes};

} // namespace kvscope::ui
