#include "resources/samples.h"

#include <array>

extern "C" {
extern const std::byte kvscope_sample_h200_tiny_begin[], kvscope_sample_h200_tiny_end[];
extern const std::byte kvscope_sample_h200_serving_begin[], kvscope_sample_h200_serving_end[];
extern const std::byte kvscope_sample_h200_8b_begin[], kvscope_sample_h200_8b_end[];
}

namespace kvscope::resources {

std::span<const SampleTrace> sampleTraces() {
    static const std::array table{
        SampleTrace{"h200-nosa-tiny.kvtrace",
                    "nosa-tiny on an H200: NOSA, InfLLM-V2 and full attention over 9,000 tokens",
                    "compare",
                    {kvscope_sample_h200_tiny_begin, kvscope_sample_h200_tiny_end}},
        SampleTrace{"h200-serving.kvtrace",
                    "An overloaded server on an H200, with working-set control and without",
                    "serving",
                    {kvscope_sample_h200_serving_begin, kvscope_sample_h200_serving_end}},
        SampleTrace{"h200-nosa-8b.kvtrace",
                    "The 8B shape on an H200: four sequences of 16K tokens, KV cache in host memory",
                    "insights",
                    {kvscope_sample_h200_8b_begin, kvscope_sample_h200_8b_end}},
    };
    return table;
}

} // namespace kvscope::resources
