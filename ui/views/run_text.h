// Sentences and fragments that several views say in the same words.
#pragma once

#include "profiler/read/trace_reader.h"

#include <QString>

namespace kvscope::ui {

/// "decode step 12", "prefill (step 0)"; "step 12 (reads prompts, decodes)".
QString stepName(const RunRow& run, int step);
/// The title of an axis of steps: what step 0 is, or that steps are iterations of a server.
QString stepTitle(const RunRow& run);
/// "modelled" or "measured": how the run's transfer times are known.
QString timingWord(const RunRow& run);
/// "1 pixel = 62 steps, mean." or "" when every step has its own pixels.
QString aggregationNote(double stepsPerPixel, const QString& how);
/// "Loading: 4,096 of 100,000 steps." or "".
QString loadingNote(bool loading, int loaded, int total);
/// Text of a block as one paragraph of escaped HTML: at most `limit` characters, line ends and control characters
/// visible.
QString blockTextHtml(const std::string& text, int limit = 200);
/// Joins what is not empty with one space.
QString sentences(std::initializer_list<QString> parts);

} // namespace kvscope::ui
