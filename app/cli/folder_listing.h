// kvscope-cli info FOLDER: the traces of a folder, a line per run.
#pragma once

#include <string>

namespace kvscope::cli {

/// Whether `info` lists this folder: it is one, and no model's.
bool isFolderOfTraces(const std::string& path);

/// Prints the list. Files that cannot be read are in it with the reason. @return exit status
/// @throws Error(BadInput): no trace is there; Error(Storage): the folder cannot be read; Error(Cancelled)
int listFolder(const std::string& folder, bool json);

} // namespace kvscope::cli
