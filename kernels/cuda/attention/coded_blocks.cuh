// Full blocks as slots hold them: codes with scales beside them (KvFormat), in the order of a bf16 block (kv_shape.h).
// Attention takes eight neighbours of a row at a time and makes of them the 16 bytes that a bf16 block has there.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/transfer/quantised_numbers.cuh"

namespace kvscope::cuda {

/// Where the parts of a block begin, in bytes, and in how many groups each column's scales lie.
struct CodedParts {
    int bytes = 0, values = 0, keyScales = 0, valueScales = 0, keyGroups = 1, valueGroups = 1;
    CodedParts() = default;
    explicit CodedParts(const KvFormat& f)
        : bytes(int(f.blockBytes())), values(int(f.valuesAt())), keyScales(int(f.keyScalesAt())),
          valueScales(int(f.valueScalesAt())), keyGroups(f.keyGroups()), valueGroups(f.valueGroups()) {}
};

/// The type whose scales a thread holds. Kernels of bf16 blocks read none.
template <KvType kType> constexpr KvType kScaled = hasScales(kType) ? kType : KvType::INT8;

/// What a lane reads of a coded block.
template <KvType kType> struct CodedReader {
    static_assert(bitsOf(kType) * kTogether == int(sizeof(EightCodes<kType>)) * 8);
    static constexpr int kBits = bitsOf(kType);
    const CodedParts& parts;

    /// Bytes of so many codes, a multiple of eight.
    __device__ static int bytesOf(int codes) { return codes / kTogether * kBits; }
    __device__ static EightCodes<kType> codes(const char* at) {
        return *reinterpret_cast<const EightCodes<kType>*>(at);
    }
    /// The scales of eight neighbouring channels of the key of a token of the block.
    __device__ void keyScales(EightScales<kType>& scales, const char* block, int token, int channel) const {
        scales.read(block + parts.keyScales, channel, kType == KvType::INT4 ? token / KvFormat::kKeyGroup : 0,
                    parts.keyGroups);
    }
    /// The scales of a channel of the values of eight neighbouring tokens of the block.
    __device__ void valueScales(EightScales<kType>& scales, const char* block, int token, int channel) const {
        scales.read(block + parts.valueScales, token, kType == KvType::INT4 ? channel / KvFormat::kValueGroup : 0,
                    parts.valueGroups);
    }
};

/// Calls start with the type in which an attention reads the blocks before the newest one, as a constant.
template <class Start> void withBlockType(const DecodeAttentionArgs& args, const Start& start) {
    if (args.newest == nullptr) return start(std::integral_constant<KvType, KvType::BF16>());
    withType(args.format, start);
}

} // namespace kvscope::cuda
