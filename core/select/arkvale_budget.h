// How ArkVale divides its budget of resident pages; shared by its forms on both backends.
#pragma once

#include "core/select/parameters.h"

namespace kvscope::select {

struct PageBudget {
    int resident, sink, window;
    int dynamic; // pages of the highest scores that must be resident
    /// @throws Error(BadInput) when the budget does not hold what it must
    explicit PageBudget(const ParameterValues& values);
};

} // namespace kvscope::select
