// The named stages of a decode step. One name each in code, NVTX ranges, the trace and the breakdown's legend.
#pragma once

#include <array>
#include <cstddef>
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
constexpr std::string_view nameOf(StepStage stage) { return kStepStageNames[std::size_t(stage)]; }

/// A stage of a layer, a stage of a step, or none, as one small number.
class StageId {
public:
    constexpr StageId() = default; // none
    constexpr StageId(Stage stage) : number_(std::uint8_t(1 + int(stage))) {}
    constexpr StageId(StepStage stage) : number_(std::uint8_t(1 + kStageCount + int(stage))) {}
    /// 0: none; numbers that no stage has: none.
    static constexpr StageId of(int number) {
        StageId stage;
        if (number > 0 && number <= kStageCount + kStepStageCount) stage.number_ = std::uint8_t(number);
        return stage;
    }
    /// "stage2"; a name that no stage has: none.
    static constexpr StageId named(std::string_view name) {
        for (int number = 1; number <= kStageCount + kStepStageCount; ++number)
            if (of(number).name() == name) return of(number);
        return {};
    }
    constexpr int number() const { return number_; }
    constexpr bool isNone() const { return number_ == 0; }
    /// Empty: none.
    constexpr std::string_view name() const {
        if (isNone()) return {};
        const auto at = std::size_t(number_ - 1);
        return at < kStageNames.size() ? kStageNames[at] : kStepStageNames[at - kStageNames.size()];
    }
    friend constexpr bool operator==(StageId, StageId) = default;

private:
    std::uint8_t number_ = 0;
};

/// Wall time of a step that no stage claims.
inline constexpr std::string_view kOtherName = "other";

} // namespace kvscope
