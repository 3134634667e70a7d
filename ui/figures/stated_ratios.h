// Numbers that the papers state beside their figures, as data. Captions put them beside what recorded runs show.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::ui {

/// A number that a paper states about what a figure of ours shows.
struct StatedRatio {
    const char* figure; // id of our figure
    const char* source; // "SparseServe, Fig. 1"
    double value;
    const char* text; // what it says, with one place for each number: "throughput x{:.2f} from batch 2 to 6"
    double other = std::numeric_limits<double>::quiet_NaN(); // the same of the paper's second model
};

/// All of them; those of one figure and source stand together.
const std::vector<StatedRatio>& statedRatios();

/// The ratio's text with its numbers in it.
std::string statedText(const StatedRatio& ratio);

/// What papers state about the figure, in one sentence without a full stop: "SparseServe states throughput x2.07 from
/// batch 2 to 6 (Fig. 1)". Empty: nothing.
std::string statedWords(std::string_view figure);

} // namespace kvscope::ui
