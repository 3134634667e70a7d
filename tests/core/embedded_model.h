// The model that comes with the program, where the checkout has it.
#pragma once

#include "core/model/bundled_models.h"
#include "core/model/model.h"

#include "tests/core/files.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

namespace kvscope::test {

/// Whether the checkout has the model. Lists of cases are made before any test runs and must not load the model where
/// the checkout lacks it.
inline bool hasEmbeddedModel() { return hasBundledModel(kDefaultModel); }

/// The embedded model with its first four of eight layers. Tests that run many sessions take half the time with it, and
/// methods that treat the first layers in a way of their own still have both kinds.
inline const std::shared_ptr<const Model>& firstLayersOfEmbedded() {
    static const Folder folder; // a method reads files of its own beside the weights
    static const auto model = [] {
        for (const auto& entry : std::filesystem::directory_iterator(kEmbeddedFolder))
            if (entry.path().filename() != "config.json")
                std::filesystem::create_symlink(entry.path(), folder / entry.path().filename().string());
        std::string config = contentsOf(kEmbeddedFolder / "config.json");
        const std::string all = R"("num_hidden_layers": 8)";
        config.replace(config.find(all), all.size(), R"("num_hidden_layers": 4)");
        write(folder / "config.json", config);
        return Model::load(folder.path().string());
    }();
    return model;
}

} // namespace kvscope::test

#define KVSCOPE_NEEDS_NOSA_TINY()                                                                                      \
    if (!kvscope::test::hasEmbeddedModel()) GTEST_SKIP() << "this checkout leaves out resources/models/nosa-tiny"
