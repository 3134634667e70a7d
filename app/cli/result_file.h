// Files that a command writes when its work is done.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace kvscope::cli {

/// Checks, before work of minutes begins, that the file can be written at its end. Accepts an empty name, which stands
/// for no file. @throws Error(Storage) saying why the file cannot be written
void checkResultFile(const std::string& file);

/// Writes the whole of the file, or leaves what was there. @throws Error(Storage) saying why it cannot be written
void writeResultFile(const std::string& file, const std::function<void(std::ostream&)>& write);

} // namespace kvscope::cli
