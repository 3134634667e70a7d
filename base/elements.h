// How many elements an array of several dimensions has, and where its rows begin. Arrays whose elements are found by
// several indices have an Extents instead (base/extents.h).
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <limits>
#include <stdexcept>

namespace kvscope {

/// The number of elements of an array, made of the lengths of its dimensions. Functions that take memory have a
/// parameter of this type, so that their callers name the dimensions:
///
///     arena.plan(x, {rows, config.hidden}, "activations"); // [rows, hidden]
class Elements {
public:
    /// @throws std::invalid_argument if a length is negative, std::length_error if the elements are too many to address
    template <std::integral Length> constexpr Elements(Length length) { multiply(length); }
    /// A length may be Elements itself: Elements(n, each) counts the elements of n arrays of `each` elements.
    template <class... Length>
    requires(sizeof...(Length) > 1 &&
             ((std::integral<Length> || std::same_as<Length, Elements>)&&...)) constexpr Elements(Length... lengths) {
        (multiply(lengths), ...);
    }

    constexpr operator std::size_t() const { return count_; }

private:
    constexpr void multiply(Elements elements) { multiply(elements.count_); }
    template <std::integral Length> constexpr void multiply(Length length) {
        if constexpr (std::signed_integral<Length>)
            if (length < 0) throw std::invalid_argument("a dimension of an array has a negative length");
        constexpr auto most = std::size_t(std::numeric_limits<std::ptrdiff_t>::max());
        if (__builtin_mul_overflow(count_, length, &count_) || count_ > most)
            throw std::length_error("the dimensions of an array have more elements than memory has addresses");
    }

    std::size_t count_ = 1;
};

/// The rows of an array [rows, width] that is known by a pointer, which may point to memory of a GPU.
template <class T> class RowsOf {
public:
    constexpr RowsOf(T* first, Elements width) : first_(first), width_(width) {}

    /// Where the row begins.
    constexpr T* operator[](std::ptrdiff_t row) const {
        assert(row >= 0);
        return first_ + row * std::ptrdiff_t(width_);
    }
    constexpr std::size_t width() const { return width_; }

private:
    T* first_;
    std::size_t width_;
};

} // namespace kvscope
