// The processor of this machine, by the name its maker gave it.
#pragma once

#include <string>

namespace kvscope {

/// "AMD EPYC 9654 96-Core Processor", as the operating system tells it; empty where it does not.
std::string processorName();

} // namespace kvscope
