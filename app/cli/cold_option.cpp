#include "app/cli/cold_option.h"

#include "profiler/read/step_kind.h"

namespace kvscope::cli {

Option addColdOption(Options& command) {
    return command.flag(
        "--count-cold", [] { setColdSteps(ColdSteps::Counted); },
        "Let rates, shares and means count cold steps too, in which a sequence selects for the first time and finds an "
        "empty cache. Totals always count every step");
}

} // namespace kvscope::cli
