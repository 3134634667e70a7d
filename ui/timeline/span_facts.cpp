#include "ui/timeline/span_facts.h"

#include "ui/models/format.h"
#include "ui/timeline/time_ticks.h"

#include <QCoreApplication>

#include <map>
#include <string_view>

namespace kvscope::ui {

namespace {

constexpr int kArgsShown = 24, kArgsInTooltip = 6, kLongestArg = 160;

QString tr(const char* text) { return QCoreApplication::translate("SpanFacts", text); }

/// "gridX: 132", one a line.
QString argsText(const SpanDetail& detail, int most) {
    QStringList lines;
    for (const auto& [name, value] : detail.args) {
        if (lines.size() == most) {
            lines << tr("and %1 more").arg(std::ssize(detail.args) - most);
            break;
        }
        QString text = QString::fromStdString(value).simplified();
        if (text.size() > kLongestArg) text = text.left(kLongestArg) + QStringLiteral("…");
        lines << QStringLiteral("%1: %2").arg(QString::fromStdString(name), text);
    }
    return lines.join(QLatin1Char('\n'));
}

} // namespace

QString meaningOf(std::string_view component) {
    static const std::map<std::string_view, const char*> meanings{
        {"prefill",
         QT_TRANSLATE_NOOP("SpanFacts", "reads the prompts; where tokens are decoded one by one, gives the first")},
        {"decode", QT_TRANSLATE_NOOP("SpanFacts", "one token for every sequence, or one denoising forward")},
        {kMixedName,
         QT_TRANSLATE_NOOP("SpanFacts", "reads pieces of prompts, and decodes other sequences beside them")},
        {"layer", QT_TRANSLATE_NOOP("SpanFacts", "all stages of one layer")},
        {"qkv_linear", QT_TRANSLATE_NOOP("SpanFacts", "norm and the projections to queries, keys and values")},
        {"rope", QT_TRANSLATE_NOOP("SpanFacts", "rotary embedding of queries and keys")},
        {"compression", QT_TRANSLATE_NOOP("SpanFacts", "adds the new key to the block index")},
        {"stage1", QT_TRANSLATE_NOOP("SpanFacts", "scores the blocks against the query")},
        {"pooling", QT_TRANSLATE_NOOP("SpanFacts", "pools the scores and picks the blocks")},
        {"offloading", QT_TRANSLATE_NOOP("SpanFacts", "finds what is missing on the device and copies it there")},
        {"stage2", QT_TRANSLATE_NOOP("SpanFacts", "attention over the selected blocks")},
        {"attention", QT_TRANSLATE_NOOP("SpanFacts", "dense attention over all blocks")},
        {"o_linear", QT_TRANSLATE_NOOP("SpanFacts", "output projection")},
        {"ffn", QT_TRANSLATE_NOOP("SpanFacts", "feed-forward network")},
        {"embed", QT_TRANSLATE_NOOP("SpanFacts", "looks the tokens up")},
        {"lm_head", QT_TRANSLATE_NOOP("SpanFacts", "projection to the vocabulary")},
        {"sample", QT_TRANSLATE_NOOP("SpanFacts", "chooses the next token, or which masks become tokens")},
        {kToDeviceName, QT_TRANSLATE_NOOP("SpanFacts", "KV blocks that were selected and missing on the device")},
        {kToHostName, QT_TRANSLATE_NOOP("SpanFacts", "full KV blocks written back to the host store")},
    };
    const auto at = meanings.find(component);
    return at == meanings.end() ? QString() : tr(at->second);
}

namespace {

/// The bandwidth that was reached, and its share of the link's.
QString bandwidth(std::int64_t bytes, std::int64_t ns, double linkGbps) {
    if (ns <= 0) return {};
    const double achieved = double(bytes) / double(ns);
    const QString text = QStringLiteral("%1 GB/s").arg(achieved, 0, 'f', 2);
    if (linkGbps <= 0) return text;
    return tr("%1, %2 of the link's %3 GB/s")
        .arg(text, formatValue(Unit::Percent, achieved / linkGbps * 100))
        .arg(linkGbps, 0, 'f', 1);
}

QString nameAndTrack(const TimelineData& data, SpanRef ref) {
    return QStringLiteral("%1 (%2)").arg(shownName(data, data.index.at(ref)),
                                         QString::fromStdString(data.index.tracks()[data.index.lane(ref.lane).track]));
}

QString placeOf(const TimelineSpan& span) {
    if (span.step < 0) return {};
    const QString step = tr("step %1").arg(span.step);
    return span.layer < 0 ? step : step + tr(", layer %1").arg(span.layer);
}

} // namespace

SpanContext readSpanContext(const TraceReader& reader, int runId, const SpanPlace& place, int step, int layer,
                            const SpanRows* rows) {
    SpanContext context;
    context.flows = recordedFlows(reader, runId, place, rows);
    context.detail = spanDetail(reader, runId, place, rows);
    if (step < 0) return context;
    const std::vector<StepRow> steps = reader.steps(runId, step, step);
    if (!steps.empty()) context.step = steps.front();
    if (layer < 0 || steps.empty()) return context;
    const Numbered<LayerRecord> layers(reader.layers(runId, step));
    if (layer < layers.count()) context.layer = layers[layer];
    return context;
}

SpanPlace placeOfSpan(const SpanIndex& index, SpanRef ref) {
    const SpanLane lane = index.lane(ref.lane);
    const TimelineSpan span = index.at(ref);
    return {index.tracks()[lane.track], index.names()[span.name], span.startNs, span.durationNs, lane.depth};
}

std::optional<SpanRef> spanAtPlace(const SpanIndex& index, const SpanPlace& place) {
    const int track = index.trackOf(place.track);
    for (int lane = 0; track >= 0 && lane < index.laneCount(); ++lane) {
        const SpanLane info = index.lane(lane);
        if (info.track != track || info.depth != place.depth) continue;
        for (std::uint32_t i = index.lowerBound(lane, place.startNs); i < info.spans; ++i) {
            const SpanRef ref{lane, i};
            if (index.at(ref).startNs != place.startNs) break;
            if (placeOfSpan(index, ref) == place) return ref;
        }
    }
    return std::nullopt;
}

std::vector<SpanFlow> arrowsOf(const SpanIndex& index, SpanRef ref, const std::vector<RecordedFlow>& flows) {
    std::vector<SpanFlow> arrows;
    for (const RecordedFlow& flow : flows)
        if (const auto other = spanAtPlace(index, flow.other))
            arrows.push_back({SpanFlow::Kind::Launch, flow.leaves ? ref : *other, flow.leaves ? *other : ref});
    return arrows;
}

namespace {

/// The facts about one span, from the index of its timeline and from its rows of the trace.
class FactsOfSpan {
public:
    FactsOfSpan(const TimelineData& data, SpanRef ref, const SpanContext& context, const LinkKnowledge& link)
        : data_(data), ref_(ref), context_(context), link_(link), index_(data.index), span_(index_.at(ref)),
          name_(index_.names()[span_.name]), component_(index_.components()[span_.name]),
          track_(index_.tracks()[index_.lane(ref.lane).track]),
          isStep_(track_ == kHostTrack && span_.layer < 0 && index_.lane(ref.lane).depth == 0),
          toDevice_(name_ == kToDeviceName), toHost_(name_ == kToHostName), offloading_(component_ == "offloading") {}

