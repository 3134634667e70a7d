// Traces whose steps have numbers far apart.
#pragma once

#include "profiler/format/trace_keys.h"
#include "tests/profiler/sql_rows.h"

#include <string>

namespace kvscope::test {

/// Gives a step of run 1, its layers and its selections another number, which no step has.
inline void renumberStep(const std::string& trace, int step, int number) {
    const std::string by = std::to_string(number - step), key = std::to_string(trace::stepKey(1, step));
    sql(trace,
        "UPDATE step SET id = id + " + by + " WHERE id = " + key + "; UPDATE layer_step SET id = id + (" + by +
            " << 10) WHERE id >> 10 = " + key + "; UPDATE selection SET id = id + (" + by +
            " << 30) WHERE id >> 30 = " + key,
        SQLITE_OPEN_READWRITE);
}

} // namespace kvscope::test
