// A recorded run as if its blocks had been larger: several neighbouring recorded blocks are one.
#pragma once

#include "profiler/replay/selection_trace.h"

namespace kvscope {

/// The same requests as sets of larger blocks, each of `factor` recorded blocks. A larger block is in a request if any
/// of its parts is. Block size, block bytes and device slots (of the same memory, rounded up) change with them. The
/// recording's own hits, misses and bytes stay; its outcomes per request are left out. A method that ran with such
/// blocks would select others: it would score the larger blocks and choose as many as its budget has.
/// @throws Error(BadInput | Cancelled): factor below 1, blocks of more than 4 GiB, or shared pools
SelectionTrace withMergedBlocks(const SelectionTrace& trace, int factor, const std::stop_token& stop = {});

} // namespace kvscope
