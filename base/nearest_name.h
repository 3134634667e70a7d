// Suggests the name that somebody meant who wrote it wrong.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// " (did you mean --budget?)" with the one of `names` that is written most like `wrong`; leading dashes do not count.
/// Empty where all names are too different: more than one letter in three would have to be added, left out, replaced or
/// exchanged with the next one.
std::string didYouMean(std::string_view wrong, const std::vector<std::string>& names);

} // namespace kvscope
