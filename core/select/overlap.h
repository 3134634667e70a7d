// What computes while KV blocks travel that nothing has announced: nothing, or the other half of the sequences
// ("two-batch overlap").
#pragma once

#include "core/select/parameters.h"

namespace kvscope::select {

/// "overlap", none or halves.
Parameter overlap();
/// Whether these parameters have "overlap" and ask for halves.
bool overlapsHalves(const ParameterValues& values);

} // namespace kvscope::select
