// Which backend the session tests run on: the CPU, or the GPU with KVSCOPE_TEST_BACKEND=cuda.
#pragma once

#include "core/session/decode_session.h"

#include <cstdlib>
#include <string_view>

namespace kvscope::test {

inline bool onCuda() {
    const char* name = std::getenv("KVSCOPE_TEST_BACKEND");
    return name != nullptr && std::string_view(name) == "cuda";
}

inline Backend backend() { return onCuda() ? Backend::Cuda : Backend::Cpu; }

} // namespace kvscope::test
