#include "tests/core/random_checkpoint.h"

#include "core/model/safetensors_writer.h"
#include "tests/support/places.h"

#include <bit>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>

namespace kvscope::test {
namespace {

/// Answers every question of a reader with random numbers, and remembers them.
class RandomSource final : public TensorSource {
public:
    explicit RandomSource(unsigned seed) : random_(seed) {}
    const std::string& origin() const override { return origin_; }
    bool has(const std::string&) const override { return false; }
    WeightMatrix matrix(const std::string& name, int rows, int cols) const override {
        const auto& values = make(name, {rows, cols}, 0.f, 1.f / std::sqrt(float(cols)));
        return {values.data(), DType::F32, rows, cols};
    }
    WeightMatrix stack(const std::string& name, int count, int rows, int cols) const override {
        const auto& values = make(name, {count, rows, cols}, 0.f, 1.f / std::sqrt(float(cols)));
        return {values.data(), DType::F32, count * rows, cols};
    }
    std::vector<float> vector(const std::string& name, std::initializer_list<std::int64_t> shape) const override {
        return make(name, shape, name.ends_with(".bias") ? 0.f : 1.f, 0.1f);
    }
    std::vector<RandomTensor> take() { return {made_.begin(), made_.end()}; }

private:
    const std::vector<float>& make(const std::string& name, std::vector<std::int64_t> shape, float mean,
                                   float deviation) const {
        std::size_t count = 1;
        for (const std::int64_t size : shape) count *= std::size_t(size);
        std::normal_distribution<float> normal(mean, deviation);
        std::vector<float> values(count);
        for (float& value : values)
            value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(normal(random_)) & 0xffff0000u);
        return made_.emplace_back(RandomTensor{name, std::move(shape), std::move(values)}).values;
    }
    std::string origin_ = "random weights";
    mutable std::mt19937 random_;
    mutable std::deque<RandomTensor> made_;
};

} // namespace

std::vector<RandomTensor> randomTensors(const nlohmann::json& json, unsigned seed) {
    const ModelConfig config = ModelConfig::parse(json.dump(), "config.json");
    const TensorNames& names = architectureOf(config).names;
    RandomSource source(seed);
    source.matrix(names.embedding, config.vocab, config.hidden);
    if (!config.tiedEmbeddings) source.matrix(names.head, config.vocab, config.hidden);
    source.vector(names.finalNorm, {config.hidden});
    std::deque<std::vector<std::byte>> owned;
    for (int i = 0; i < config.layers; ++i) readLayer(source, config, i, owned);
    return source.take();
}

nlohmann::json familyConfig(const std::string& family, const nlohmann::json& changes) {
    std::ifstream file(test::source("tests/golden/families/") + family + "/config.json");
    auto config = nlohmann::json::parse(file);
    config.update(changes);
    return config;
}

std::string writeCheckpoint(const std::string& folder, const nlohmann::json& config, unsigned seed) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/config.json") << config.dump();
    const auto tensors = randomTensors(config, seed);
    std::vector<NamedTensor> named;
    for (const RandomTensor& tensor : tensors) named.push_back({tensor.name, tensor.shape, tensor.values});
    writeSafetensors(folder + "/model.safetensors", named, {});
    return folder;
}

} // namespace kvscope::test
