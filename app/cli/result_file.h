// Files that a command writes when its work is done.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace kvscope::cli {

/// Tries the place of a file that is written at the end of work of minutes. An empty name is no file, and is taken.
/// @throws Error(Storage) saying why the file cannot be written
void checkResultFile(const std::string& file);

/// Writes the whole of the file, or leaves what was there. @throws Error(Storage) saying why it cannot be written
void writeResultFile(const std::string& file, const std::function<void(std::ostream&)>& write);

} // namespace kvscope::cli
