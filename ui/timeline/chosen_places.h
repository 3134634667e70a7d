// Where the chosen span and the ends of its arrows lie in the file. Their places in the index change when spans arrive
// late; this finds them again.
#pragma once

#include "ui/timeline/span_facts.h"
#include "ui/timeline/timeline_canvas.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvscope::ui {

class ChosenPlaces {
public:
    explicit ChosenPlaces(const TimelineCanvas& canvas);
    /// Gives the canvas the same span and the same arrows at their new places, if spans have moved since this object
    /// was made.
    void restore(TimelineCanvas& canvas) const;

private:
    struct Arrow {
        SpanFlow::Kind kind;
        SpanPlace from, to;
    };
    std::uint64_t moves_;
    std::optional<SpanPlace> chosen_;
    std::vector<Arrow> arrows_;
};

} // namespace kvscope::ui
