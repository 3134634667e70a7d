// The named stages of a decode step. One name each in code, NVTX ranges, the trace and the breakdown's legend.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvscope {

/// Inside a layer, in execution order. `Attention` is the dense path and replaces Stage1..Stage2.
enum class Stage : std::uint8_t {
    QkvLinear,
    Rope,
    Compression,
    Stage1,
    Pooling,
    Offloading,
    Stage2,
    Attention,
    OLinear,
    Ffn
};
inline constexpr int kStageCount = 10;
inline constexpr std::array<std::string_view, kStageCount> kStageNames{
    "qkv_linear", "rope", "compression", "stage1", "pooling", "offloading", "stage2", "attention", "o_linear", "ffn"};
constexpr std::string_view nameOf(Stage stage) { return kStageNames[std::size_t(stage)]; }

/// Outside the layers, once a step.
enum class StepStage : std::uint8_t { Embed, LmHead, Sample };
inline constexpr int kStepStageCount = 3;
inline constexpr std::array<std::string_view, kStepStageCount> kStepStageNames{"embed", "lm_head", "sample"};

/// Wall time of a step that no stage claims.
inline constexpr std::string_view kOtherName = "other";

} // namespace kvscope
