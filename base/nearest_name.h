// What somebody meant who wrote a name wrong.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// " (did you mean --budget?)" with the name of `names` that is written most like `wrong`, dashes before it aside, or
/// nothing where more than one letter in three would have to be added, left out, replaced or exchanged with the next
std::string didYouMean(std::string_view wrong, const std::vector<std::string>& names);

} // namespace kvscope
