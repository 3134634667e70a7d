#include "core/model/rope.h"

#include "base/extents.h"
#include "core/model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numbers>

namespace kvscope {
namespace {

constexpr struct {
    RopeType type;
    const char* name;
} kTypes[] = {{RopeType::Default, "default"}, {RopeType::Linear, "linear"},     {RopeType::Dynamic, "dynamic"},
              {RopeType::Llama3, "llama3"},   {RopeType::LongRope, "longrope"}, {RopeType::Yarn, "yarn"}};

double yarnScale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

RopeType typeOf(const ConfigReader& scaling) {
    const std::string older = scaling.textOr("type", "default");
    const std::string name = scaling.states("rope_type") ? scaling.text("rope_type") : older;
    for (const auto& known : kTypes)
        if (name == known.name) return known.type;
    scaling.refuseUnsupported(fmt::format("the RoPE type '{}' is not supported", shown(name)),
                              "this version knows default, linear, dynamic, llama3, longrope and yarn");
}

/// The channel, as a fraction, whose angle makes `rotations` turns within the original context (YaRN).
double correctionChannel(double rotations, const RopeConfig& c) {
    return c.dim * std::log(c.originalPositions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(c.theta));
}

} // namespace

const char* nameOf(RopeType type) {
    for (const auto& known : kTypes)
        if (type == known.type) return known.name;
    return "";
}

namespace {

/// What the file says of the rotation. An empty object says nothing; of two that say something the older name has
/// priority, as in the library.
ConfigReader scalingOf(const ConfigReader& reader) {
    const auto says = [&](const char* key) { return reader.has(key) && !reader.object(key).json().empty(); };
    const bool current = says("rope_parameters"), old = says("rope_scaling");
    static const nlohmann::json nothing = nlohmann::json::object();
    return old       ? reader.object("rope_scaling")
           : current ? reader.object("rope_parameters")
                     : ConfigReader(nothing, reader.origin());
}

double shareOf(const ConfigReader& reader, const ConfigReader& scaling) {
    const double partial = reader.numberOr("partial_rotary_factor", 1, 0, 1);
    return scaling.numberOr("partial_rotary_factor", partial, 0, 1);
}

} // namespace

double RopeConfig::rotatedShare(const ConfigReader& reader) { return shareOf(reader, scalingOf(reader)); }

RopeConfig RopeConfig::parse(const ConfigReader& reader, int dim, int maxPositions, std::vector<std::string>& unread,
                             bool partly) {
    RopeConfig c;
    c.dim = dim;
    c.originalPositions = maxPositions;
    const ConfigReader scaling = scalingOf(reader);
    if (scaling.has("full_attention") || scaling.has("sliding_attention"))
        scaling.refuseUnsupported("rotary positions that differ between layers are not supported",
                                  "use a model whose layers share one rope_parameters");
    c.type = typeOf(scaling);
    const bool outerTheta = reader.states("rope_theta"); // counts as read even if the inner one is used
    c.theta = scaling.states("rope_theta") || !outerTheta ? scaling.number("rope_theta", 1, 1e12)
                                                          : reader.number("rope_theta", 1, 1e12);
    if (shareOf(reader, scaling) != 1 && !partly)
        scaling.refuseUnsupported("a partly rotated head (partial_rotary_factor) is not supported",
                                  "use a model that rotates whole heads");
    (void)reader.states("original_max_position_embeddings"); // counts as read: some types have no use for it
    if (c.type != RopeType::Default) c.readScaling(reader, scaling, maxPositions);
    for (const std::string& key : scaling.unread()) unread.push_back(key);
    return c;
}

void RopeConfig::readScaling(const ConfigReader& reader, const ConfigReader& scaling, int maxPositions) {
    RopeConfig& c = *this;
    const bool hasOriginal = c.type == RopeType::Llama3 || c.type == RopeType::LongRope || c.type == RopeType::Yarn;
    if (hasOriginal) { // beside the scaling or in it; the outer one has priority, as in the library
        c.originalPositions = scaling.integerOr("original_max_position_embeddings", maxPositions, 2, 1 << 24);
        c.originalPositions = reader.integerOr("original_max_position_embeddings", c.originalPositions, 2, 1 << 24);
    }
    // The factor is the ratio of the two contexts where it is not stated: yarn's may be null, LongRoPE's may be null or
    // left out.
    const bool inferred = !scaling.has("factor") &&
                          (c.type == RopeType::LongRope || (c.type == RopeType::Yarn && scaling.states("factor")));
    c.factor = inferred ? double(maxPositions) / c.originalPositions : scaling.number("factor", 1e-3, 1e6);
    if (c.type == RopeType::Dynamic && dim <= 2)
        scaling.refuse("dynamic scaling needs heads of more than 2 rotated channels");
    if (c.type == RopeType::Llama3) {
        c.lowFreqFactor = scaling.number("low_freq_factor", 1e-6, 1e6);
        c.highFreqFactor = scaling.number("high_freq_factor", 1e-6, 1e6);
        if (c.highFreqFactor <= c.lowFreqFactor) scaling.refuse("'high_freq_factor' is not above 'low_freq_factor'");
    }
    if (c.type == RopeType::LongRope) {
        for (const auto& [key, list] : {std::pair{"short_factor", &c.shortFactors}, {"long_factor", &c.longFactors}})
            for (const double value : scaling.numbers(key, std::size_t(dim / 2), 1e-6, 1e9))
                list->push_back(float(value));
        const double usual =
            c.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(c.factor) / std::log(double(c.originalPositions)));
        c.attentionFactor = scaling.numberOr("attention_factor", usual, 0, 1e3);
    }
    if (c.type == RopeType::Yarn) {
        const double mscale = scaling.numberOr("mscale", 0, 0, 1e3),
                     all = scaling.numberOr("mscale_all_dim", 0, 0, 1e3);
        const double usual =
            mscale != 0 && all != 0 ? yarnScale(c.factor, mscale) / yarnScale(c.factor, all) : yarnScale(c.factor, 1);
        c.attentionFactor = scaling.numberOr("attention_factor", usual, 0, 1e3);
        c.betaFast = scaling.numberOr("beta_fast", 32, 0, 1e6);
        c.betaSlow = scaling.numberOr("beta_slow", 1, 0, 1e6);
        if (c.betaFast == 0) c.betaFast = 32; // the library's reading of 0
        if (c.betaSlow == 0) c.betaSlow = 1;
        c.truncate = scaling.flagOr("truncate", !scaling.states("truncate")); // null is false
        if (c.theta <= 1) scaling.refuse("'rope_theta' must be above 1 for yarn");
    }
    if (const double all = scaling.numberOr("mscale_all_dim", 0, 0, 1e3); all != 0)
        c.scoreMscale = yarnScale(c.factor, all);
}

