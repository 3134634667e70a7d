// kvscope-cli info FOLDER: the traces of a folder, a line per run.
#pragma once

#include <string>

namespace kvscope::cli {

/// Whether `info` lists this folder: it is one, and no model's.
bool isFolderOfTraces(const std::string& path);

/// Prints the list. Files that cannot be read are in it with the reason. depth: levels of subfolders that are listed
/// too. @return exit status
/// @throws Error(BadInput): no trace is there; Error(Storage): the folder cannot be read; Error(Cancelled)
int listFolder(const std::string& folder, int depth, bool json);

} // namespace kvscope::cli
