#include "bench/headline/built_commit.h"

#include "built_commit_text.h" // cmake/built_commit.cmake writes it at every build that finds another commit

namespace kvscope::bench {

std::string builtCommit() { return kBuiltCommit; }

} // namespace kvscope::bench
