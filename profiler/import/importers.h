// The two functions of each import format, which registry.cpp lists: one recognises a file, the other reads it.
#pragma once

#include "profiler/import/import.h"

namespace kvscope {

bool recognisesNsight(const std::string& path, std::string_view head);
ImportedFacts readNsight(const std::string& path, TimelineBuilder& timeline, const Progress& progress,
                         const std::stop_token& stop);

bool recognisesTraceEvents(const std::string& path, std::string_view head);
ImportedFacts readTraceEvents(const std::string& path, TimelineBuilder& timeline, const Progress& progress,
                              const std::stop_token& stop);

} // namespace kvscope
