#include "ui/views/locality/locality_rows.h"
#include "base/indexed.h"

#include <QCoreApplication>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope::ui {

namespace {
QString tr(const char* text) { return QCoreApplication::translate("LocalityRows", text); }
} // namespace

void LocalityRows::reset(const Shown& shown, int count, const ReadFilter& filter) {
    shown_ = shown;
    name(count);
    counted_.clear();
    for (int row = 0; row < count; ++row)
        if (shown_.kind == Kind::HeadsOfLayer ? filter.hasKvHead(row % shown_.kvHeads) : filter.hasLayer(row))
            counted_.push_back(row);
    if (int(counted_.size()) == count) counted_.clear(); // empty means that every row counts
    order_ = counted_;
}

void LocalityRows::name(int count) {
    names_.clear();
    ticks_.clear();
    const bool ofSequences = shown_.kind == Kind::HeadsOfLayer && shown_.sequence < 0 && count != shown_.kvHeads;
    for (int row = 0; row < count; ++row) {
        if (ofSequences) {
            const int sequence = row / shown_.kvHeads, head = row % shown_.kvHeads;
            names_ << tr("sequence %1 KV head %2").arg(sequence).arg(head);
            ticks_ << QStringLiteral("%1.%2").arg(sequence).arg(head);
        } else {
            names_ << (shown_.kind == Kind::HeadsOfLayer ? tr("KV head %1") : tr("layer %1")).arg(row);
            ticks_ << QString::number(row);
        }
    }
    axisTitle_ = shown_.kind == Kind::Layers         ? tr("Layer")
                 : shown_.kind == Kind::LayersOfHead ? tr("Layer, KV head %1").arg(shown_.kvHead)
                 : ofSequences                       ? tr("Sequence.KV head of layer %1").arg(shown_.layer)
                                                     : tr("KV head of layer %1").arg(shown_.layer);
}

QString LocalityRows::title(int row) const {
    if (shown_.kind == Kind::HeadsOfLayer) return tr("layer %1, %2").arg(shown_.layer).arg(names_.value(row));
    if (shown_.kind == Kind::LayersOfHead) return tr("%1, KV head %2").arg(names_.value(row)).arg(shown_.kvHead);
    return names_.value(row);
}

std::optional<int> LocalityRows::placeOf(int row) const {
    if (order_.empty()) return row;
    const auto at = std::find(order_.begin(), order_.end(), row);
    if (at == order_.end()) return std::nullopt;
    return int(at - order_.begin());
}

void LocalityRows::sort(Sort sort, NumberedSpan<const CellStats> stats) {
    order_ = counted_;
    if (sort == Sort::AsRecorded || stats.empty()) return;
    if (order_.empty()) {
        order_.resize(stats.size());
        std::iota(order_.begin(), order_.end(), 0);
    }
    const auto mean = [&](int row) { return stats[row].value(Aggregate::Mean); };
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
        if (std::isnan(mean(a)) || std::isnan(mean(b))) return std::isnan(mean(b)) && !std::isnan(mean(a));
        return sort == Sort::HighestFirst ? mean(a) > mean(b) : mean(a) < mean(b);
    });
}

std::optional<int> LocalityRows::rowOf(const Cursor& cursor) const {
    if (shown_.kind != Kind::HeadsOfLayer) return cursor.layer;
    if (shown_.sequence < 0) return cursor.sequence * shown_.kvHeads + cursor.kvHead;
    if (shown_.sequence != cursor.sequence) return std::nullopt;
    return cursor.kvHead;
}

void LocalityRows::point(Cursor& cursor, int row) const {
    if (shown_.kind == Kind::HeadsOfLayer) {
        cursor.kvHead = row % shown_.kvHeads;
        cursor.sequence = shown_.sequence >= 0 ? shown_.sequence : row / shown_.kvHeads;
    } else {
        cursor.layer = row;
        if (shown_.sequence >= 0) cursor.sequence = shown_.sequence;
    }
}

} // namespace kvscope::ui
