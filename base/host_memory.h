#pragma once

#include <cstddef>

namespace kvscope {

/// Bytes of host memory that can still be taken without swapping, by the system and by the container's limit; the
/// largest number where neither is known.
std::size_t availableHostMemory();

} // namespace kvscope