    SpanFacts all(const std::vector<SpanFlow>& flows) {
        addPlaceAndTime();
        addBytes();
        addSelection();
        addWaits();
        addArrows(flows);
        addNeighbours();
        return std::move(facts_);
    }

private:
    void add(const QString& name, const QString& value) {
        if (!value.isEmpty()) facts_.emplace_back(name, value);
    }

    void addPlaceAndTime() {
        add(tr("Span"), shownName(data_, span_));
        add(tr("What it does"), meaningOf(component_));
        add(tr("Category"), QString::fromStdString(context_.detail.category));
        add(tr("Track"), QString::fromStdString(track_));
        add(tr("Belongs to"), placeOf(span_));
        QString begin = formatTime(double(span_.startNs), 1);
        if (context_.step && span_.startNs > context_.step->startNs)
            begin += tr(", %1 into its step").arg(formatTime(double(span_.startNs - context_.step->startNs), 1));
        add(tr("Begins"), begin);
        QString length = formatTime(double(span_.durationNs), 1);
        if (context_.step && context_.step->durationNs > 0 && span_.durationNs < context_.step->durationNs)
            length += tr(", %1 of its step").arg(formatShare(span_.durationNs, context_.step->durationNs));
        add(tr("Lasts"), length);
        if (const auto& kind = context_.kind)
            add(tr("Among its kind"),
                tr("longer than %1 of %2; median %3, 99th percentile %4, longest %5")
                    .arg(formatShare(std::int64_t(kind->shorter), std::int64_t(kind->spans)),
                         formatCount(std::int64_t(kind->spans)), formatTime(double(kind->medianNs), 1),
                         formatTime(double(kind->percentile99Ns), 1), formatTime(double(kind->longestNs), 1)));
        add(tr("Arguments"), argsText(context_.detail, kArgsShown));
    }

