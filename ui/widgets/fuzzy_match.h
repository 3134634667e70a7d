// How well a name fits letters that are typed to find it.
#pragma once

#include <QString>

#include <optional>

namespace kvscope::ui {

/// The letters of `typed` must occur in `name` in their order, whatever their case; blanks in `typed` do not count. The
/// larger, the better: a letter counts 1, 4 more where it begins a word, and 3 more where the one before it stands
/// right before it; of all ways to place the letters the best counts. Nothing: they do not occur.
std::optional<int> fuzzyScore(const QString& typed, const QString& name);

} // namespace kvscope::ui
