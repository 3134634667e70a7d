// A tile as bytes: numbers and arrays one after the other, in this machine's own layout. Other machines never read the
// cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvscope {

class TileWriter {
public:
    void number(std::uint64_t value) { append(&value, sizeof value); }
    template <class T> void array(const std::vector<T>& values) {
        static_assert(std::is_trivially_copyable_v<T>);
        number(values.size());
        append(values.data(), values.size() * sizeof(T));
    }
    std::vector<std::byte> take() { return std::move(bytes_); }

private:
    void append(const void* data, std::size_t size) {
        const std::size_t at = bytes_.size();
        bytes_.resize(at + size);
        if (size > 0) std::memcpy(bytes_.data() + at, data, size);
    }
    std::vector<std::byte> bytes_;
};

/// Reads such bytes. Every call returns whether there were enough bytes left.
class TileParser {
public:
    explicit TileParser(std::span<const std::byte> bytes) : rest_(bytes) {}
    bool number(std::uint64_t& value) {
        if (rest_.size() < sizeof value) return false;
        std::memcpy(&value, rest_.data(), sizeof value);
        rest_ = rest_.subspan(sizeof value);
        return true;
    }
    template <class T> bool array(std::vector<T>& values) {
        std::uint64_t count = 0;
        if (!number(count) || count > rest_.size() / sizeof(T)) return false;
        values.resize(std::size_t(count));
        if (count > 0) std::memcpy(values.data(), rest_.data(), values.size() * sizeof(T));
        rest_ = rest_.subspan(values.size() * sizeof(T));
        return true;
    }
    bool atEnd() const { return rest_.empty(); }

private:
    std::span<const std::byte> rest_;
};

} // namespace kvscope
