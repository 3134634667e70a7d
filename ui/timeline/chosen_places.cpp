#include "ui/timeline/chosen_places.h"

#include <utility>

namespace kvscope::ui {

ChosenPlaces::ChosenPlaces(const TimelineCanvas& canvas) : moves_(canvas.scene().data->index.moves()) {
    const SpanIndex& index = canvas.scene().data->index;
    if (!canvas.scene().selected) return;
    chosen_ = placeOfSpan(index, *canvas.scene().selected);
    for (const SpanFlow& flow : canvas.scene().flows)
        arrows_.push_back({flow.kind, placeOfSpan(index, flow.from), placeOfSpan(index, flow.to)});
}

void ChosenPlaces::restore(TimelineCanvas& canvas) const {
    const SpanIndex& index = canvas.data().index;
    if (!chosen_ || moves_ == index.moves()) return;
    const auto again = spanAtPlace(index, *chosen_);
    std::vector<SpanFlow> flows;
    for (const Arrow& arrow : arrows_) {
        const auto from = spanAtPlace(index, arrow.from), to = spanAtPlace(index, arrow.to);
        if (again && from && to) flows.push_back({arrow.kind, *from, *to});
    }
    canvas.select(again);
    canvas.setFlows(std::move(flows));
}

} // namespace kvscope::ui
