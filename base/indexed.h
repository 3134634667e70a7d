// Arrays of one dimension, with one element for each layer, token or other thing, whose subscript is the number or the
// id of that thing. Arrays of several dimensions: base/extents.h. These two files alone widen an index to std::size_t.
#pragma once

#include "base/elements.h"
#include "base/ids.h"

#include <array>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace kvscope {

/// int, or the type of an id (base/ids.h): an array whose subscript is one type of id does not take another.
template <class T>
concept IndexKind = std::same_as<T, int> || Id<T>;

/// What finds an element: the key, or where keys are numbers, any signed number, such as the distance of two iterators.
template <class T, class Key>
concept Subscript = std::same_as<T, Key> ||(std::same_as<Key, int>&& std::signed_integral<T>);

/// A std::vector with one element for each Key, in ascending order:
///
///     Indexed<LayerId, Scores> scores_;     // [layer]
///     scores_.resize(config.layers);
///     scores_[layer]                    // a RowId does not compile
///
/// Lengths are int, as counts of layers and rows are. @throws std::invalid_argument if a length is negative
template <IndexKind Key, class T> class Indexed : public std::vector<T> {
    using Base = std::vector<T>;

public:
    Indexed() = default;
    explicit Indexed(int count) : Base(Elements(count)) {}
    explicit Indexed(std::size_t count) : Base(count) {}
    Indexed(int count, const T& value) : Base(Elements(count), value) {}
    Indexed(std::size_t count, const T& value) : Base(count, value) {}
    template <std::input_iterator It> Indexed(It begin, It end) : Base(begin, end) {}
    Indexed(std::initializer_list<T> values) : Base(values) {}
    explicit Indexed(Base values) : Base(std::move(values)) {}
    Indexed& operator=(Base values) {
        Base::operator=(std::move(values));
        return *this;
    }
    Indexed& operator=(std::initializer_list<T> values) {
        Base::operator=(values);
        return *this;
    }

    using Base::operator[]; // by std::size_t, for loops up to size()
    template <Subscript<Key> At> typename Base::reference operator[](At at) { return Base::operator[](place(at)); }
    template <Subscript<Key> At> typename Base::const_reference operator[](At at) const {
        return Base::operator[](place(at));
    }

    void resize(int count) { Base::resize(Elements(count)); }
    void resize(int count, const T& value) { Base::resize(Elements(count), value); }
    void reserve(int count) { Base::reserve(Elements(count)); }
    void assign(int count, const T& value) { Base::assign(Elements(count), value); }
    using Base::assign;
    using Base::reserve;
    using Base::resize;

    int count() const { return int(this->size()); }
    /// All keys, ascending.
    auto ids() const requires Id<Key> { return idsUpTo<Key>(count()); }

private:
    template <class At> std::size_t place(At at) const {
        const auto found = static_cast<std::size_t>(at);
        assert(found < this->size()); // a negative number becomes a huge one
        return found;
    }
};

/// A view of such an array, or of its beginning.
template <IndexKind Key, class T> class IndexedSpan : public std::span<T> {
    using Base = std::span<T>;

public:
    constexpr IndexedSpan() = default;
    template <class Range>
    requires std::constructible_from<Base, Range>
    constexpr IndexedSpan(Range&& range) : Base(std::forward<Range>(range)) {} // NOLINT: a copy made by it is the same
    constexpr IndexedSpan(T* first, std::size_t count) : Base(first, count) {}
    constexpr IndexedSpan(T* first, int count) : Base(first, Elements(count)) {}

    using Base::operator[];
    template <Subscript<Key> At> constexpr T& operator[](At at) const { return Base::operator[](place(at)); }

    constexpr int count() const { return int(this->size()); }
    constexpr IndexedSpan first(int length) const { return Base::first(Elements(length)); }
    /// The elements from number `begin` on.
    constexpr IndexedSpan from(int begin) const { return Base::subspan(Elements(begin)); }
    constexpr IndexedSpan part(int begin, int length) const { return Base::subspan(Elements(begin), Elements(length)); }

private:
    template <class At> constexpr std::size_t place(At at) const {
        const auto found = static_cast<std::size_t>(at);
        assert(found < this->size()); // a negative number becomes a huge one
        return found;
    }
};

template <class T> using PerLayer = Indexed<LayerId, T>;
template <class T> using PerRow = Indexed<RowId, T>;
template <class T> using PerKvHead = Indexed<KvHeadId, T>;
template <class T> using PerBlock = Indexed<BlockId, T>;
/// An array of things that are numbered from 0 and have no type of id: tokens, windows, experts; also layers and rows
/// where kernels have only their numbers.
template <class T> using Numbered = Indexed<int, T>;
template <class T> using NumberedSpan = IndexedSpan<int, T>;

/// A std::array with one element for each value of an enumeration that counts from 0.
template <class Key, class T, std::size_t size>
requires std::is_enum_v<Key>
struct PerValue : std::array<T, size> {
    using std::array<T, size>::operator[];
    constexpr T& operator[](Key at) { return (*this)[static_cast<std::size_t>(at)]; }
    constexpr const T& operator[](Key at) const { return (*this)[static_cast<std::size_t>(at)]; }
};

} // namespace kvscope
