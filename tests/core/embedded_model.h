// The model that comes with the program, where the checkout has it.
#pragma once

#include "core/model/bundled_models.h"
#include "core/model/model.h"

#include <gtest/gtest.h>

namespace kvscope::test {

/// Lists of cases are made before any test runs. They must not load the model where this is false.
inline bool hasEmbeddedModel() { return hasBundledModel(kDefaultModel); }

} // namespace kvscope::test

#define KVSCOPE_NEEDS_NOSA_TINY()                                                                                      \
    if (!kvscope::test::hasEmbeddedModel()) GTEST_SKIP() << "this checkout leaves out resources/models/nosa-tiny"
