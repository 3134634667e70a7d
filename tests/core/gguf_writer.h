// Writes GGUF files byte by byte, right or deliberately wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope::test {

/// A tensor as its table entry says; sizes are in the file's order, fastest first.
struct GgufTensorEntry {
    std::string name;
    std::vector<std::uint64_t> sizes;
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
};

class GgufWriter {
public:
    std::string magic = "GGUF";
    std::uint32_t version = 3;
    std::vector<GgufTensorEntry> tensors;
    std::string data;
    std::uint64_t alignment = 32;
    std::int64_t moreTensors = 0, moreValues = 0; // added to the counts of the header

    enum Code : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64 };

    template <class T> static std::string number(T value) {
        std::string bytes(sizeof(T), '\0');
        std::memcpy(bytes.data(), &value, sizeof(T));
        return bytes;
    }
    static std::string text(std::string_view value) { return number(std::uint64_t(value.size())) + std::string(value); }
    /// A value from its bytes as the file has them.
    void raw(std::string_view key, std::uint32_t code, std::string_view bytes) {
        values_ += text(key) + number(code) + std::string(bytes);
        ++count_;
    }
    void put(std::string_view key, std::uint32_t value) { raw(key, U32, number(value)); }
    void put(std::string_view key, float value) { raw(key, F32, number(value)); }
    void put(std::string_view key, bool value) { raw(key, Bool, number(std::uint8_t(value))); }
    void put(std::string_view key, const char* value) { raw(key, Text, text(value)); }
    void put(std::string_view key, const std::vector<std::string>& list) {
        std::string bytes = number(std::uint32_t(Text)) + number(std::uint64_t(list.size()));
        for (const std::string& value : list) bytes += text(value);
        raw(key, Array, bytes);
    }
    void put(std::string_view key, const std::vector<std::int32_t>& list) {
        std::string bytes = number(std::uint32_t(I32)) + number(std::uint64_t(list.size()));
        for (const std::int32_t value : list) bytes += number(value);
        raw(key, Array, bytes);
    }
    /// Appends a tensor and its bytes, aligned.
    void add(std::string name, std::vector<std::uint64_t> sizes, std::uint32_t type, std::string_view bytes) {
        data.resize((data.size() + alignment - 1) / alignment * alignment);
        tensors.push_back({std::move(name), std::move(sizes), type, data.size()});
        data += bytes;
    }
    void addFloats(std::string name, std::vector<std::uint64_t> sizes, std::span<const float> values) {
        add(std::move(name), std::move(sizes), 0,
            {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    }
    std::string bytes() const {
        std::string out = magic + number(version) + number(std::uint64_t(std::int64_t(tensors.size()) + moreTensors)) +
                          number(std::uint64_t(count_ + moreValues)) + values_;
        for (const GgufTensorEntry& tensor : tensors) {
            out += text(tensor.name) + number(std::uint32_t(tensor.sizes.size()));
            for (const std::uint64_t size : tensor.sizes) out += number(size);
            out += number(tensor.type) + number(tensor.offset);
        }
        if (alignment > 0) out.resize((out.size() + alignment - 1) / alignment * alignment);
        return out + data;
    }

private:
    std::string values_;
    std::int64_t count_ = 0;
};

} // namespace kvscope::test
