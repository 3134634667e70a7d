// What the first page of a file says of the file, read before a connection opens it.
#pragma once

#include <string>

namespace kvscope {

/// A trace of ours, of whatever version and however damaged it is behind its first page. Never throws.
bool isTraceFile(const std::string& path);

} // namespace kvscope
