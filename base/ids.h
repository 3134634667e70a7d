// Ids of layers, rows, KV heads and blocks. Each kind is a type of its own, so that a call that swaps two of them, or
// an id and a number, does not compile.
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <type_traits>

namespace kvscope {

/// A layer of the model.
enum class LayerId : int {};
/// A sequence of a session, or the request that has a row of an engine that serves many.
enum class RowId : int {};
/// A KV head of a layer.
enum class KvHeadId : int {};
/// A block of a sequence's tokens. Block 0 has the first tokens.
enum class BlockId : int {};

/// A scoped enumeration over int. int(id) is its number, for arithmetic and for records.
template <class T>
concept Id = std::is_enum_v<T> && !std::is_convertible_v<T, int> && std::same_as<std::underlying_type_t<T>, int>;

/// Place of the id's element in an array that has one element for each id. Arrays of several dimensions: Extents.
template <Id T> constexpr std::size_t index(T id) {
    assert(int(id) >= 0);
    return static_cast<std::size_t>(id);
}

template <Id T> constexpr T next(T id) { return T{int(id) + 1}; }

/// The ids from `first` to the one before `end`, ascending.
template <Id T> class IdRange {
public:
    class Iterator {
    public:
        using value_type = T;
        using difference_type = std::ptrdiff_t;

        constexpr Iterator() = default;
        constexpr explicit Iterator(T at) : at_(at) {}
        constexpr T operator*() const { return at_; }
        constexpr Iterator& operator++() {
            at_ = next(at_);
            return *this;
        }
        constexpr Iterator operator++(int) {
            const Iterator before = *this;
            ++*this;
            return before;
        }
        constexpr bool operator==(const Iterator&) const = default;

    private:
        T at_{};
    };

    /// `end` does not lie before `first`.
    constexpr IdRange(T first, T end) : first_(first), end_(end) { assert(first <= end); }

    constexpr Iterator begin() const { return Iterator(first_); }
    constexpr Iterator end() const { return Iterator(end_); }

private:
    T first_, end_;
};

/// All ids of `count` layers, rows, KV heads or blocks:
///
///     for (const LayerId layer : idsUpTo<LayerId>(config.layers)) ...
template <Id T> constexpr IdRange<T> idsUpTo(int count) { return {T{0}, T{count}}; }

} // namespace kvscope
