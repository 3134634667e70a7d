// Where a session computes.
#pragma once

#include <cstdint>

namespace kvscope {

enum class Backend : std::uint8_t { Cpu, Cuda };
constexpr const char* nameOf(Backend backend) { return backend == Backend::Cpu ? "cpu" : "cuda"; }

} // namespace kvscope
