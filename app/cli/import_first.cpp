#include "app/cli/import_first.h"

#include "app/cli/long_action.h"
#include "profiler/import/import.h"

namespace kvscope::cli {

void importFirst(const std::string& path) {
    if (!needsImport(path)) return;
    LongAction action;
    importIntoCache(path, action.whole(), action.stop());
}

} // namespace kvscope::cli
