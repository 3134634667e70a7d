// The maker's name of this machine's processor.
#pragma once

#include <string>

namespace kvscope {

/// The name that the operating system tells, e.g. "AMD EPYC 9654 96-Core Processor"; empty where it tells none.
std::string processorName();

} // namespace kvscope
