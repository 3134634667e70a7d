#include "core/engine/step_order.h"

namespace kvscope {

void runStep(Stages& stages, int layers) {
    stages.embed();
    for (const LayerId layer : idsUpTo<LayerId>(layers)) {
        stages.project(layer);
        stages.append(layer);
        stages.choose(layer);
        stages.lookAhead(layer);
        stages.load(layer);
        stages.attend(layer);
        stages.after(layer);
        stages.measure(layer);
        stages.finish(layer);
    }
    stages.head();
}

} // namespace kvscope
