// How steps that rates leave out are called.
#pragma once

#include "profiler/read/trace_reader.h"

#include <QString>

#include <cstdint>

namespace kvscope::ui {

/// "1 cold step", "3 cold steps", of runs with prompts in pieces "3 cold or mixed steps".
QString leftOutSteps(const RunRow& run, std::int64_t count);

} // namespace kvscope::ui
