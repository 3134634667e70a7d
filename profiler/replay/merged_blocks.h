// A recorded run as if its blocks had been larger: several recorded blocks in a row are one.
#pragma once

#include "profiler/replay/selection_trace.h"

namespace kvscope {

/// The same requests as sets of blocks of `factor` recorded ones: a larger block is asked for when any part of it was.
/// Block size, block bytes and device slots (of the same memory, rounded up) follow; what the recording itself had
/// (hits, misses, bytes) stays, but its outcomes per request are gone. It is not what a method would have selected with
/// such blocks: that one scores larger blocks and picks as many as its budget has. @throws Error(BadInput | Cancelled):
/// factor below 1, or blocks of more than 4 GiB; the trace has shared pools
SelectionTrace withMergedBlocks(const SelectionTrace& trace, int factor, const std::stop_token& stop = {});

} // namespace kvscope
