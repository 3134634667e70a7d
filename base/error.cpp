#include "base/error.h"

namespace kvscope {

std::string oneLine(const Error& error) {
    std::string line;
    for (auto step = error.steps.rbegin(); step != error.steps.rend(); ++step) line += *step + ": ";
    line += error.what();
    if (!error.hint.empty()) line += "; " + error.hint;
    for (char& c : line)
        if (c == '\n') c = ' ';
    return line;
}

} // namespace kvscope
