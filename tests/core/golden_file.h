// Reads the golden fixtures (tests/golden, float32 reference results) without the product's own loader.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvscope::test {

class GoldenFile {
public:
    explicit GoldenFile(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        if (!file) throw std::runtime_error("no golden file " + path);
        std::uint64_t size = 0;
        file.read(reinterpret_cast<char*>(&size), 8);
        std::string header(size, '\0');
        file.read(header.data(), std::streamsize(size));
        header_ = nlohmann::json::parse(header);
        data_.assign(std::istreambuf_iterator<char>(file), {});
    }
    bool has(const std::string& name) const { return header_.contains(name); }
    std::vector<std::int64_t> shape(const std::string& name) const {
        return header_.at(name).at("shape").get<std::vector<std::int64_t>>();
    }
    std::vector<float> floats(const std::string& name) const {
        if (header_.at(name).at("dtype") == "F32") return values<float>(name);
        std::vector<float> out;
        for (const std::uint16_t half : values<std::uint16_t>(name)) out.push_back(fromHalf(half));
        return out;
    }
    std::vector<std::int32_t> ints(const std::string& name) const {
        if (header_.at(name).at("dtype") == "I32") return values<std::int32_t>(name);
        std::vector<std::int32_t> out;
        for (const std::int8_t value : values<std::int8_t>(name)) out.push_back(value);
        return out;
    }

private:
    template <class T> std::vector<T> values(const std::string& name) const {
        const auto offsets = header_.at(name).at("data_offsets").get<std::vector<std::uint64_t>>();
        std::vector<T> out((offsets[1] - offsets[0]) / sizeof(T));
        std::memcpy(out.data(), data_.data() + offsets[0], out.size() * sizeof(T));
        return out;
    }
    static float fromHalf(std::uint16_t half) {
        const int exponent = half >> 10 & 31, mantissa = half & 1023;
        const float sign = half >> 15 ? -1.f : 1.f;
        if (exponent == 0) return sign * float(mantissa) * 0x1p-24f;
        if (exponent == 31)
            return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
        return sign * std::ldexp(1.f + float(mantissa) / 1024.f, exponent - 15);
    }
    nlohmann::json header_;
    std::vector<char> data_;
};

} // namespace kvscope::test
