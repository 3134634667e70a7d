#include "ui/widgets/serve_preset.h"

#include "core/select/method.h"

#include <QCoreApplication>

namespace kvscope::ui {

PresetValues presetValues(ServePreset preset) {
    if (preset != ServePreset::SparseServe) return {QString::fromLatin1(kDefaultMethod), {}, {}, {}};
    PresetValues values;
    values.method = QStringLiteral("quest");
    values.settings = {{"bound", "cuboid-mean"}, {"block_size", "32"}, {"total_blocks", "64"}, {"skip_layers", "0"}};
    values.knobs = {{"offload", "true"},
                    {"transfers", "kernel"},
                    {"working_set_control", "true"},
                    {"prefill", "layers"},
                    {"cache", "global-lru"}};
    values.note = QCoreApplication::translate(
        "ServePreset", "Quest with cuboid-mean bounds, 64 blocks of 32 tokens in every layer; blocks gathered by a "
                       "kernel, admission by "
                       "working sets, prompts cut by layers, one LRU pool for all rows and layers.");
    return values;
}

} // namespace kvscope::ui
