#include "ui/frame/filter.h"

#include <QCoreApplication>
#include <QStringList>

#include <algorithm>
#include <limits>

namespace kvscope::ui {

namespace {

constexpr int kEnd = std::numeric_limits<int>::max();

QString tr(const char* text) { return QCoreApplication::translate("Filter", text); }

} // namespace

IndexSet::IndexSet(std::vector<std::pair<int, int>> ranges) {
    std::sort(ranges.begin(), ranges.end());
    for (const auto& [first, last] : ranges) {
        if (!ranges_.empty() && (ranges_.back().second == kEnd || first <= ranges_.back().second + 1))
            ranges_.back().second = std::max(ranges_.back().second, last);
        else
            ranges_.emplace_back(first, last);
    }
}

std::optional<IndexSet> IndexSet::fromText(const QString& text) {
    std::vector<std::pair<int, int>> ranges;
    const auto number = [](QStringView part) -> std::optional<int> {
        bool fine = false;
        const int value = part.trimmed().toInt(&fine);
        if (!fine || value < 0) return std::nullopt;
        return value;
    };
    for (const QString& part : text.split(QLatin1Char(','), Qt::SkipEmptyParts)) {
        const QString range = part.trimmed();
        if (range.isEmpty()) continue;
        const auto dash = range.indexOf(QLatin1Char('-'));
        const auto first = number(dash < 0 ? QStringView(range) : QStringView(range).left(dash));
        const bool open = dash >= 0 && dash + 1 == range.size();
        const auto last = dash < 0 ? first : open ? std::optional(kEnd) : number(QStringView(range).mid(dash + 1));
        if (!first || !last || *last < *first) return std::nullopt;
        ranges.emplace_back(*first, *last);
    }
    return IndexSet(std::move(ranges));
}

QString IndexSet::text() const {
    QStringList parts;
    for (const auto& [first, last] : ranges_)
        parts << (first == last  ? QString::number(first)
                  : last == kEnd ? QStringLiteral("%1-").arg(first)
                                 : QStringLiteral("%1-%2").arg(first).arg(last));
    return parts.join(QStringLiteral(", "));
}

bool IndexSet::contains(int index) const {
    if (ranges_.empty()) return true;
    const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), index,
                                        [](int wanted, const auto& range) { return wanted < range.first; });
    return after != ranges_.begin() && index <= std::prev(after)->second;
}

std::vector<int> IndexSet::of(int count) const {
    std::vector<int> indices;
    for (int index = 0; index < count; ++index)
        if (contains(index)) indices.push_back(index);
    return indices;
}

QString filterNote(const Filter& filter, int appliedParts) {
    QStringList applied, ignored;
    const auto add = [&](FilterPart part, bool set, const QString& words) {
        if (set) (appliedParts & part ? applied : ignored) << words;
    };
    add(FilterLayers, !filter.layers.all(), tr("layers %1").arg(filter.layers.text()));
    add(FilterKvHeads, !filter.kvHeads.all(), tr("KV heads %1").arg(filter.kvHeads.text()));
    add(FilterSteps, !filter.steps.all(), tr("steps %1").arg(filter.steps.text()));
    add(FilterComponent, !filter.component.isEmpty(), tr("component %1").arg(filter.component));
    add(FilterText, !filter.text.isEmpty(), tr("text “%1”").arg(filter.text));
    QStringList sentences;
    if (!applied.isEmpty()) sentences << tr("Filtered: %1.").arg(applied.join(QStringLiteral(", ")));
    if (!ignored.isEmpty()) sentences << tr("Not filtered here: %1.").arg(ignored.join(QStringLiteral(", ")));
    return sentences.join(QLatin1Char(' '));
}

} // namespace kvscope::ui
