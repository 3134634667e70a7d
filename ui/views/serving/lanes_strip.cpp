#include "ui/views/serving/lanes_strip.h"

#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/plots/lane_plottable.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/tick_fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvscope::ui {
namespace {

/// Prompts and decoding have the colours of TTFT and TBT below them.
std::vector<QColor> stateColours(const Theme& theme) {
    return {theme.undefinedCell, theme.runB, theme.runA, theme.miss};
}

} // namespace

QString servedStateName(ServedState state) {
    switch (state) {
    case ServedState::Queued:
        return View::tr("queued");
    case ServedState::Prefill:
        return View::tr("prompt is read");
    case ServedState::Decode:
        return View::tr("decodes");
    case ServedState::Paused:
        return View::tr("paused");
    }
    return {};
}

double LanesStrip::laneOf(const ServingData& data, std::int64_t request) const {
    const auto index = data.indexOf(request);
    return !index || *index >= lane_.size() ? -1 : lane_[*index];
}

const RequestRow* LanesStrip::requestAt(const ServingData& data, double lane) const {
    const auto place = std::lround(lane);
    if (place < 0 || place >= std::lround(double(byLane_.size()))) return nullptr;
    return &data.rows.requests[byLane_[std::size_t(place)]];
}

void LanesStrip::build(QCPAxisRect& panel) {
    QCPAxis* lanes = panel.axis(QCPAxis::atLeft);
    lanes->setRangeReversed(true);
    setIntegerAxis(lanes, View::tr("Requests"));
    lanes->setProperty(kShortTitle, View::tr("Req."));
    lanes_ = new LanePlottable(panel.axis(QCPAxis::atBottom), lanes);
}

void LanesStrip::sort(const ServingData& data) {
    const std::vector<RequestRow>& requests = data.rows.requests;
    const std::size_t count = requests.size();
    byLane_.resize(count);
    std::iota(byLane_.begin(), byLane_.end(), std::size_t(0));
    std::vector<double> worth(count, 0); // longest first
    if (order_ == Order::TimeToFirstToken)
        for (std::size_t i = 0; i < count; ++i)
            worth[i] = requests[i].firstTokenNs < 0 ? 0 : double(requests[i].firstTokenNs - requests[i].arrivalNs);
    if (order_ == Order::WorstGap)
        for (const TokenGap& late : data.rows.late)
            if (const auto index = data.indexOf(late.request))
                worth[*index] = std::max(worth[*index], double(late.gapNs));
    std::stable_sort(byLane_.begin(), byLane_.end(), [&](std::size_t a, std::size_t b) { return worth[a] > worth[b]; });
    lane_.resize(count);
    for (std::size_t place = 0; place < count; ++place) lane_[byLane_[place]] = double(place);
}

QCPRange LanesStrip::fill(const ServingData& data) {
    sort(data);
    const double end = data.end();
    const std::vector<RequestRow>& requests = data.rows.requests;
    std::vector<LanePlottable::Bar> bars;
    std::vector<LanePlottable::Mark> marks;
    bars.reserve(data.rows.spans.size() + requests.size());
    std::vector<double> known(requests.size(), -1); // [request] where its last ended span ends
    for (const RequestSpanRow& span : data.rows.spans) {
        const auto index = data.indexOf(span.request);
        if (!index) continue;
        bars.push_back({double(span.startNs), double(span.endNs), lane_[*index], int(span.state)});
        known[*index] = double(span.endNs);
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const RequestRow& row = requests[i];
        if (row.status == ServedStatus::Refused || row.status == ServedStatus::Failed)
            marks.push_back({double(row.endNs >= 0 ? row.endNs : row.arrivalNs), lane_[i], true});
        if (row.ended()) continue;
        for (int state = 0; state < kServedStates; ++state) // the span of a request that has not ended
            if (row.status == statusOf(ServedState(state)))
                bars.push_back({known[i] < 0 ? double(row.arrivalNs) : known[i], end, lane_[i], state});
    }
    for (const TokenGap& late : data.rows.late)
        if (const double lane = laneOf(data, late.request); lane >= 0) marks.push_back({double(late.ns), lane, false});
    lanes_->setData(std::move(bars), std::move(marks));
    return {-0.5, std::max(0.5, double(requests.size()) - 0.5)};
}

void LanesStrip::themed(const Theme& theme) { lanes_->setColours(stateColours(theme), theme.text); }

QVector<Swatch> LanesStrip::swatches(const Theme& theme) const {
    QVector<Swatch> swatches;
    for (int state = 0; state < kServedStates; ++state)
        swatches << Swatch{
            servedStateName(ServedState(state)), stateColours(theme)[std::size_t(state)], Swatch::Mark::Fill, {}};
    return swatches << Swatch{View::tr("late token"), theme.text, Swatch::Mark::Tick, {}};
}

void LanesStrip::addFacts(const ServingData& data, double ns, double lane, const Add& add) const {
    const RequestRow* found = requestAt(data, lane);
    if (!found) return;
    const RequestRow& request = *found;
    add(View::tr("Request"),
        formatCount(request.number) +
            (request.kind.empty() ? QString() : QStringLiteral(", ") + QString::fromStdString(request.kind)));
    add(View::tr("Tokens"),
        View::tr("%1 read, %2 of %3 made")
            .arg(formatCount(request.promptTokens), formatCount(request.outputTokens), formatCount(request.maxTokens)));
    for (const RequestSpanRow& span : data.rows.spans)
        if (span.request == request.number && double(span.startNs) <= ns && ns < double(span.endNs))
            add(View::tr("Here"),
                servedStateName(span.state) + QStringLiteral(", ") + servingTime(double(span.endNs - span.startNs)));
    if (request.firstScheduledNs >= 0)
        add(View::tr("Queue delay"), servingTime(double(request.firstScheduledNs - request.arrivalNs)));
    if (request.firstTokenNs >= 0)
        add(View::tr("First token after"), servingTime(double(request.firstTokenNs - request.arrivalNs)));
    if (request.ended()) add(View::tr("Ended"), QString::fromStdString(request.status.text()));
    if (request.pauses > 0)
        add(View::tr("Paused"), (request.pauses == 1 ? View::tr("%1 time, %2") : View::tr("%1 times, %2"))
                                    .arg(formatCount(request.pauses), servingTime(double(request.pausedNs))));
    if (request.hits + request.misses > 0)
        add(View::tr("Hits"),
            formatValue(Unit::Percent, 100.0 * double(request.hits) / double(request.hits + request.misses)));
    if (!request.reason.empty()) add(View::tr("Reason"), QString::fromStdString(request.reason));
}

} // namespace kvscope::ui
