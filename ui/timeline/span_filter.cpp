#include "ui/timeline/span_filter.h"

#include "core/trace/stage.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr std::uint32_t kPlaces = 3, kAtEach = 10; // a layer has about ten stages: one run of them sees every name

/// The name that the filter has for the component.
QString componentName(std::string_view component) {
    if (component == kToDeviceName || component == kToHostName)
        return QString::fromUtf8(nameOf(Stage::Offloading).data(), qsizetype(nameOf(Stage::Offloading).size()));
    if (component == "layer" || isStepName(component))
        return QString::fromUtf8(kOtherName.data(), qsizetype(kOtherName.size()));
    return QString::fromUtf8(component.data(), qsizetype(component.size()));
}

} // namespace

void SpanFilter::set(const Filter& filter) {
    filter_ = filter;
    filter_.kvHeads = {};
    active_ = !filter_.empty();
    names_.clear();
}

void SpanFilter::learn(const SpanIndex& index) {
    const std::vector<std::string>& names = index.names();
    for (std::size_t name = names_.size(); active_ && name < names.size(); ++name)
        names_.push_back(filter_.hasComponent(componentName(index.components()[name])) &&
                         filter_.hasText(QString::fromStdString(names[name])));
}

SpanFilter::Share SpanFilter::shareOf(const SpanIndex& index, int lane, const SpanBar& bar) const {
    Share share;
    std::int64_t all = 0, kept = 0, most = 0;
    std::array<std::pair<int, std::int64_t>, kPlaces * kAtEach> byName;
    std::size_t names = 0;
    const auto look = [&](std::uint32_t i) {
        const TimelineSpan span = index.at({lane, i});
        const std::int64_t time = std::max<std::int64_t>(span.durationNs, 1);
        all += time;
        if (!keeps(span)) return;
        kept += time;
        std::size_t at = 0;
        while (at < names && byName[at].first != span.name) ++at;
        if (at == names) byName[names++] = {span.name, 0};
        byName[at].second += time;
        if (byName[at].second > most) most = byName[at].second, share.name = span.name;
    };
    if (bar.count <= kPlaces * kAtEach)
        for (std::uint32_t i = 0; i < bar.count; ++i) look(bar.first + i);
    else
        for (std::uint32_t place = 0; place < kPlaces; ++place) {
            const std::uint32_t from =
                bar.first + std::uint32_t(std::uint64_t(bar.count - kAtEach) * place / (kPlaces - 1));
            for (std::uint32_t i = 0; i < kAtEach; ++i) look(from + i);
        }
    share.kept = all > 0 ? double(kept) / double(all) : 0;
    return share;
}

} // namespace kvscope::ui
