// Rotary positions: what a configuration says of them, and the tables of one session.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

class ConfigReader;

/// The scalings of the transformers library (modeling_rope_utils), by its names.
enum class RopeType : std::uint8_t { Default, Linear, Dynamic, Llama3, LongRope, Yarn };
const char* nameOf(RopeType type);

struct RopeConfig {
    RopeType type = RopeType::Default;
    double theta = 10000;
    int dim = 0;              // rotated channels of a head
    bool interleaved = false; // channel 2i pairs with 2i + 1 (DeepSeek) instead of i with i + dim/2
    double factor = 1;
    int originalPositions = 0;                    // context before the scaling; Dynamic: beyond it the base grows
    double attentionFactor = 1;                   // on cos and sin (LongRope, Yarn)
    double lowFreqFactor = 1, highFreqFactor = 4; // Llama3
    double betaFast = 32, betaSlow = 1;           // Yarn
    bool truncate = true;                         // Yarn: whole channels at the ends of the ramp
    double scoreMscale = 1; // latent attention only: logits are multiplied by its square (mscale_all_dim)
    std::vector<float> shortFactors, longFactors; // LongRope, [dim/2]

    /// Reads rope_scaling or, where it is null or empty, rope_parameters, rope_theta and what belongs to them. `dim`:
    /// rotated channels; `maxPositions`: the file's max_position_embeddings. `unread`: gets the keys that the type of
    /// scaling has no use for. @throws Error(BadInput | Unsupported)
    /// partly: `dim` is less than a head's channels already, by rotatedShare; otherwise such a share is refused.
    static RopeConfig parse(const ConfigReader& reader, int dim, int maxPositions, std::vector<std::string>& unread,
                            bool partly = false);
    /// The share of a head's channels that is rotated (partial_rotary_factor), from 0 to 1.
    static double rotatedShare(const ConfigReader& reader);

    /// Whether the rotation of a token depends on how long the sequence is when it is computed.
    bool dependsOnLength() const { return type == RopeType::Dynamic || type == RopeType::LongRope; }
    /// Tokens the scaled positions reach; maxPositions as the file states it.
    int context(int maxPositions) const;
    /// Angle of channel pair i per position, [dim/2], for a sequence of `length` tokens. Rounded to float32 at every
    /// step, as the library computes it.
    std::vector<float> frequencies(int length) const;
    /// One line for people: "llama3 x8 from 8192 tokens, theta 500000".
    std::string describe() const;

private:
    /// Reads what the types beside Default state.
    void readScaling(const ConfigReader& reader, const ConfigReader& scaling, int maxPositions);
};

/// cos and sin for every position of a session's sequences, attention factor included.
///
/// Where the rotation depends on the length, the library rotates a prompt for its own length and every later token for
/// the length at its turn; keys stay as they were cached. Each sequence then has rows of its own.
class RopeTables {
public:
    RopeTables() = default;
    /// promptTokens, maxTokens: [sequence]
    RopeTables(const RopeConfig& config, std::span<const int> promptTokens, std::span<const int> maxTokens);
    /// Tables that say where the rows of each sequence lie, without cos and sin.
    static RopeTables layout(const RopeConfig& config, std::span<const int> maxTokens);

    const float* cos() const { return cos_.data(); } // [rows, dim/2]
    const float* sin() const { return sin_.data(); }
    int rows() const { return rows_; }
    /// Row of position 0 of a sequence.
    int first(int sequence) const { return first_[sequence]; }

private:
    int rows_ = 0;
    Numbered<int> first_;
    std::vector<float> cos_, sin_;
};

} // namespace kvscope
