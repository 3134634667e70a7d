// Files that a command writes when its work is done.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace kvscope::cli {

/// Checks, before work of minutes begins, that the file can be written at its end. Accepts an empty name, which stands
/// for no file. @throws Error(Storage) saying why the file cannot be written
void checkResultFile(const std::string& file);

/// Replaces the file as a whole; if that fails, the old file stays. @throws Error(Storage) saying why the file cannot
/// be written
void writeResultFile(const std::string& file, const std::function<void(std::ostream&)>& write);

} // namespace kvscope::cli
