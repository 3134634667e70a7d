#include "ui/timeline/timeline_colours.h"

#include "core/trace/stage.h"
#include "profiler/read/span_batch.h"
#include "ui/look/theme.h"

#include <cstdint>

namespace kvscope::ui {

QRgb mixed(QRgb a, QRgb b, double t) {
    const auto part = [t](int x, int y) { return int(x + (y - x) * t + 0.5); };
    return qRgb(part(qRed(a), qRed(b)), part(qGreen(a), qGreen(b)), part(qBlue(a), qBlue(b)));
}

QRgb spanColour(std::string_view component, const Theme& theme) {
    for (std::size_t stage = 0; stage < kStageCount; ++stage)
        if (component == kStageNames[stage]) return theme.component[stage].rgb();
    for (std::size_t stage = 0; stage < kStepStageCount; ++stage)
        if (component == kStepStageNames[stage]) return theme.component[kStageCount + stage].rgb();
    if (component == nameOf(Phase::Decode)) return mixed(theme.accent.rgb(), theme.plotBackground.rgb(), 0.45);
    if (component == nameOf(Phase::Prefill)) return mixed(theme.warning.rgb(), theme.plotBackground.rgb(), 0.35);
    if (component == kMixedName) return mixed(theme.warning.rgb(), theme.accent.rgb(), 0.5);
    if (component == "layer") return theme.hit.rgb();
    const QColor offloading = theme.component[std::size_t(Stage::Offloading)];
    if (component == kToDeviceName) return offloading.rgb();
    if (component == kToHostName) return mixed(offloading.rgb(), theme.plotBackground.rgb(), 0.45);
    // Names of others: by what they are called without numbers, so that copies of all sizes look alike.
    std::uint64_t hash = 0xcbf29ce484222325; // FNV-1a
    for (const char c : component)
        if (c < '0' || c > '9') hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    hash ^= hash >> 32;
    // Three shades of each, so that fewer names share one.
    const QRgb hue = theme.component[hash % 13].rgb();
    switch (hash / 13 % 3) {
    case 0:
        return mixed(hue, theme.mutedText.rgb(), 0.25);
    case 1:
        return mixed(hue, theme.plotBackground.rgb(), 0.35);
    default:
        return mixed(hue, theme.text.rgb(), 0.2);
    }
}

QRgb textOn(QRgb colour) {
    const double light = 0.299 * qRed(colour) + 0.587 * qGreen(colour) + 0.114 * qBlue(colour);
    return light > 140 ? qRgb(20, 24, 30) : qRgb(250, 251, 253);
}

const Numbered<QRgb>& SpanColours::of(std::uint64_t table, const std::vector<std::string>& components,
                                      const Theme& theme) {
    if (theme_ != theme.id || table_ != table) colours_.clear();
    theme_ = theme.id;
    table_ = table;
    for (std::size_t name = colours_.size(); name < components.size(); ++name)
        colours_.push_back(spanColour(components[name], theme));
    return colours_;
}

} // namespace kvscope::ui
