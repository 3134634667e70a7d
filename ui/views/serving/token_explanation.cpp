#include "ui/views/serving/token_explanation.h"

#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/views/serving/lanes_strip.h"

#include <QStringList>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kMembersNamed = 4; // in words; the table has all

/// What a request was doing, in words.
QString stateAt(const ServingData& data, std::int64_t number, double ns) {
    for (const RequestSpanRow& span : data.rows.spans)
        if (span.request == number && double(span.startNs) <= ns && ns <= double(span.endNs))
            return servedStateName(span.state);
    const auto index = data.indexOf(number);
    if (!index) return View::tr("it is not known");
    const RequestRow& request = data.rows.requests[*index];
    if (ns < double(request.arrivalNs)) return View::tr("it had not arrived");
    return request.ended() && ns > double(request.endNs) ? View::tr("it had ended")
                                                         : QString::fromStdString(request.status.text());
}

/// Where a span of time went, in nanoseconds.
struct Spent {
    std::int64_t iterations = 0;
    double decode = 0, prompts = 0; // of all iterations that ended in it
    double paused = 0, queued = 0;  // of the request
};
Spent spentBetween(const ServingData& data, std::int64_t request, double from, double to) {
    Spent spent;
    for (const IterationRow& each : data.rows.iterations)
        if (double(each.endNs()) > from && double(each.endNs()) <= to) {
            ++spent.iterations;
            spent.decode += double(each.decodeNs), spent.prompts += double(each.prefillNs);
        }
    for (const RequestSpanRow& span : data.rows.spans) {
        if (span.request != request) continue;
        const double inside = std::min(to, double(span.endNs)) - std::max(from, double(span.startNs));
        if (inside > 0 && span.state == ServedState::Paused) spent.paused += inside;
        if (inside > 0 && span.state == ServedState::Queued) spent.queued += inside;
    }
    return spent;
}

} // namespace

QString layersText(const MemberRow& member, const QString& between) {
    const std::int64_t last = member.layerTo - 1; // layerTo is the first one that was not read any more
    return last <= member.layerFrom ? View::tr("layer %1").arg(member.layerFrom)
                                    : View::tr("layers %1").arg(member.layerFrom) + between + QString::number(last);
}

QString describeIteration(const IterationRow& iteration, const std::vector<MemberRow>& members) {
    QStringList parts;
    for (const MemberRow& member : members) {
        if (parts.size() == kMembersNamed && int(members.size()) > kMembersNamed + 1) {
            parts << View::tr("and %1 more").arg(formatCount(std::int64_t(members.size()) - kMembersNamed));
            break;
        }
        parts << (member.prefill ? View::tr("request %1 read %2 tokens in %3")
                                       .arg(formatCount(member.request), formatCount(member.tokens),
                                            layersText(member, View::tr(" to ")))
                                 : (member.misses == 1 ? View::tr("request %1 decoded (%2 miss, %3)")
                                                       : View::tr("request %1 decoded (%2 misses, %3)"))
                                       .arg(formatCount(member.request), formatCount(member.misses),
                                            servingBytes(double(member.h2dBytes))));
    }
    const QString bound =
        iteration.limitedBy == "none"
            ? View::tr("nothing bound its plan")
            : View::tr("its plan was bound by %1").arg(servingLimit(QString::fromStdString(iteration.limitedBy)));
    return View::tr("Iteration %1 took %2, predicted %3; %4: %5.")
        .arg(formatCount(iteration.iteration), servingTime(double(iteration.durationNs)),
             servingTime(double(iteration.predictedNs)), bound,
             parts.isEmpty() ? View::tr("no request was served") : parts.join(QStringLiteral(", ")));
}

QString explainToken(const ServingData& data, const IterationRow& iteration, const std::vector<MemberRow>& members,
                     std::int64_t request) {
    const QString name = formatCount(request);
    const auto member =
        std::find_if(members.begin(), members.end(), [&](const MemberRow& m) { return m.request == request; });
    if (member == members.end() || member->tokenNs < 0)
        return View::tr("Request %1 made no token in it: %2.")
            .arg(name, stateAt(data, request, double(iteration.endNs())));
    const auto index = data.indexOf(request);
    if (!index) return {};
    const RequestRow& served = data.rows.requests[*index];
    const auto gap = std::find_if(data.gaps.begin(), data.gaps.end(),
                                  [&](const TokenGap& g) { return g.request == request && g.ns == member->tokenNs; });
    const bool isFirst = gap == data.gaps.end();
    const double to = double(member->tokenNs), from = isFirst ? double(served.arrivalNs) : to - double(gap->gapNs);
    const Spent spent = spentBetween(data, request, from, to);
    const double limit = isFirst ? served.ttftBoundMs : served.tbtBoundMs;
    QString text = (isFirst ? View::tr("The first token of request %1 came %2 after its arrival")
                            : View::tr("The token of request %1 came %2 after the one before it"))
                       .arg(name, servingTime(to - from));
    if (limit > 0)
        text += (to - from > limit * 1e6 ? View::tr(", beyond its bound of %1") : View::tr(", within its bound of %1"))
                    .arg(servingTime(limit * 1e6));
    QStringList own;
    if (spent.queued > 0) own << View::tr("queued for %1").arg(servingTime(spent.queued));
    if (spent.paused > 0) own << View::tr("paused for %1").arg(servingTime(spent.paused));
    if (!own.isEmpty()) text += View::tr("; it was %1").arg(own.join(View::tr(" and ")));
    const double rest = std::max(0.0, to - from - spent.decode - spent.prompts);
    return text + (spent.iterations == 1 ? View::tr(". %1 iteration meanwhile: decode %2, prompts %3, the rest %4.")
                                         : View::tr(". %1 iterations meanwhile: decode %2, prompts %3, the rest %4."))
                      .arg(formatCount(spent.iterations), servingTime(spent.decode), servingTime(spent.prompts),
                           servingTime(rest));
}

} // namespace kvscope::ui
