#include "tests/support/places.h"

namespace kvscope::test {

std::string source(const std::string& path) {
    return path.empty() ? KVSCOPE_SOURCE_DIR : KVSCOPE_SOURCE_DIR "/" + path;
}

const char* const kCommandLine = KVSCOPE_CLI;
const char* const kDesktop = KVSCOPE_DESKTOP;

} // namespace kvscope::test
