// The memory that the test program holds on its heap, counted from outside the code that takes it.
#pragma once

#include <cstdint>

namespace kvscope::test {

/// Whether allocations are counted: not under a sanitizer, which has an allocator of its own.
bool countsAllocations();
/// Bytes held now, and the most since forgetMost().
std::int64_t bytesHeld();
std::int64_t mostBytesHeld();
void forgetMost();

} // namespace kvscope::test
