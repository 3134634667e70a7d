// The charts of the HTML report: inline SVG and the data of heatmaps. Every mark tells its value when hovered.
#pragma once

#include "profiler/report/report.h"

#include <string>
#include <string_view>

namespace kvscope::reports {

/// Text as content or attribute of HTML and XML; characters that XML forbids become spaces, and controls of writing
/// direction are shown (withDirectionsShown).
std::string escaped(std::string_view text);
std::string base64(std::string_view bytes);
/// Index of a component's colour in the style sheet: stages, then embed, lm_head, sample, other.
std::size_t colourOf(std::string_view component);
/// "var(--run0)", ...; repeats after six.
std::string runColour(std::size_t run);
std::string runClass(std::size_t run); // of elements whose colour is the run's

/// A bar per run, as long as its mean decode step, cut into components; modelled link time is drawn beside it.
std::string breakdownChart(const Report& report);
/// Step time, misses and exposed time over the decode steps, one chart each.
std::string stepCharts(const Report& report);
/// Locality, misses and wall time by layer, one chart each.
std::string layerCharts(const Report& report);
/// Layer by step, with a choice of metrics; empty if the run has no decode step.
std::string heatmap(const RunData& run, std::size_t index);

} // namespace kvscope::reports
