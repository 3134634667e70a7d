// A std::array whose subscripts are numbers of a loop, such as those of a view's panels or a step's components.
#pragma once

#include <array>
#include <cassert>
#include <concepts>
#include <cstddef>

namespace kvscope {

/// A std::array with one element for each number from 0 on. An enumeration's arrays: PerValue (base/indexed.h).
template <class T, std::size_t count> struct NumberedArray : std::array<T, count> {
    using std::array<T, count>::operator[];
    template <std::signed_integral At> constexpr T& operator[](At at) { return (*this)[place(at)]; }
    template <std::signed_integral At> constexpr const T& operator[](At at) const { return (*this)[place(at)]; }

private:
    template <class At> static constexpr std::size_t place(At at) {
        const auto found = static_cast<std::size_t>(at);
        assert(found < count); // a negative number becomes a huge one
        return found;
    }
};

} // namespace kvscope