int RopeConfig::context(int maxPositions) const {
    double reach = maxPositions;
    if (type == RopeType::Linear || type == RopeType::Dynamic) reach = std::max(reach, maxPositions * factor);
    if (type == RopeType::Yarn) reach = std::max(reach, originalPositions * factor);
    return int(std::min(reach, double(1 << 24)));
}

std::vector<float> RopeConfig::frequencies(int length) const {
    std::vector<float> result(std::size_t(dim / 2));
    float base = float(theta);
    if (type == RopeType::Dynamic && length > originalPositions) {
        const float grown = float(factor) * float(length) / float(originalPositions);
        base *= float(std::pow(double(grown - float(factor - 1)), double(dim) / (dim - 2)));
    }
    double low = 0, high = 0;
    if (type == RopeType::Yarn) {
        low = correctionChannel(betaFast, *this);
        high = correctionChannel(betaSlow, *this);
        if (truncate) low = std::floor(low), high = std::ceil(high);
        low = std::max(low, 0.0);
        high = std::min(high, double(dim - 1));
        if (low == high) high += 0.001;
    }
    const std::vector<float>& extended = length > originalPositions ? longFactors : shortFactors;
    for (int i = 0; i < dim / 2; ++i) {
        const float power = float(std::pow(double(base), double(float(2 * i) / float(dim))));
        float& frequency = result[std::size_t(i)];
        frequency = 1.f / power;
        if (type == RopeType::Linear) frequency /= float(factor);
        if (type == RopeType::LongRope) frequency = 1.f / (extended[std::size_t(i)] * power);
        if (type == RopeType::Llama3) {
            const float original = float(originalPositions);
            const float wavelength = float(2 * std::numbers::pi) / frequency;
            if (wavelength > original / float(lowFreqFactor)) {
                frequency /= float(factor);
            } else if (wavelength >= original / float(highFreqFactor)) {
                const float smooth =
                    (original / wavelength - float(lowFreqFactor)) / float(highFreqFactor - lowFreqFactor);
                frequency = (1.f - smooth) * frequency / float(factor) + smooth * frequency;
            }
        }
        if (type == RopeType::Yarn) {
            const float ramp = std::clamp((float(i) - float(low)) / float(high - low), 0.f, 1.f), keeps = 1.f - ramp;
            frequency = 1.f / (float(factor) * power) * (1.f - keeps) + frequency * keeps;
        }
    }
    return result;
}

std::string RopeConfig::describe() const {
    std::string text = nameOf(type);
    if (type != RopeType::Default) text += fmt::format(" x{:g}", factor);
    if (type != RopeType::Default && type != RopeType::Linear)
        text += fmt::format(" from {} tokens", originalPositions);
    text += fmt::format(", theta {:g}", theta);
    if (attentionFactor != 1) text += fmt::format(", attention factor {:.6g}", attentionFactor);
    if (interleaved) text += ", neighbouring channels";
    return text;
}

RopeTables RopeTables::layout(const RopeConfig& config, std::span<const int> maxTokens) {
    RopeTables tables;
    const bool own = config.dependsOnLength();
    for (const int tokens : maxTokens) {
        tables.first_.push_back(own ? tables.rows_ : 0);
        tables.rows_ = own ? tables.rows_ + tokens : std::max(tables.rows_, tokens);
    }
    return tables;
}

RopeTables::RopeTables(const RopeConfig& config, std::span<const int> promptTokens, std::span<const int> maxTokens)
    : RopeTables(layout(config, maxTokens)) {
    const bool own = config.dependsOnLength();
    const Extents<int, int> angleAt(rows_, config.dim / 2);
    cos_.resize(angleAt.size());
    sin_.resize(cos_.size());
    const auto fill = [&](int row, int position, const std::vector<float>& frequencies) {
        float *const toCos = cos_.data() + angleAt.first(row), *const toSin = sin_.data() + angleAt.first(row);
        for (std::size_t i = 0; i < angleAt.under(0); ++i) {
            const double angle = double(float(position) * frequencies[i]);
            toCos[i] = float(std::cos(angle)) * float(config.attentionFactor);
            toSin[i] = float(std::sin(angle)) * float(config.attentionFactor);
        }
    };
    if (!own) {
        const auto frequencies = config.frequencies(rows_);
        for (int row = 0; row < rows_; ++row) fill(row, row, frequencies);
        return;
    }
    for (std::size_t s = 0; s < maxTokens.size(); ++s) {
        auto frequencies = config.frequencies(promptTokens[s]);
        for (int position = 0; position < maxTokens[s]; ++position) {
            if (position >= promptTokens[s]) frequencies = config.frequencies(position + 1);
            fill(first_[s] + position, position, frequencies);
        }
    }
}

} // namespace kvscope
