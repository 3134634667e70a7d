// The lengths of a row-major array's dimensions: the one place that multiplies indices and widens them to std::size_t.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <type_traits>

namespace kvscope {

/// One dimension for each Index, the outermost first. An Index is int, or the type of an id (base/ids.h): then offset()
/// does not take another id, or a number, in the place of this one.
///
///     const Extents<int, int> columns(steps, rows);            // values [steps, rows]
///     values.resize(columns.size());
///     values[columns.offset(step, row)] = 1;
///     for (float& value : columns.part(std::span(values), step)) ...   // [rows]
template <class... Index> class Extents {
    static constexpr std::size_t kRank = sizeof...(Index);
    static_assert(kRank > 0);
    static_assert(((std::is_same_v<Index, int> ||
                    (std::is_enum_v<Index> && !std::is_convertible_v<Index, int> && sizeof(Index) == sizeof(int))) &&
                   ...));
    template <class> using Length = int;

public:
    /// No elements, until lengths are assigned.
    constexpr Extents() = default;
    /// @throws std::invalid_argument if a length is negative, std::length_error if the elements are too many to address
    constexpr explicit Extents(Length<Index>... lengths) : lengths_{lengths...} {
        std::size_t elements = 1;
        bool empty = false;
        for (const int length : lengths_) {
            if (length < 0) throw std::invalid_argument("a dimension of an array has a negative length");
            if (length == 0) empty = true;
        }
        for (std::size_t i = kRank; i-- > 0;) {
            strides_[i] = elements;
            constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
            std::size_t product = 0; // checked without a division, because extents are made in loops too
            if (!empty &&
                (__builtin_mul_overflow(elements, static_cast<std::size_t>(lengths_[i]), &product) || product > most))
                throw std::length_error("the dimensions of an array have more elements than memory has addresses");
            elements = product;
        }
        size_ = elements;
    }

    /// Elements of the whole array.
    constexpr std::size_t size() const { return size_; }
    /// Length of a dimension, 0 being the outermost.
    constexpr int length(std::size_t dimension) const { return lengths_[dimension]; }

    /// Place of one element. Every index lies within its length.
    constexpr std::size_t offset(Index... index) const { return sum(index...); }

    /// Place of the first element under these indices of the outermost dimensions: for arrays that are known by a
    /// pointer.
    template <class... Outer> constexpr std::size_t first(Outer... outer) const {
        checkOuter<Outer...>();
        return sum(outer...);
    }
    /// How many elements lie under one index of a dimension, 0 being the outermost.
    constexpr std::size_t under(std::size_t dimension) const { return strides_[dimension]; }

    /// The elements under these indices of the outermost dimensions: of values [steps, rows], part(values, step) is
    /// [rows]. `values` has size() elements at least.
    template <class T, class... Outer> constexpr std::span<T> part(std::span<T> values, Outer... outer) const {
        checkOuter<Outer...>();
        assert(values.size() >= size_);
        return values.subspan(sum(outer...), strides_[sizeof...(Outer) - 1]);
    }

private:
    template <class...> struct List {};
    template <class A, class B> struct Begins : std::false_type {};
    template <class... Rest> struct Begins<List<>, List<Rest...>> : std::true_type {};
    template <class First, class... A, class... B>
    struct Begins<List<First, A...>, List<First, B...>> : Begins<List<A...>, List<B...>> {};
    template <class... Outer> static constexpr bool beginsWith() {
        return Begins<List<Outer...>, List<Index...>>::value;
    }

    template <class... Outer> static constexpr void checkOuter() {
        static_assert(sizeof...(Outer) > 0 && sizeof...(Outer) < kRank);
        static_assert(beginsWith<Outer...>(), "the outermost dimensions have other types of index");
    }

    template <class... Given> constexpr std::size_t sum(Given... given) const {
        std::size_t at = 0, dimension = 0;
        (
            [&](int index) {
                assert(index >= 0 && index < lengths_[dimension]);
                at += static_cast<std::size_t>(index) * strides_[dimension++];
            }(static_cast<int>(given)),
            ...);
        return at;
    }

    std::array<int, kRank> lengths_{};
    std::array<std::size_t, kRank> strides_{};
    std::size_t size_ = 0;
};

} // namespace kvscope