    void addBytes() {
        if (const auto copied = index_.bytesOf(span_.name)) {
            add(tr("Bytes"), formatBytes(*copied));
            add(tr("Bandwidth"), bandwidth(*copied, span_.durationNs, link_.gbps));
        } else if (context_.layer && (toDevice_ || toHost_ || offloading_)) {
            const LayerRecord& layer = *context_.layer;
            const std::int64_t bytes = toHost_ ? layer.d2hBytes : layer.h2dBytes;
            const int blocks = toHost_ ? layer.d2hBlocks : layer.h2dBlocks;
            add(tr("Bytes"), !link_.knows.has(Known::Bytes) ? tr("not known")
                             : bytes > 0 ? tr("%1 in %2 blocks").arg(formatBytes(bytes), formatCount(blocks))
                                         : tr("none"));
            if (bytes > 0 && (toDevice_ || toHost_))
                add(tr("Bandwidth"), tr("%1 (%2)").arg(bandwidth(bytes, span_.durationNs, link_.gbps), link_.timing));
        } else if (context_.step && isStep_) {
            add(tr("Bytes"), context_.step->h2dBytes + context_.step->d2hBytes > 0
                                 ? tr("%1 to the device, %2 to the host")
                                       .arg(formatBytes(context_.step->h2dBytes), formatBytes(context_.step->d2hBytes))
                                 : QString());
        }
    }

    void addSelection() {
        if (context_.layer && context_.layer->selected > 0 &&
            (component_ == "stage1" || component_ == "pooling" || component_ == "stage2" || component_ == "layer" ||
             offloading_))
            add(tr("Selection"),
                !link_.knows.has(Known::Hits)
                    ? tr("%1 blocks, hits not known").arg(formatCount(context_.layer->selected))
                    : tr("%1 blocks, %2 hits, %3 misses")
                          .arg(formatCount(context_.layer->selected), formatCount(context_.layer->hits),
                               formatCount(context_.layer->misses)));
    }

    void addWaits() {
        QStringList exposed, waits;
        if (context_.layer && context_.layer->exposedNs > 0 &&
            (toDevice_ || offloading_ || component_ == "stage2" || component_ == "layer"))
            exposed << tr("the layer waited %1 for the link (%2)")
                           .arg(formatDuration(context_.layer->exposedNs), link_.timing);
        if (context_.step && isStep_ && context_.step->exposedNs > 0)
            exposed << tr("the step waited %1 for the link (%2)")
                           .arg(formatDuration(context_.step->exposedNs), link_.timing);
        const SpanWait wait = waitOf(index_, ref_);
        if (wait.before && wait.idleNs > 0) {
            QString text = tr("%1 after %2 ended")
                               .arg(formatTime(double(wait.idleNs), 1), shownName(data_, index_.at(*wait.before)));
            if (wait.lastToEnd)
                text += tr("; the last to end meanwhile was %1").arg(nameAndTrack(data_, *wait.lastToEnd));
            waits << text;
        } else if (wait.before) {
            waits << tr("nothing: it follows %1 at once").arg(shownName(data_, index_.at(*wait.before)));
        }
        add(tr("Exposed"), exposed.join(QLatin1Char('\n')));
        add(tr("Waited"), waits.join(QLatin1Char('\n')));
    }

