// The generator of synthetic runs belongs to the profiler's tests; the views are tested on the same runs.
#include "tests/profiler/synthetic_run.cpp" // NOLINT(bugprone-suspicious-include)
