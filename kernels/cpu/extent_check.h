// The preset asan compiles the products of linear_simd.cpp and products_simd.cpp without checks of each access: with
// them each vector load is a call, and a run of a prompt and 20 steps takes seven times as long. In that preset the
// exported functions of these two files check the whole extents that their loops read and write, once a call. The
// preset asan-full checks each access instead.
#pragma once

#include <cstddef>
#include <cstdint>
#ifdef KVSCOPE_CHECK_EXTENTS
#include <sanitizer/asan_interface.h>
#endif

namespace kvscope::cpu {

/// Ends the program with AddressSanitizer's report when one of the `count` values at `begin` lies outside every object.
template <class T>
void checkExtent([[maybe_unused]] const T* begin, [[maybe_unused]] std::int64_t count,
                 [[maybe_unused]] bool written = false) {
#ifdef KVSCOPE_CHECK_EXTENTS
    if (count <= 0) return;
    void* first = const_cast<void*>(static_cast<const void*>(begin));
    if (void* bad = __asan_region_is_poisoned(first, std::size_t(count) * sizeof(T)))
        __asan_report_error(__builtin_return_address(0), __builtin_frame_address(0), __builtin_frame_address(0), bad,
                            written, sizeof(T));
#endif
}

/// The same for `rows` rows of `count` values each, `stride` values apart.
template <class T>
void checkRows([[maybe_unused]] const T* begin, [[maybe_unused]] int rows, [[maybe_unused]] std::int64_t stride,
               [[maybe_unused]] std::int64_t count, [[maybe_unused]] bool written = false) {
#ifdef KVSCOPE_CHECK_EXTENTS
    if (stride == count) return checkExtent(begin, rows * count, written);
    for (int row = 0; row < rows; ++row) checkExtent(begin + row * stride, count, written);
#endif
}

} // namespace kvscope::cpu