    void addArrows(const std::vector<SpanFlow>& flows) {
        QStringList arrows;
        for (const SpanFlow& flow : flows) {
            const bool out = flow.from == ref_;
            const QString other = nameAndTrack(data_, out ? flow.to : flow.from);
            if (flow.kind == SpanFlow::Kind::Launch)
                arrows << (out ? tr("launches %1") : tr("launched by %1")).arg(other);
            else
                arrows << (out ? tr("its blocks are used by %1") : tr("uses the blocks of %1")).arg(other);
            if (arrows.size() == 6) {
                arrows << tr("and more");
                break;
            }
        }
        add(tr("Arrows"), arrows.join(QLatin1Char('\n')));
    }

    void addNeighbours() {
        const auto neighbour = [&](std::uint32_t i, double gap) {
            const SpanRef other{ref_.lane, i};
            const QString text = tr("%1, %2").arg(shownName(data_, index_.at(other)),
                                                  formatTime(double(index_.at(other).durationNs), 1));
            return gap > 0 ? tr("%1, %2 apart").arg(text, formatTime(gap, 1)) : text;
        };
        if (ref_.index > 0)
            add(tr("Before"), neighbour(ref_.index - 1, double(span_.startNs) -
                                                            double(index_.at({ref_.lane, ref_.index - 1}).endNs())));
        if (ref_.index + 1 < index_.lane(ref_.lane).spans)
            add(tr("After"), neighbour(ref_.index + 1,
                                       double(index_.at({ref_.lane, ref_.index + 1}).startNs) - double(span_.endNs())));
    }

    const TimelineData& data_;
    const SpanRef ref_;
    const SpanContext& context_;
    const LinkKnowledge& link_;
    const SpanIndex& index_;
    const TimelineSpan span_;
    const std::string &name_, &component_, &track_;
    const bool isStep_, toDevice_, toHost_, offloading_;
    SpanFacts facts_;
};

} // namespace

SpanFacts factsOf(const TimelineData& data, SpanRef ref, const std::vector<SpanFlow>& flows, const SpanContext& context,
                  const LinkKnowledge& link) {
    return FactsOfSpan(data, ref, context, link).all(flows);
}

QStringList spanFactNames() {
    return {tr("Span"),    tr("What it does"),   tr("Category"),  tr("Track"),  tr("Belongs to"), tr("Begins"),
            tr("Lasts"),   tr("Among its kind"), tr("Arguments"), tr("Bytes"),  tr("Bandwidth"),  tr("Selection"),
            tr("Exposed"), tr("Waited"),         tr("Arrows"),    tr("Before"), tr("After")};
}

QString tooltipOf(const TimelineData& data, SpanRef ref, const SpanDetail& detail) {
    QString title, length;
    QStringList lines;
    SpanContext context;
    context.detail.category = detail.category;
    for (const auto& [name, value] : factsOf(data, ref, {}, context, {})) {
        const QString text = value.toHtmlEscaped();
        if (name == tr("Span"))
            title = text;
        else if (name == tr("Lasts"))
            length = text;
        else if (name == tr("Belongs to") || name == tr("What it does") || name == tr("Bytes") ||
                 name == tr("Category"))
            lines << text;
        else if (name == tr("Bandwidth"))
            lines.isEmpty() ? lines.append(text) : void(lines.back() += QStringLiteral(", ") + text);
    }
    if (!detail.args.empty())
        lines << argsText(detail, kArgsInTooltip).toHtmlEscaped().replace(QLatin1Char('\n'), QStringLiteral("<br>"));
    return QStringLiteral("<b>%1</b> &nbsp;%2").arg(title, length) +
           (lines.isEmpty() ? QString() : QStringLiteral("<br>") + lines.join(QStringLiteral("<br>")));
}

} // namespace kvscope::ui
