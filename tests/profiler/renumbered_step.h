// Traces whose steps have numbers far apart.
#pragma once

#include "profiler/format/trace_keys.h"
#include "tests/profiler/sql_rows.h"

#include <string>

namespace kvscope::test {

/// Gives a step of run 1, its layers, selections and tokens another number, which no step has. The steps between count
/// as dropped, so that no rule of the format is broken.
inline void renumberStep(const std::string& trace, int step, int number) {
    const std::string by = std::to_string(number - step), key = std::to_string(trace::stepKey(1, step));
    sql(trace,
        "UPDATE step SET id = id + " + by + " WHERE id = " + key + "; UPDATE layer_step SET id = id + (" + by +
            " << 10) WHERE id >> 10 = " + key + "; UPDATE selection SET id = id + (" + by +
            " << 30) WHERE id >> 30 = " + key + "; UPDATE token SET id = id + (" + by +
            " << 20) WHERE id >> 20 = " + key + "; UPDATE health SET dropped_steps = dropped_steps + " + by,
        SQLITE_OPEN_READWRITE);
}

} // namespace kvscope::test
