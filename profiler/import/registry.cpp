#include "profiler/import/import.h"
#include "profiler/import/importers.h"

namespace kvscope {

const std::vector<ImportFormat>& importFormats() {
    static const std::vector<ImportFormat> formats{
        {"nsight", "Nsight Systems SQLite export", recognisesNsight, readNsight},
        {"trace-events", "Chrome/Perfetto trace-event JSON", recognisesTraceEvents, readTraceEvents},
    };
    return formats;
}

} // namespace kvscope
