// Device memory for tests, random inputs in bf16, and the skip where there is no GPU.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace kvscope::cuda::test {

inline bool hasGpu() {
    int count = 0;
    const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    cudaGetLastError();
    return found;
}

#define KVSCOPE_NEEDS_GPU()                                                                                            \
    if (!::kvscope::cuda::test::hasGpu()) GTEST_SKIP() << "no NVIDIA GPU"

inline float toFloat(std::uint16_t bf16) {
    const std::uint32_t bits = std::uint32_t(bf16) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline std::uint16_t toBf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Elements on the device, copied from the host; bf16 is carried as its 16 bits.
template <class T> class OnDevice {
public:
    explicit OnDevice(const std::vector<T>& values)
        : size_(values.size()), memory_(std::max<std::size_t>(1, size_ * sizeof(T)), "allocating a test's input") {
        check(cudaMemcpy(get(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copying a test's input");
    }
    /// Filled with a pattern that no result has, so that a test sees what a kernel has not written.
    explicit OnDevice(std::size_t size)
        : size_(size), memory_(std::max<std::size_t>(1, size * sizeof(T)), "allocating a test's output") {
        check(cudaMemset(get(), 0xff, size * sizeof(T)), "poisoning a test's output");
    }
    std::vector<T> read() const {
        std::vector<T> values(size_);
        check(cudaMemcpy(values.data(), get(), size_ * sizeof(T), cudaMemcpyDeviceToHost), "reading a test's output");
        return values;
    }
    T* get() const { return memory_.as<T>(); }
    __nv_bfloat16* bf16() const { return memory_.as<__nv_bfloat16>(); }

private:
    std::size_t size_ = 0;
    DeviceMemory memory_;
};

using Half = std::uint16_t;

class CudaTest : public ::testing::Test {
protected:
    void SetUp() override {
        if (!hasGpu()) GTEST_SKIP() << "no NVIDIA GPU";
        trace_.emplace(__FILE__, __LINE__, ::testing::Message() << "with the random numbers of KVSCOPE_SEED=" << seed);
        cudaDeviceProp properties{};
        check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU");
        launch.multiprocessors = properties.multiProcessorCount;
        launch.clusters = properties.major >= 9;
        launch.blockShared = properties.sharedMemPerBlockOptin;
        stream_ = Stream::make(StreamKind::Blocking); // inputs are copied on the default stream
        launch.stream = stream_.get();
    }
    void TearDown() override {
        if (launch.stream == nullptr) return;
        EXPECT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
    }
    std::vector<float> floats(std::size_t count, float deviation = 1) {
        std::normal_distribution<float> normal(0, deviation);
        std::vector<float> values(count);
        for (float& value : values) value = normal(random);
        return values;
    }
    std::vector<Half> halves(std::size_t count, float deviation = 1) {
        std::normal_distribution<float> normal(0, deviation);
        std::vector<Half> values(count);
        for (Half& value : values) value = toBf16(normal(random));
        return values;
    }
    int uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

    Launch launch;
    const unsigned seed = drawSeed();
    std::mt19937 random{seed};

private:
    /// Other numbers in every run; those of the environment variable KVSCOPE_SEED where it is set.
    static unsigned drawSeed() {
        const char* given = std::getenv("KVSCOPE_SEED");
        return given != nullptr ? unsigned(std::strtoul(given, nullptr, 10)) : std::random_device{}();
    }
    std::optional<::testing::ScopedTrace> trace_; // every failure says the seed
    Stream stream_;
};

/// Writes a token to place `within` of a KV block of `size` tokens. key, value: [dim]
inline void putToken(Half* block, int size, int dim, int within, const Half* key, const Half* value) {
    std::copy_n(key, dim, block + within * dim);
    for (int i = 0; i < dim; ++i) block[size * dim + i * size + within] = value[i];
}

/// A head in float64 whose pairs of channels are rotated by the angles of these cosines and sines, [dim/2]. Pairs are
/// neighbours, or channels that lie half a head apart.
inline std::vector<double> rotatedPairs(const std::vector<double>& x, const float* cos, const float* sin,
                                        bool neighbours) {
    const std::size_t half = x.size() / 2;
    std::vector<double> y(x.size());
    for (std::size_t i = 0; i < half; ++i) {
        const std::size_t low = neighbours ? 2 * i : i, high = neighbours ? low + 1 : i + half;
        y[low] = x[low] * double(cos[i]) - x[high] * double(sin[i]);
        y[high] = x[high] * double(cos[i]) + x[low] * double(sin[i]);
    }
    return y;
}

/// Ascending random numbers below `limit`, with `last` as the last.
inline std::vector<std::int32_t> randomBlocks(int count, int last, std::mt19937& random) {
    std::set<std::int32_t> chosen{last};
    while (int(chosen.size()) < std::min(count, last + 1)) chosen.insert(std::int32_t(random() % unsigned(last + 1)));
    return {chosen.begin(), chosen.end()};
}

/// |got - want| / |want| over whole vectors.
template <class A, class B> double relativeError(const A& got, const B& want) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double d = double(got[i]) - double(want[i]);
        difference += d * d;
        norm += double(want[i]) * double(want[i]);
    }
    return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

} // namespace kvscope::cuda::test
