#include "ui/widgets/serve_preset.h"

#include <QCoreApplication>

namespace kvscope::ui {

PresetValues presetValues(ServePreset preset, Backend backend) {
    if (preset != ServePreset::SparseServe) return {QStringLiteral("nosa"), {}, {}, {}};
    const bool cpu = backend == Backend::Cpu;
    PresetValues values;
    values.method = QStringLiteral("quest");
    values.settings = {{"bound", "cuboid-mean"}, {"block_size", "32"}, {"total_blocks", "64"}, {"skip_layers", "0"}};
    values.knobs = {{"offload", "true"},
                    {"transfers", "kernel"},
                    {"working_set_control", "true"},
                    {"prefill", "layers"},
                    {"cache", cpu ? "global-lru" : "partition"}};
    const auto told = [](const char* text) { return QCoreApplication::translate("ServePreset", text); };
    values.note =
        told("Quest with cuboid-mean bounds, 64 blocks of 32 tokens in every layer; blocks gathered by a kernel, "
             "admission by working sets, prompts cut by layers") +
        (cpu ? told(", one LRU pool for all rows and layers.")
             : told(". The GPU has no pool for all rows: a fixed part of the device for every row (cache=partition) "
                    "takes the place of SparseServe's LRU."));
    return values;
}

} // namespace kvscope::ui
